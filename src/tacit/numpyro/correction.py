"""Corrected posteriors of programs: draws of the shared latents in which the noise is counted.

The guide learns how wide the posterior is without privacy noise, and stops at a noisy place. But a
run's aligned releases are gradients at known draws of the latents, with noise of known size, which
is all that `tacit.inference.noise_aware` needs: the posterior given these releases takes the place
of the guide, at no privacy cost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.diagnostics import effective_sample_size
from numpyro.infer.hmc import HMCState, hmc
from numpyro.infer.initialization import init_to_uniform

from tacit.inference.corrected import (
    MOST_NEGATIVE,
    caveats_of,
    groups_of,
    obstacle_in,
)
from tacit.inference.evidence import (
    MAX_PARAMETERS,
    SLOPE_CHANGE,
    Evidence,
    Matrix,
    Vector,
    releases_in,
)
from tacit.inference.noise_aware import Components, Message, NoiseAware, noise_aware
from tacit.inference.stand_in import is_quadratic, prior_site
from tacit.intervals import IntervalFacts, Parts
from tacit.models.programs.alignment import SharedLatents
from tacit.models.programs.arguments import made_up_records
from tacit.models.programs.model import ProgramPrior
from tacit.models.programs.split import SplitProgram
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["Correction", "JointPosterior", "ProgramSpace", "correction_of"]

_BROAD = 30.0
"""Standard deviation of a prior on unconstrained latents under which only the message speaks."""

_NUM_CHAINS, _NUM_WARMUP, _NUM_DRAWS = 25, 200, 1000
_LEAST_SIZE = 50


class Correction(NamedTuple):
    """What is known of a program's posterior once the noise is counted.

    Attributes:
      draws: of the shared latents in their own spaces, with a leading axis; None where the guide's
        own stay.
      intervals: what their widths are made of, and why they may not hold.
    """

    draws: Mapping[str, Array] | None
    intervals: IntervalFacts


def correction_of(
    program: SplitProgram, release: GaussianSum, evidence: Evidence | None
) -> Correction:
    """Returns the posterior given a run's releases, or why the guide's own stays.

    Guarantee:
      Post-processing of releases; no record is read.

    Args:
      program: what was run.
      release: the engine of the gradients.
      evidence: what the run noted of its releases.
    """
    if not release.is_private:
        return Correction(None, IntervalFacts())
    obstacle = _obstacle(program, evidence)
    if obstacle is not None or evidence is None or program.latents is None:
        return _guides_own(obstacle)
    try:
        with np.errstate(all="ignore"):
            return _given_releases(JointPosterior(program.latents), evidence, release)
    except np.linalg.LinAlgError:
        return _guides_own("the releases do not determine a posterior")


def _given_releases(
    joint: "JointPosterior", evidence: Evidence, release: GaussianSum
) -> Correction:
    seen = joint.seen(jax.tree.map(lambda leaf: leaf[None], evidence), release)
    if not np.all(np.isfinite(seen.components.covariances)):
        return _guides_own("the releases are not finite")
    draws = joint.draws(seen)
    if not np.all(np.isfinite(draws)):
        return _guides_own("the posterior given the releases could not be sampled")
    caveats = _caveats(seen)
    sizes = [effective_sample_size(chain[None]) for chain in draws]
    size = float(np.min(np.sum(sizes, axis=0)))
    if not size > _LEAST_SIZE:
        caveats += (
            f"The sampler of the corrected posterior has an effective size of {size:.0f} only: its"
            " geometry is hard, as that of a group's spread is. Centre or scale the groups.",
        )
    draws = draws.reshape(-1, draws.shape[-1])
    return Correction(
        joint.space.constrained(jnp.asarray(draws, jnp.float32)),
        IntervalFacts(parts=_parts(joint.space, joint.joint(seen, draws)), caveats=caveats),
    )


def _caveats(seen: NoiseAware) -> tuple[str, ...]:
    # What is not known of the curvature is in the draws; the prior of a program bounds it.
    obstacle = obstacle_in(seen._replace(has_curvatures=True))
    if obstacle is None:
        return caveats_of(seen)
    return (*caveats_of(seen), f"The intervals may not hold, because {obstacle}.")


def _obstacle(program: SplitProgram, evidence: Evidence | None) -> str | None:
    """Returns why the guide's draws cannot be corrected; None where they can."""
    if program.latents is None:
        return program.alignment.obstacle
    if evidence is None or not evidence.points.shape[-1]:
        return (
            f"records see {program.alignment.num_drawn} numbers, and noise can be included for at"
            f" most {MAX_PARAMETERS}"
        )
    if int(evidence.num_steps) == 0:
        return "no step was made"
    if _bends_down(program.latents):
        return "the likelihood is not quadratic in the latents, as in a network or a mixture"
    return None


def _guides_own(obstacle: str | None) -> Correction:
    caveat = (
        "Intervals are those of the guide; they do not include the privacy noise, because"
        f" {obstacle}. They may be far too narrow or too wide."
    )
    return Correction(None, IntervalFacts(caveats=(caveat,)))


def _bends_down(latents: SharedLatents) -> bool:
    """Whether the loss of a made-up record bends down in many directions."""
    names = latents.seen
    zeros = {name: jnp.zeros(latents.shapes[name].shape) for name in names}
    flat, unflat = ravel_pytree(zeros)

    @jax.jit
    def negative(key: Key, rows: list[Array]) -> Array:
        point_key, own_key = jax.random.split(key)
        point = jax.random.normal(point_key, flat.shape)

        def loss(point: Array) -> Scalar:
            return -latents.log_density(unflat(point), key, rows, own_key)

        values = jnp.linalg.eigvalsh(jax.hessian(loss)(point))
        return jnp.sum(values < -1e-3 * jnp.max(jnp.abs(values)))

    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in latents.blank]
    keys = jax.random.split(seeded_key(0), 3)
    made_up = zip(keys, made_up_records(shapes), strict=False)
    return max(int(negative(key, rows)) for key, rows in made_up) > MOST_NEGATIVE


@dataclass(frozen=True, kw_only=True)
class ProgramSpace:
    """The shared latents as flat vectors of unconstrained numbers.

    Attributes:
      prior: their log density.
      zeros: the unconstrained latents, all at zero.
      seen: which of the flat numbers records see.
    """

    prior: ProgramPrior
    zeros: Params
    seen: NDArray[np.bool_]

    @classmethod
    def of(cls, latents: SharedLatents) -> "ProgramSpace":
        """Returns the space of a program's shared latents."""
        program = latents.program
        prior = ProgramPrior(
            model=program.model,
            build=program.build,
            plate=program.plate,
            blank=latents.blank,
            modules=latents.modules,
            start=init_to_uniform,
        )
        zeros = {
            name: jnp.zeros(shape.shape, jnp.promote_types(shape.dtype, jnp.float32))
            for name, shape in latents.shapes.items()
        }
        marks = {name: jnp.full_like(leaf, name in latents.seen) for name, leaf in zeros.items()}
        return cls(prior=prior, zeros=zeros, seen=np.asarray(ravel_pytree(marks)[0]) > 0)

    @property
    def groups(self) -> NDArray[np.int64]:
        """Which of the numbers that records see belong to the same site."""
        return groups_of(self.zeros)[self.seen]

    def constrained(self, flat: Array) -> dict[str, Array]:
        """Returns flat draws in the spaces of the sites."""
        _, unflat = ravel_pytree(self.zeros)
        return self.prior.constrained(jax.vmap(unflat)(flat))


class ReleasedLikelihood(NamedTuple):
    """What averaged releases say of the latents that records see, if the curvature is known.

    With curvature ``A`` and noise ``S`` the averaged gradient is normal around
    ``A (point - latents)`` with covariance ``A + S``. Whitened it is an affine function.

    Attributes:
      constant: ``(d,)``.
      slope: ``(d, d)``.
    """

    constant: Array
    slope: Array

    @classmethod
    def of(cls, message: Message, curvature: Matrix) -> "ReleasedLikelihood":
        """Returns what a message says under this curvature."""
        root = np.linalg.cholesky(curvature + message.noise(curvature))
        slope = np.linalg.solve(root, curvature)
        constant = np.linalg.solve(root, message.gradient) - slope @ message.point
        return cls(jnp.asarray(constant, jnp.float32), jnp.asarray(slope, jnp.float32))

    def log_prob(self, latents: Array) -> Scalar:
        """Returns the log density of the averaged gradient, up to a constant."""
        return -0.5 * jnp.sum(jnp.square(self.constant + self.slope @ latents))


class JointPosterior:
    """The prior of all shared latents times what a run's releases say of those that records see.

    The prior of a hierarchy is not Gaussian, and no Gaussian stands for it everywhere, so the
    product is sampled by NUTS, on the unconstrained latents. Each chain has a curvature of its own,
    drawn from what is known of it, and all count alike: how well a curvature goes with the prior
    says nothing about it that the slopes do not say better.
    """

    def __init__(self, latents: SharedLatents, *, num_draws: int = _NUM_DRAWS) -> None:
        self.space = ProgramSpace.of(latents)
        self._slope_change = _slope_change(latents)
        _, unflat = ravel_pytree(self.space.zeros)
        seen = np.flatnonzero(self.space.seen)
        num_updates = _NUM_WARMUP + num_draws // _NUM_CHAINS

        def chain(likelihood: ReleasedLikelihood, start: Array, key: Key) -> Array:
            def potential(draw: Array) -> Scalar:
                return -self.space.prior(unflat(draw)) - likelihood.log_prob(draw[seen])

            first, sample = hmc(potential, algo="NUTS")
            state = first(start, _NUM_WARMUP, rng_key=key)

            def update(state: HMCState, _: None) -> tuple[HMCState, Array]:
                state = sample(state)
                return state, state.z

            return jax.lax.scan(update, state, length=num_updates)[1][_NUM_WARMUP:]

        self._chains = jax.jit(jax.vmap(chain))

    def seen(self, evidence: Evidence, release: GaussianSum) -> NoiseAware:
        """Returns what releases say of the latents that records see, under a broad prior.

        Args:
          evidence: of the run; every leaf has a leading chain axis.
          release: the engine that made them.
        """
        releases = releases_in(
            evidence, release, self.space.groups, slope_change=self._slope_change
        )
        return noise_aware(releases, lambda mean, _: _broad(mean))

    def draws(self, seen: NoiseAware) -> NDArray[np.float64]:
        """Returns draws of all latents, ``(num_chains, num_draws, d)``."""
        return self.draws_of([(seen.message, seen.curvatures)])[0]

    def draws_of(self, runs: Sequence[tuple[Message, NDArray[np.float64]]]) -> NDArray[np.float64]:
        """Returns draws for each of several runs, ``(num_runs, num_chains, num_draws, d)``.

        Chains start where the releases point to, which no prior needs to agree with.

        Args:
          runs: averaged releases and the curvatures that may be theirs, one for each chain; of one
            curvature all chains have it.
        """
        likelihoods, starts = [], []
        for message, curvatures in runs:
            for i in range(_NUM_CHAINS):
                curvature = curvatures[i % len(curvatures)]
                likelihoods.append(ReleasedLikelihood.of(message, curvature))
                starts.append(message.posterior(curvature, *_broad(message.point))[0])
        start = np.zeros((len(starts), len(self.space.seen)), np.float32)
        start[:, self.space.seen] = starts
        stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *likelihoods)
        keys = jax.random.split(jax.random.key(0), len(starts))
        draws = np.asarray(self._chains(stacked, jnp.asarray(start), keys), np.float64)
        return draws.reshape(len(runs), _NUM_CHAINS, *draws.shape[1:])

    def joint(self, seen: NoiseAware, draws: Matrix) -> NoiseAware:
        """Returns the same over all latents, with a Gaussian that stands for the prior there."""
        mean, covariance = draws.mean(0), np.atleast_2d(np.cov(draws.T))
        precision, linear = prior_site(self.space.prior, self.space.zeros)(mean, covariance)
        return seen._replace(
            components=Components(mean[None], covariance[None]),
            curvature=self._embedded(seen.curvature),
            noise=self._embedded(seen.noise),
            prior_precision=precision,
            prior_linear=linear,
        )

    def _embedded(self, matrix: Matrix) -> Matrix:
        seen = np.flatnonzero(self.space.seen)
        whole = np.zeros((len(self.space.seen),) * 2)
        whole[np.ix_(seen, seen)] = matrix
        return whole


def _broad(mean: Vector) -> tuple[Matrix, Vector]:
    """Returns precision and linear term of a prior under which only the message speaks."""
    return np.eye(len(mean)) / _BROAD**2, np.zeros(len(mean))


def _slope_change(latents: SharedLatents) -> float:
    """Returns how fast the curvature of a record's density changes with the latents it sees."""
    key, own = jax.random.split(seeded_key(0))
    zeros = {name: jnp.zeros(latents.shapes[name].shape) for name in latents.seen}
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in latents.blank]
    rows = next(iter(made_up_records(shapes)))

    def loss(draw: Params) -> Scalar:
        return -latents.log_density(draw, key, rows, own)

    return 0.0 if is_quadratic(loss, zeros) else SLOPE_CHANGE


def _parts(space: ProgramSpace, found: NoiseAware) -> Parts:
    """Returns standard deviations in the spaces of the sites, to first order around the mean."""
    at = jnp.asarray(found.mean, jnp.float32)
    _, unflat = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], space.constrained(at[None])))

    def values(flat: Array) -> Array:
        return ravel_pytree(space.constrained(flat[None]))[0]

    slopes = np.asarray(jax.jacfwd(values)(at), np.float64)

    def of_covariance(covariance: Matrix) -> Params:
        variances = np.einsum("ki,ij,kj->k", slopes, covariance, slopes)
        return unflat(jnp.asarray(np.sqrt(np.maximum(variances, 0)), jnp.float32))

    def of_precision(precision: Matrix) -> Params:
        variances, basis = np.linalg.eigh(precision)
        is_known = variances > 1e-12 * max(float(variances.max()), 1e-300)
        along = (slopes @ basis) ** 2
        with np.errstate(divide="ignore"):
            known = along[:, is_known] @ (1 / variances[is_known])
        is_unknown = (along[:, ~is_known] > 1e-9 * along.sum(1, keepdims=True)).any(1)
        return unflat(jnp.asarray(np.where(is_unknown, np.inf, np.sqrt(known)), jnp.float32))

    # The noise moves the centre of what records see, and with it that of all other latents.
    total = found.prior_precision + found.curvature
    inverse = np.linalg.inv(total)
    likelihood = np.linalg.pinv(found.curvature, hermitian=True)
    seen = likelihood @ found.noise @ likelihood
    moved = inverse @ found.noise @ inverse
    is_seen = np.diag(found.curvature) > 0
    privacy = np.where(np.outer(is_seen, is_seen), seen, moved)
    return Parts(
        total=of_covariance(found.covariance),
        without_privacy=of_precision(total),
        prior=of_precision(found.prior_precision),
        data=of_precision(found.curvature),
        privacy=of_covariance(privacy),
    )
