"""Corrected posteriors of programs: draws of the shared latents in which the noise is counted.

The guide learns how wide the posterior is without privacy noise, and stops at a noisy place. But a
run's aligned releases are gradients at known draws of the latents, with noise of known size, which
is all that `tacit.inference.noise_aware` needs: the posterior given these releases takes the place
of the guide, at no privacy cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.infer.initialization import init_to_uniform

from tacit.inference.corrected import (
    MOST_NEGATIVE,
    caveats_of,
    flat_draws,
    obstacle_in,
    prior_site,
)
from tacit.inference.evidence import MAX_PARAMETERS, Evidence
from tacit.inference.noise_aware import (
    Components,
    Matrix,
    NoiseAware,
    Vector,
    noise_aware,
    releases_in,
)
from tacit.intervals import IntervalFacts, Parts
from tacit.models.programs.alignment import SharedLatents
from tacit.models.programs.arguments import made_up_records
from tacit.models.programs.model import ProgramPrior
from tacit.models.programs.split import SplitProgram
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["Correction", "correction_of"]

_NUM_ROUNDS = 3


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
    space = _Space.of(program.latents)
    prior = _MarginalPrior(space)
    seen = noise_aware(releases_in(jax.tree.map(lambda leaf: leaf[None], evidence), release), prior)
    found = prior.joint(seen)
    if not np.all(np.isfinite(found.components.covariances)):
        return _guides_own("the releases are not finite")
    draws = flat_draws(found, space.prior, space.zeros)
    return Correction(
        space.constrained(jnp.asarray(draws, jnp.float32)),
        IntervalFacts(parts=_parts(space, found), caveats=_caveats(seen)),
    )


def _caveats(seen: NoiseAware) -> tuple[str, ...]:
    obstacle = obstacle_in(seen)
    if obstacle is None:
        return caveats_of(seen)
    return (*caveats_of(seen), f"The intervals may not hold, because {obstacle}.")


def _obstacle(program: SplitProgram, evidence: Evidence | None) -> str | None:
    """Returns why the guide's draws cannot be corrected; None where they can."""
    if program.latents is None:
        return program.alignment.obstacle
    if evidence is None:
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
class _Space:
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
    def of(cls, latents: SharedLatents) -> "_Space":
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

    def constrained(self, flat: Array) -> dict[str, Array]:
        """Returns flat draws in the spaces of the sites."""
        _, unflat = ravel_pytree(self.zeros)
        return self.prior.constrained(jax.vmap(unflat)(flat))


class _MarginalPrior:
    """The prior of what records see, with all other latents integrated over.

    A Gaussian stands for the joint prior at the joint posterior, where what is not seen has its
    conditional distribution given what is. It is found by a few rounds.
    """

    def __init__(self, space: _Space) -> None:
        self._site = prior_site(space.prior, space.zeros)
        self._seen, self._others = np.flatnonzero(space.seen), np.flatnonzero(~space.seen)
        size = len(space.seen)
        self._precision, self._linear = np.eye(size), np.zeros(size)

    def __call__(self, mean: Vector, covariance: Matrix) -> tuple[Matrix, Vector]:
        """Returns precision and linear term for what records see."""
        for _ in range(_NUM_ROUNDS if len(self._others) else 1):
            self._precision, self._linear = self._site(*self._moments(mean, covariance))
        slope, intercept, _ = self._conditional()
        across = self._precision[np.ix_(self._seen, self._others)]
        own = self._precision[np.ix_(self._seen, self._seen)]
        return own + across @ slope, self._linear[self._seen] - across @ intercept

    def joint(self, found: NoiseAware) -> NoiseAware:
        """Returns the posterior of all latents, from that of what records see."""
        moments = [self._moments(*component) for component in zip(*found.components, strict=True)]
        return found._replace(
            components=Components(
                np.array([mean for mean, _ in moments]),
                np.array([covariance for _, covariance in moments]),
            ),
            curvature=self._embedded(found.curvature),
            noise=self._embedded(found.noise),
            prior_precision=self._precision,
            prior_linear=self._linear,
        )

    def _moments(self, mean: Vector, covariance: Matrix) -> tuple[Vector, Matrix]:
        slope, intercept, within = self._conditional()
        seen, others = self._seen, self._others
        whole_mean = np.empty(len(self._linear))
        whole_mean[seen], whole_mean[others] = mean, intercept + slope @ mean
        across = slope @ covariance
        whole = self._embedded(covariance)
        whole[np.ix_(others, seen)], whole[np.ix_(seen, others)] = across, across.T
        whole[np.ix_(others, others)] = within + across @ slope.T
        return whole_mean, whole

    def _embedded(self, matrix: Matrix) -> Matrix:
        whole = np.zeros_like(self._precision)
        whole[np.ix_(self._seen, self._seen)] = matrix
        return whole

    def _conditional(self) -> tuple[Matrix, Vector, Matrix]:
        """Slope, intercept and covariance of what is not seen given what is."""
        values, basis = np.linalg.eigh(self._precision[np.ix_(self._others, self._others)])
        within = (basis / np.maximum(values, 1e-6)) @ basis.T
        slope = -within @ self._precision[np.ix_(self._others, self._seen)]
        return slope, within @ self._linear[self._others], within


def _parts(space: _Space, found: NoiseAware) -> Parts:
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
