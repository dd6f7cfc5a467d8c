"""An estimate of a loss's curvature, from noisy slopes and released curvatures, and its doubts."""

import itertools
import math
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tacit.inference.evidence import Matrix, Releases, Vector

__all__ = ["Curvature", "nearest_positive", "weighted_mean"]

_MOST_GROUPS = 6
"""With more, correlations between groups are left to the deviations."""


class Curvature(NamedTuple):
    """An estimated curvature, entry by entry in a basis in which its errors are independent.

    Attributes:
      basis: columns are the directions.
      estimate: the curvature in that basis.
      variances: of what is not known of each entry; those off the diagonal times two.
      least: the smallest curvature that is taken for possible.
    """

    basis: Matrix
    estimate: Matrix
    variances: Matrix
    least: float

    @classmethod
    def of(cls, releases: Releases, weights: Vector, near: Vector, centre: Vector) -> Self:
        """Returns the estimate from slopes and from released curvatures, shrunk.

        With ``C`` the weighted covariance of the points and ``G`` that of gradients and points, the
        symmetric least squares solution is ``(G + G^T)_ij / (c_i + c_j)`` in the eigenbasis of
        ``C`` (eigenvalues ``c``), with independent errors. Released curvatures have independent
        errors in every orthonormal basis, so the two combine entry by entry.
        """
        dim = len(centre)
        offsets = releases.points - weighted_mean(releases.points, weights)
        slopes = releases.gradients - weighted_mean(releases.gradients, weights)
        spread, basis = np.linalg.eigh(offsets.T @ (weights[:, None] * offsets))
        spread = np.maximum(spread, 0)
        joint = basis.T @ (slopes.T @ (weights[:, None] * offsets)) @ basis
        precision = (spread[:, None] + spread[None, :]) / 2
        if releases.curvatures is None:
            found = basis @ ((joint + joint.T) / 2 / _floored(precision)) @ basis.T
            excess = _excess(offsets, slopes - offsets @ found, weights)
            joint = joint - excess * np.diag(spread)
        total = (joint + joint.T) / 2
        if releases.curvatures is not None and releases.curvature_variances is not None:
            shares = near / near.sum()
            noise = float(shares**2 @ releases.curvature_variances)
            released = basis.T @ np.tensordot(shares, releases.curvatures, axes=1) @ basis
            precision, total = precision + 1 / noise, total + released / noise
        precision = _floored(precision)
        parts = [basis.T @ part @ basis for part in _structure(centre, releases.groups)]
        estimate, variances = _shrunk(total / precision, 1 / precision, parts)
        typical = max(float(np.trace(estimate)) / dim, 0.0)
        least = max(0.05 * math.sqrt(float(np.mean(variances))), 1e-3 * typical, 1e-12)
        return cls(basis, estimate, variances, least)

    @property
    def positive(self) -> Matrix:
        """The estimate, positive definite, in the parameters' own basis."""
        return self.basis @ nearest_positive(self.estimate, self.least) @ self.basis.T

    def draw(self, generator: np.random.Generator) -> Matrix:
        """Draws a curvature that is as likely."""
        normal = generator.normal(size=self.estimate.shape)
        error = np.triu(normal * np.sqrt(self.variances / 2), 1)
        error = error + error.T + np.diag(np.diag(normal) * np.sqrt(np.diag(self.variances)))
        return self.basis @ nearest_positive(self.estimate + error, self.least) @ self.basis.T


def _floored(precision: Matrix) -> Matrix:
    floored: Matrix = np.maximum(precision, np.max(precision) * 1e-12 + 1e-300)
    return floored


def _excess(offsets: Matrix, residuals: Matrix, weights: Vector) -> float:
    """Returns by how much slopes over-estimate every curvature, because a method follows noise.

    A step goes against the noise of its own gradient, so noise is correlated with later points and
    hence with their mean, which is subtracted. To first order in the number of releases, the least
    squares slope is too large by ``-sum_{t<s} noise_t points_s^T / n`` over the spread of the
    points. For a step that is the same in all directions that is a multiple of the identity. As
    much again comes from the spread itself, which the noise has made too (Hurwicz; Kendall).

    Args:
      offsets: the points less their weighted mean, in the order of their release.
      residuals: what the slope leaves of the gradients.
      weights: of the releases.

    Reference:
      Kendall, "Note on bias in the estimation of autocorrelation" (1954).
    """
    moved = weights[:, None] * offsets
    later = moved.sum(0) - np.cumsum(moved, axis=0)
    followed = float(np.sum(weights[:, None] * residuals * later)) / float(weights.sum())
    return -2 * followed / max(float(np.sum(moved * offsets)), 1e-300)


def nearest_positive(matrix: Matrix, least: float) -> Matrix:
    """Returns the nearest matrix of the same trace with no smaller eigenvalue.

    Without the condition on the trace, noise would make every curvature larger.
    """
    values, vectors = np.linalg.eigh(matrix)
    excess = np.maximum(values - least, 0)
    total = float(np.sum(values - least))
    if total <= 0:
        excess = np.zeros_like(values)
    elif np.sum(excess) > total:
        largest = np.cumsum(np.sort(values - least)[::-1])
        levels = (largest - total) / np.arange(1, len(values) + 1)
        excess = np.maximum(values - least - np.max(levels), 0)
    result: Matrix = (vectors * (least + excess)) @ vectors.T
    return result


def _structure(centre: Vector, groups: NDArray[np.int64] | None) -> list[Matrix]:
    """Returns the matrices of which a curvature is taken to be made, but for deviations."""
    dim = len(centre)
    labels = np.zeros(dim, np.int64) if groups is None else groups
    members = [(labels == label).astype(np.float64) for label in np.unique(labels)]
    parts = [np.diag(member) for member in members]
    parts += [np.outer(member, member) for member in members if member.sum() > 1]
    if len(members) <= _MOST_GROUPS:
        parts += [
            np.outer(one, other) + np.outer(other, one)
            for one, other in itertools.combinations(members, 2)
        ]
    if dim > 2 and centre @ centre > 0:
        parts.append(np.outer(centre, centre))
    return [part / np.linalg.norm(part) for part in parts]


def _shrunk(found: Matrix, noise: Matrix, parts: list[Matrix]) -> tuple[Matrix, Matrix]:
    """Returns a symmetric matrix, shrunk towards a few numbers, and what is not known of it.

    Entries are multiples of the parts of a structure plus independent deviations of one variance,
    plus noise of known variances. The variance of the deviations is the one at which residuals are
    as large as they should be (Paule and Mandel).
    """
    dim = len(found)
    rows, columns = np.triu_indices(dim)
    isometric = np.where(rows == columns, 1.0, math.sqrt(2))
    values, noises = found[rows, columns] * isometric, noise[rows, columns]
    design = np.stack([part[rows, columns] * isometric for part in parts], axis=1)
    freedom = len(values) - design.shape[1]
    if freedom <= 0:  # as many numbers as entries: nothing to shrink towards
        return found, noise

    def fitted(deviation: float) -> tuple[Vector, Matrix, float]:
        weights = 1 / (noises + deviation)
        gram = design.T @ (weights[:, None] * design)
        inverse = np.asarray(np.linalg.pinv(gram), np.float64)
        fit = design @ (inverse @ (design.T @ (weights * values)))
        return fit, inverse, float(weights @ (values - fit) ** 2)

    deviation = 0.0
    if fitted(0.0)[2] > freedom:
        low, deviation = 0.0, float(np.max(values**2)) + 1e-300
        for _ in range(60):
            middle = math.sqrt(max(low, deviation * 1e-18) * deviation)
            low, deviation = (middle, deviation) if fitted(middle)[2] > freedom else (low, middle)
    fit, inverse, _ = fitted(deviation)
    kept = deviation / (deviation + noises)
    of_fit = np.einsum("kp,pq,kq->k", design, inverse, design)
    estimate, variances = np.zeros((dim, dim)), np.zeros((dim, dim))
    estimate[rows, columns] = (fit + kept * (values - fit)) / isometric
    variances[rows, columns] = kept * noises + (1 - kept) ** 2 * of_fit
    return _symmetric(estimate), _symmetric(variances)


def _symmetric(upper: Matrix) -> Matrix:
    return np.triu(upper) + np.triu(upper, 1).T


def weighted_mean(values: Matrix, weights: Vector) -> Vector:
    """Returns the mean of rows."""
    mean: Vector = weights @ values / weights.sum()
    return mean
