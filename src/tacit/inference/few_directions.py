"""Curvatures that are one level but for a few directions: their releases and their algebra."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit.inference.evidence import Evidence
from tacit.inference.method import Objective
from tacit.inference.quadratic import TINY
from tacit.typing import Array, Params, Scalar

__all__ = [
    "FewDirections",
    "LowRankQuadratic",
    "LowRankReleases",
    "orthonormal",
    "prior_near",
    "shrinkage",
    "solved",
    "weighed",
]


class FewDirections(NamedTuple):
    """A level, and other values along orthonormal directions; the same for each output.

    Vectors have the outputs as their last axis, directions have none.
    """

    level: Scalar
    values: Array
    directions: Array

    def times(self, vectors: Array) -> Array:
        """The product with a vector, or with each row of a matrix."""
        rows = vectors.reshape(*vectors.shape[:-1], self.directions.shape[1], -1)
        along = (self.values - self.level)[:, None] * (self.directions @ rows)
        return self.level * vectors + (self.directions.T @ along).reshape(vectors.shape)

    @property
    def factors(self) -> Array:
        """``F`` with ``F^T F`` equal to what values along directions exceed the level by."""
        excess = jnp.maximum(self.values - self.level, 0.0)
        return jnp.sqrt(excess)[:, None] * self.directions


class LowRankQuadratic(NamedTuple):
    """The posterior given the releases, as if the loss were quadratic.

    Attributes:
      mean: where a step from the last release leads, flat.
      prior: its precision for each parameter of an output.
      known: the precision of what the releases say.
      curvature: of the loss of one record, on average.
      momentum: the share of its last change that the point goes on by.
    """

    mean: Array
    prior: Array
    known: FewDirections
    curvature: FewDirections
    momentum: Scalar

    def length(self, offset: Array) -> Scalar:
        """The root of how much a record's loss changes, to second order."""
        return jnp.sqrt(jnp.maximum(offset @ self.curvature.times(offset), 0.0))


class LowRankReleases(NamedTuple):
    """What was released, and along which directions.

    Attributes:
      evidence: points, gradients and, as curvatures, what was released along the directions of its
        step: the upper triangle of a matrix as large as there are directions.
      traces: ``(num_kept,)``, of the curvature across the directions.
      steepest: ``(num_kept,)``, the sum of the steepest curvatures of all records, which is at
        least the steepest curvature of the sum.
      directions: ``(rank, num_rows)``, orthonormal; those of the last release.
      products: ``(rank, num_rows)``, the sum of what the curvature made of them since they last
        turned.
      turned_at: the first release along them.
      here: the point of the last release, flat, without the momentum that was added to it.
    """

    evidence: Evidence
    traces: Array
    steepest: Array
    directions: Array
    products: Array
    turned_at: Array
    here: Array

    @property
    def num_steps(self) -> Array:
        """How many releases there were."""
        return self.evidence.num_steps


def orthonormal(rows: Array) -> Array:
    """Returns orthonormal rows that span the same space."""
    found: Array = jnp.linalg.qr(rows.T)[0].T
    return found


def weighed(share: FewDirections, curvature: FewDirections) -> FewDirections:
    """Returns a share of a curvature along each of the same directions."""
    return FewDirections(
        share.level * curvature.level, share.values * curvature.values, curvature.directions
    )


def solved(prior: Array, curvature: FewDirections, right: Array) -> Array:
    """Returns ``(prior + curvature)^-1 right`` (Woodbury).

    Args:
      prior: a diagonal, for the parameters of one output.
      curvature: of each output.
      right: for all outputs, flat; they are its last axis.
    """
    diagonal, factors = (prior + curvature.level)[:, None], curvature.factors
    rows = right.reshape(len(prior), -1) / diagonal
    scaled = factors / diagonal.T
    inner = jnp.eye(len(factors)) + scaled @ factors.T
    return (rows - scaled.T @ jnp.linalg.solve(inner, factors @ rows)).ravel()


def shrinkage(rows: Array) -> Array:
    """Returns ``F`` with ``I - F^T F = (I + B^T B)^(-1/2)``, for the rows of ``B``."""
    lengths, turn = jnp.linalg.eigh(rows @ rows.T)
    lengths = jnp.maximum(lengths, 0.0)
    unit = turn.T @ rows / jnp.sqrt(jnp.maximum(lengths, TINY))[:, None]
    return unit * jnp.sqrt(1 - 1 / jnp.sqrt(1 + lengths))[:, None]


def prior_near(
    objective: Objective, flat: Array, unflat: Callable[[Array], Params], num_outputs: int
) -> tuple[Array, Array]:
    """Returns the prior's curvature for each parameter of an output, and its slope for all."""

    def slope(flat: Array) -> Array:
        return jax.grad(lambda w: objective.regulariser(unflat(w), None))(flat)

    # Priors of Bayesian networks are independent; of others this takes row sums.
    found, diagonal = jax.jvp(slope, (flat,), (jnp.ones_like(flat),))
    rows = jnp.mean(diagonal.reshape(-1, num_outputs), axis=1)
    return jnp.maximum(rows, 0.0), found
