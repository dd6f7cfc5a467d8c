"""Corrected posteriors of programs: draws of the shared latents in which the noise is counted.

The guide learns how wide the posterior is without privacy noise, and stops at a noisy place. But a
run's aligned releases are gradients at known draws of the latents, with noise of known size, which
is all that `tacit.inference.noise_aware` needs: the posterior given these releases takes the place
of the guide, at no privacy cost.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.infer.initialization import init_to_uniform

from tacit.inference.evidence import MAX_PARAMETERS, Evidence
from tacit.inference.noise_aware import Matrix, NoiseAware, Vector, noise_aware, releases_in
from tacit.intervals import IntervalFacts, Parts
from tacit.models.programs.alignment import SharedLatents
from tacit.models.programs.model import ProgramPrior
from tacit.models.programs.split import SplitProgram
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key
from tacit.typing import Array, Params, Scalar

__all__ = ["Correction", "correction_of"]

_NUM_DRAWS = 1000
_NUM_ROUNDS = 3
_NUM_SITES = 64


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

    Args:
      program: what was run.
      release: the engine of the gradients.
      evidence: what the run noted of its releases.
    """
    if not release.is_private:
        return Correction(None, IntervalFacts())
    if program.latents is None:
        return _guides_own(f"they could not be corrected, because {program.alignment.obstacle}")
    if evidence is None:
        return _guides_own(
            "they could not be corrected, because records see"
            f" {program.alignment.num_drawn} numbers, more than the {MAX_PARAMETERS} whose"
            " curvature can be learnt from noisy gradients"
        )
    if int(evidence.num_steps) == 0:
        return _guides_own("no step was made")
    space = _Space.of(program.latents)
    releases = releases_in(jax.tree.map(lambda leaf: leaf[None], evidence), release)
    prior = _MarginalPrior(space)
    found = noise_aware(releases, prior)
    draws = prior.joint_draws(found, np.random.default_rng(0))
    return Correction(
        space.constrained(jnp.asarray(draws, jnp.float32)),
        IntervalFacts(parts=_parts(space, prior, found)),
    )


def _guides_own(why: str) -> Correction:
    caveat = f"The intervals are those of the guide and leave out the privacy noise: {why}."
    return Correction(None, IntervalFacts(caveats=(caveat,)))


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
        unflat = ravel_pytree(self.zeros)[1]
        return self.prior.constrained(jax.vmap(unflat)(flat))

    def gaussian_prior(self, mean: Vector, covariance: Matrix) -> tuple[Matrix, Vector]:
        """Returns precision and linear term of the Gaussian that stands for the prior.

        They are the expected curvature of the negative log prior, and the expected gradient, at a
        posterior of this mean and covariance: what variational inference takes of a prior.
        """
        values, vectors = np.linalg.eigh(covariance)
        root = vectors * np.sqrt(np.maximum(values, 0))
        gradient, curvature = (
            np.asarray(part, np.float64)
            for part in self._moments(
                jnp.asarray(mean, jnp.float32), jnp.asarray(root, jnp.float32)
            )
        )
        values, vectors = np.linalg.eigh((curvature + curvature.T) / 2)
        precision = (vectors * np.maximum(values, 0)) @ vectors.T
        return precision, precision @ mean + gradient

    @functools.cached_property
    def _moments(self) -> Callable[[Array, Array], tuple[Array, Array]]:
        unflat = ravel_pytree(self.zeros)[1]

        def log_density(flat: Array) -> Scalar:
            return self.prior(unflat(flat))

        @jax.jit
        def moments(mean: Array, root: Array) -> tuple[Array, Array]:
            half = jax.random.normal(seeded_key(0), (_NUM_SITES // 2, len(mean)))

            def at(offset: Array) -> tuple[Array, Array]:
                point = mean + root @ offset
                return jax.grad(log_density)(point), -jax.hessian(log_density)(point)

            gradients, curvatures = jax.lax.map(at, jnp.concatenate([half, -half]))
            return gradients.mean(0), curvatures.mean(0)

        return moments


class _MarginalPrior:
    """The prior of what records see, with all other latents integrated over.

    A Gaussian stands for the joint prior at the joint posterior, where what is not seen has its
    conditional distribution given what is. It is found by a few rounds.
    """

    def __init__(self, space: _Space) -> None:
        self._site, self._seen = space.gaussian_prior, space.seen
        self._precision, self._linear = np.eye(len(space.seen)), np.zeros(len(space.seen))

    def __call__(self, mean: Vector, covariance: Matrix) -> tuple[Matrix, Vector]:
        """Returns precision and linear term for what records see."""
        for _ in range(1 if self._seen.all() else _NUM_ROUNDS):
            self._precision, self._linear = self._site(*self.joint(mean, covariance))
        given, shift, _ = self._conditional()
        across = self._precision[np.ix_(self._seen, ~self._seen)]
        own = self._precision[np.ix_(self._seen, self._seen)]
        return own + across @ given, self._linear[self._seen] - across @ shift

    def joint(self, mean: Vector, covariance: Matrix) -> tuple[Vector, Matrix]:
        """Returns mean and covariance of all latents, from those of what records see."""
        given, shift, within = self._conditional()
        whole_mean, whole = np.empty(len(self._seen)), np.empty((len(self._seen),) * 2)
        whole_mean[self._seen], whole_mean[~self._seen] = mean, shift + given @ mean
        across = given @ covariance
        whole[np.ix_(self._seen, self._seen)] = covariance
        whole[np.ix_(~self._seen, self._seen)] = across
        whole[np.ix_(self._seen, ~self._seen)] = across.T
        whole[np.ix_(~self._seen, ~self._seen)] = within + across @ given.T
        return whole_mean, whole

    def joint_draws(self, found: NoiseAware, generator: np.random.Generator) -> Matrix:
        """Returns draws of all latents from a posterior of what records see."""
        means, covariances = found.components
        which = np.arange(_NUM_DRAWS) % len(means)
        given, shift, within = self._conditional()
        draws = np.empty((_NUM_DRAWS, len(self._seen)))
        normal = generator.normal(size=draws.shape)
        roots = np.linalg.cholesky(covariances)[which]
        seen = means[which] + np.einsum("kij,kj->ki", roots, normal[:, self._seen])
        root = np.linalg.cholesky(within)
        draws[:, self._seen] = seen
        draws[:, ~self._seen] = shift + seen @ given.T + normal[:, ~self._seen] @ root.T
        return draws

    @property
    def precision(self) -> Matrix:
        """Of the Gaussian that stands for the joint prior."""
        return self._precision

    def _conditional(self) -> tuple[Matrix, Vector, Matrix]:
        """Slope, intercept and covariance of what is not seen given what is."""
        others = ~self._seen
        values, vectors = np.linalg.eigh(self._precision[np.ix_(others, others)])
        within = (vectors / np.maximum(values, 1e-6)) @ vectors.T
        slope = -within @ self._precision[np.ix_(others, self._seen)]
        return slope, within @ self._linear[others], within


def _parts(space: _Space, prior: _MarginalPrior, found: NoiseAware) -> Parts:
    """Returns standard deviations in the spaces of the sites, to first order around the mean."""
    mean, covariance = prior.joint(found.mean, found.covariance)
    at = jnp.asarray(mean, jnp.float32)
    _, unflat = ravel_pytree(jax.tree.map(lambda leaf: leaf[0], space.constrained(at[None])))

    def values(flat: Array) -> Array:
        return ravel_pytree(space.constrained(flat[None]))[0]

    slopes = np.asarray(jax.jacfwd(values)(at), np.float64)

    def stds(whole: Matrix) -> Params:
        variances = np.einsum("ki,ij,kj->k", slopes, whole, slopes)
        return unflat(jnp.asarray(np.sqrt(np.maximum(variances, 0)), jnp.float32))

    seen = np.ix_(space.seen, space.seen)
    likelihood, noise = np.zeros_like(covariance), np.zeros_like(covariance)
    likelihood[seen] = found.curvature
    inverse = np.linalg.inv(found.curvature)
    noise[seen] = inverse @ found.noise @ inverse
    return Parts(
        total=stds(covariance),
        without_privacy=stds(np.linalg.inv(prior.precision + likelihood)),
        prior=stds(_inverse(prior.precision)),
        data=stds(_inverse(likelihood)),
        privacy=stds(noise),
    )


def _inverse(precision: Matrix) -> Matrix:
    """The inverse, huge in directions of which the precision says nothing."""
    values, vectors = np.linalg.eigh(precision)
    largest = max(float(values.max()), 1e-12)
    return (vectors / np.maximum(values, 1e-12 * largest)) @ vectors.T
