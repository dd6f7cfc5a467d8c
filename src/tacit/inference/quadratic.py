"""What releases of gradients and curvatures say near a point, as if the loss were quadratic."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.inference.evidence import Evidence
from tacit.inference.method import Objective
from tacit.typing import Array, Params, Scalar

__all__ = ["Quadratic", "triangle_of"]

_CHANGE = 1.0
"""How fast the curvature changes: relatively, over a distance at which the loss of a record changes
by half a nat. In simulated logistic regressions 2 is better where classes are well separated, and
0.5 where noise dominates; all are within a few per cent of each other."""

_LEAST_INFORMATION = 0.1
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


def _matrix(triangle: Array, dim: int) -> Array:
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
        far = _CHANGE**2 * jnp.maximum(distances, 0.0)
        curvature = _spectrum(
            releases, _noise_of_curvatures(releases) + far * jnp.mean(rough.matrix**2), flat
        )
        typical = jnp.mean(curvature.values)
        slope_errors = far / 4 * jnp.mean(changes**2, axis=1)
        shares = _shares(releases.variances + batch_noise * typical + slope_errors, releases.counts)
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
        known = jnp.maximum(curvature.raw, _LEAST_INFORMATION * curvature.level)
        information = known**2 / (known + privacy + batches * known)
        precision = prior + (basis * information) @ basis.T
        return cls(mean, precision, rough.matrix / num_records)


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
    shares = _shares(errors, releases.counts)
    noise = shares**2 @ _noise_of_curvatures(releases)
    matrix = _matrix(shares @ releases.curvatures, dim)
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


def _shares(errors: Array, used: Array) -> Array:
    """Returns weights that sum to one, in inverse proportion to squared errors."""
    least = jnp.min(jnp.where(used > 0, errors, jnp.inf))
    weights = used * (least + TINY) / (errors + TINY)
    return weights / jnp.sum(weights)


def _positive(matrix: Array) -> Array:
    values, basis = jnp.linalg.eigh((matrix + matrix.T) / 2)
    return (basis * jnp.maximum(values, 0.0)) @ basis.T
