"""What releases of gradients and curvatures say near a point, as if the loss were quadratic."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.inference.evidence import Evidence, no_evidence
from tacit.inference.method import Objective
from tacit.samplers import FullGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = [
    "CHANGE",
    "LEAST_INFORMATION",
    "TINY",
    "FullCurvature",
    "Quadratic",
    "in_order",
    "matrix_of",
    "shares_of",
    "triangle_of",
]

_MOST_KEPT = 256
"""How many releases are kept; a longer run forgets its first ones. It is fewer where a curvature is
large: 32 at 512 parameters."""

_KEPT_NUMBERS = 2**22
"""How many numbers of curvatures are kept in all: 16 MB."""

CHANGE = 1.0
"""How fast the curvature changes: relatively, over a distance at which the loss of a record changes
by half a nat. In simulated logistic regressions 2 is better where classes are well separated, and
0.5 where noise dominates; all are within a few per cent of each other."""

LEAST_INFORMATION = 0.1
"""The least eigenvalue that a curvature is taken to have for a covariance, in units of its noise.
Steps take one unit, which is safe for them, but would promise information that is only noise."""

TINY = 1e-20


def _indices(dim: int) -> tuple[Array, Array, Array]:
    rows, columns = (jnp.asarray(found) for found in np.triu_indices(dim))
    return rows, columns, jnp.where(rows == columns, 1.0, math.sqrt(2))


def triangle_of(matrix: Array) -> Array:
    """Returns the upper triangle; norms and isotropic noise are those of symmetric matrices."""
    rows, columns, isometric = _indices(len(matrix))
    return matrix[rows, columns] * isometric


def matrix_of(triangle: Array, dim: int) -> Array:
    """Returns the symmetric matrix with this upper triangle, of `triangle_of`."""
    rows, columns, isometric = _indices(dim)
    upper = jnp.zeros((dim, dim)).at[rows, columns].set(triangle / isometric)
    return upper + jnp.triu(upper, 1).T


class Quadratic(NamedTuple):
    """The posterior given the releases, as if the loss were quadratic.

    Attributes:
      mean: of the posterior, flat.
      precision: of the posterior.
      curvature: of the loss of one record, on average.
    """

    mean: Array
    precision: Array
    curvature: Array

    def length(self, offset: Array) -> Scalar:
        """The root of how much a record's loss changes, to second order."""
        return jnp.sqrt(jnp.maximum(offset @ self.curvature @ offset, 0.0))

    def draw(self, normal: Array) -> Array:
        """Returns how far from the mean a draw is, made of a standard normal one."""
        whitening = jnp.linalg.cholesky(self.precision)
        return jax.scipy.linalg.solve_triangular(whitening.T, normal, lower=False)

    @classmethod
    def near(
        cls,
        releases: Evidence,
        params: Params,
        *,
        objective: Objective,
        num_records: int,
        batch_noise: float,
    ) -> "Quadratic":
        """Returns what the releases say near a point.

        What is wrong with a release, beside its noise, is that it was made at a distance. There the
        curvature differs by a share of itself that grows with the distance, and slopes by half
        that share. Releases are weighted in inverse proportion to both errors together.

        Args:
          releases: so far, with curvatures.
          params: the point.
          objective: for its prior.
          num_records: the public number of records.
          batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
        """
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))

        def regulariser(flat: Array) -> Scalar:
            return objective.regulariser(unflat(flat), None)

        rough = _spectrum(releases, _noise_of_curvatures(releases), flat)
        offsets = releases.points - flat
        changes = offsets @ rough.matrix
        distances = jnp.sum(offsets * changes, axis=1) / num_records
        far = CHANGE**2 * jnp.maximum(distances, 0.0)
        curvature = _spectrum(
            releases, _noise_of_curvatures(releases) + far * jnp.mean(rough.matrix**2), flat
        )
        typical = jnp.mean(curvature.values)
        slope_errors = far / 4 * jnp.mean(changes**2, axis=1)
        shares = shares_of(
            releases.variances + batch_noise * typical + slope_errors, releases.counts
        )
        privacy, batches = shares**2 @ releases.variances, batch_noise * shares @ shares
        prior = _positive(jax.hessian(regulariser)(flat))
        linear = prior @ flat - jax.grad(regulariser)(flat)
        values, basis = curvature.values, curvature.basis
        kept = values / (values + privacy + batches * values)
        message = curvature.matrix @ (shares @ releases.points) - shares @ releases.gradients
        mean = jnp.linalg.solve(
            prior + (basis * (kept * values)) @ basis.T,
            linear + basis @ (kept * (basis.T @ message)),
        )
        known = jnp.maximum(curvature.raw, LEAST_INFORMATION * curvature.level)
        information = known**2 / (known + privacy + batches * known)
        precision = prior + (basis * information) @ basis.T
        return cls(mean, precision, rough.matrix / num_records)


@dataclass(frozen=True, kw_only=True)
class FullCurvature:
    """What `Laplace` releases of a curvature as a whole: the Hessian of each record.

    Args:
      objective: of the model.
      dim: number of parameters.
      num_records: the public number of records.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
    """

    objective: Objective
    dim: int
    num_records: int
    batch_noise: float

    @property
    def sampler(self) -> FullGaussian:
        """Draws from the posterior."""
        return FullGaussian()

    @property
    def own_noise(self) -> str:
        """How its Gaussian counts the privacy noise."""
        return "its Gaussian counts the privacy noise"

    @property
    def num_numbers(self) -> int:
        """How many numbers a record is asked for."""
        return self.dim * (self.dim + 1)

    def nothing_yet(self) -> Evidence:
        """Returns the state before the first release."""
        size = self.dim * (self.dim + 1) // 2
        num_kept = min(_MOST_KEPT, _KEPT_NUMBERS // size)
        return no_evidence(num_rows=num_kept, size=self.dim)._replace(
            curvatures=jnp.zeros((num_kept, size)), curvature_variances=jnp.zeros(num_kept)
        )

    def evidence_in(self, releases: Evidence) -> Evidence:
        """Returns the releases: they are nothing but evidence."""
        return releases

    def foreseen(self, params: Params, records: Record, keys: Key) -> Evidence:
        """Returns releases as `numbers` needs them: it needs none."""
        del params, records, keys
        return self.nothing_yet()

    def prepared(self, releases: Evidence, params: Params) -> Evidence:
        """Returns the releases: the next one asks for the same numbers again."""
        del params
        return releases

    def numbers(
        self, params: Params, releases: Evidence, record: Record, key: Key
    ) -> tuple[Array, Array]:
        """Returns one record's gradient and Hessian, the latter as its isometric upper triangle."""
        del releases
        flat, unflat = ravel_pytree(_tree.at_least_float32(params))

        def gradient(flat: Array) -> tuple[Array, Array]:
            def loss(flat: Array) -> Scalar:
                return self.objective.record_loss(unflat(flat), None, record, key)

            found = jax.grad(loss)(flat)
            return found, found

        hessian, found = jax.jacfwd(gradient, has_aux=True)(flat)
        return found, triangle_of((hessian + hessian.T) / 2)

    def noted(
        self, releases: Evidence, curvature: Array, evidence: Evidence, row: Array
    ) -> Evidence:
        """Returns the releases with one more; the arguments are `LowRankCurvature.noted`'s."""
        del releases
        assert evidence.curvatures is not None
        return evidence._replace(curvatures=evidence.curvatures.at[row].set(curvature))

    def near(self, releases: Evidence, params: Params) -> Quadratic:
        """Returns what the releases say near a point."""
        return Quadratic.near(
            releases,
            params,
            objective=self.objective,
            num_records=self.num_records,
            batch_noise=self.batch_noise,
        )

    def kept(self, releases: Evidence, params: Params) -> Tree:
        """Returns the posterior as its sampler takes it."""
        unflat = ravel_pytree(_tree.at_least_float32(params))[1]
        # The inverse of the precision is root root^T; columns are the leading axis.
        whitening = jnp.linalg.cholesky(self.near(releases, params).precision)
        columns = jax.scipy.linalg.solve_triangular(whitening, jnp.eye(self.dim), lower=True)
        root = jax.tree.map(lambda w, leaf: leaf.astype(w.dtype), params, jax.vmap(unflat)(columns))
        return {"mean": params, "root": root}


def in_order(evidence: Evidence) -> Evidence:
    """Returns the releases from first to last; a long run writes over its first ones."""
    num_steps, num_kept = evidence.num_steps, len(evidence.counts)
    first = jnp.where(num_steps > num_kept, num_steps % num_kept, 0)
    rows: Evidence = jax.tree.map(
        lambda leaf: jnp.roll(leaf, -first, axis=0) if leaf.ndim else leaf, evidence
    )
    return rows


class _Spectrum(NamedTuple):
    """An estimated curvature by its eigenvalues.

    Attributes:
      raw: the eigenvalues, of which noise can make some negative.
      level: the typical distance of an eigenvalue that is all noise from zero, or more.
      basis: the eigenvectors, as columns.
    """

    raw: Array
    level: Scalar
    basis: Array

    @property
    def values(self) -> Array:
        """Eigenvalues, all of them at least at the level of noise."""
        return jnp.maximum(self.raw, self.level)

    @property
    def matrix(self) -> Array:
        """The matrix with these eigenvalues."""
        return (self.basis * self.values) @ self.basis.T


def _noise_of_curvatures(releases: Evidence) -> Array:
    assert releases.curvature_variances is not None
    return releases.curvature_variances


def _spectrum(releases: Evidence, errors: Array, point: Array) -> _Spectrum:
    """Returns the average curvature, shrunk towards two numbers.

    They are the curvature along the point, which is another one in generalised linear models, and
    the average curvature across it. Of the deviations from these, the share that noise explains is
    taken away (James and Stein).

    Args:
      releases: with curvatures.
      errors: squared, of a number of each curvature; they decide the weights.
      point: flat.
    """
    assert releases.curvatures is not None
    dim = len(point)
    shares = shares_of(errors, releases.counts)
    noise = shares**2 @ _noise_of_curvatures(releases)
    matrix = matrix_of(shares @ releases.curvatures, dim)
    square = jnp.maximum(point @ point, TINY)
    along = jnp.outer(point, point) / square
    excess = (point @ matrix @ point / square - jnp.trace(matrix) / dim) * dim / max(dim - 1, 1)
    typical = (jnp.trace(matrix) - excess * jnp.trace(along)) / dim
    structure = typical * jnp.eye(dim) + excess * along
    deviation = matrix - structure
    expected = noise * (dim * (dim + 1) / 2 - 2)
    kept = jnp.maximum(1 - expected / jnp.maximum(jnp.sum(deviation**2), TINY), 0.0)
    raw, basis = jnp.linalg.eigh(structure + kept * deviation)
    level = jnp.sqrt(noise * jnp.maximum(kept * dim / 2, 1 / dim))
    rounding = jnp.maximum(1e-6 * jnp.max(jnp.abs(raw)), TINY)
    return _Spectrum(raw, jnp.maximum(level, rounding), basis)


def shares_of(errors: Array, used: Array) -> Array:
    """Returns weights that sum to one, in inverse proportion to squared errors."""
    least = jnp.min(jnp.where(used > 0, errors, jnp.inf))
    weights = used * (least + TINY) / (errors + TINY)
    return weights / jnp.sum(weights)


def _positive(matrix: Array) -> Array:
    values, basis = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (basis * jnp.maximum(values, 0.0)) @ basis.T
