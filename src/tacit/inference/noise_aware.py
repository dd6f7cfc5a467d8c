"""Noise-aware posteriors: what all releases of a run say together, their known noise included.

A gradient method releases, step after step, noisy gradients ``g_t`` of the summed loss at points
``w_t``. Near the mode the loss is quadratic with curvature ``A``, so that

    g_t = A (w_t - theta) - e + noise_t,        e ~ N(0, A)

where ``theta`` is the truth, ``e`` the noise of the data (information equality: scores have the
covariance ``A``), the same in all releases, and ``noise_t`` the engine's, of known covariance. For
a known ``A`` the releases determine ``theta`` with precision

    M = A (A + S)^-1 A,        S = covariance of the averaged noise,

and the posterior is the prior times that Gaussian. Nothing else enters: not how the points were
chosen, not the temperature, momentum or preconditioner of the method. ``S`` has the privacy noise
and, for Poisson and fixed batches of rate ``q``, ``(1 - q) / q A`` for the noise of the batches.

``A`` is estimated from the slope of ``g_t`` on ``w_t`` and, where a method releases curvature, from
that; both have known noise. Few or noisy releases do not determine a matrix, so the estimate is
shrunk towards a few numbers: a multiple of the identity, a common correlation, and another
curvature along the estimate itself, which is what a generalised linear model has. How far is
decided by what noise alone would explain (empirical Bayes). What remains unknown of ``A`` is
integrated over: the result is a mixture of Gaussians, one for each of a sample of curvatures.

Guarantee:
  All of it is post-processing of releases and public settings. No function here receives a record.

Reference:
  Bernstein, Sheldon, "Differentially private Bayesian linear regression" (2019), for noise-aware
  inference from sufficient statistics; Jälkö et al., "Noise-aware differentially private
  variational inference" (2025). Paule, Mandel, "Consensus values and weighting factors" (1982), for
  the variance of the deviations; Smolin, Gambetta, Smith, "Efficient method for computing the
  maximum-likelihood quantum state" (2012), for the nearest positive matrix of the same trace.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.inference.evidence import PROBE, Evidence
from tacit.privacy.mechanism import GaussianSum

__all__ = ["Components", "NoiseAware", "PriorSite", "Releases", "noise_aware", "releases_in"]

_NUM_CURVATURES = 100
"""Of the mixture: its variances then have an error of a seventh of what the mixture adds."""

_NUM_ROUNDS = 4
_SLOPE_CHANGE = 4.0
"""How fast the curvature changes: the relative change over a distance at which the loss of a record
changes by half a nat. Logistic regression has 1 to 4; a larger number trusts far releases less."""

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What a run has released, as numbers: averages over blocks, from all chains.

    Attributes:
      points: ``(num_blocks, d)``.
      gradients: ``(num_blocks, d)``, of the summed loss, without the prior.
      variances: ``(num_blocks,)``, of the noise on a coordinate of a block's gradient.
      counts: ``(num_blocks,)``, of releases in a block.
      is_late: ``(num_blocks,)``, whether a block belongs to the second half of its chain.
      shares: ``(num_blocks,)``, what the clip left of what was asked for; NaN where unknown.
      share_variances: ``(num_blocks,)``, of their noise.
      curvatures: ``(num_blocks, d, d)``, released curvatures; None where there are none.
      curvature_variances: ``(num_blocks,)``, of the noise on a diagonal entry; off the diagonal it
        is half.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
      num_records: the public number of records.
    """

    points: Matrix
    gradients: Matrix
    variances: Vector
    counts: Vector
    is_late: NDArray[np.bool_]
    shares: Vector
    share_variances: Vector
    curvatures: NDArray[np.float64] | None = None
    curvature_variances: Vector | None = None
    batch_noise: float = 0.0
    num_records: int = 1


def releases_in(evidence: Evidence, engine: GaussianSum) -> Releases:
    """Returns the releases that the states of all chains have noted.

    Args:
      evidence: of all chains; every leaf has a leading chain axis.
      engine: which made them.
    """
    counts = np.asarray(evidence.counts, np.float64)
    is_used = counts > 0
    used = counts[is_used]
    rate, num_records = engine.sampling.inclusion_rate, engine.sampling.public_records

    def means(totals: object) -> NDArray[np.float64]:
        chosen = np.asarray(totals, np.float64)[is_used]
        return chosen / used.reshape(-1, *([1] * (chosen.ndim - 1)))

    variances = means(evidence.variances) / used
    found = Releases(
        points=means(evidence.points),
        gradients=means(evidence.gradients),
        variances=variances,
        counts=used,
        is_late=_is_late(evidence, counts)[is_used],
        shares=means(evidence.shares),
        share_variances=variances / (PROBE * engine.clip_norm * num_records) ** 2,
        batch_noise=(1 - rate) / rate,
        num_records=num_records,
    )
    if evidence.curvatures is None:
        return found
    return replace(
        found,
        curvatures=_matrices(means(evidence.curvatures), found.points.shape[1]),
        curvature_variances=means(evidence.curvature_variances) / used,
    )


def _is_late(evidence: Evidence, counts: Vector) -> NDArray[np.bool_]:
    if evidence.curvatures is None:
        order = np.cumsum(counts, axis=1)
    else:  # one row for each release, in a ring
        num_steps = np.asarray(evidence.num_steps)[:, None]
        rows = np.arange(counts.shape[1])[None]
        order = counts.sum(1, keepdims=True) - (num_steps - 1 - rows) % counts.shape[1]
    return np.asarray(order > counts.sum(1, keepdims=True) / 2)


def _matrices(triangles: Matrix, dim: int) -> NDArray[np.float64]:
    rows, columns = np.triu_indices(dim)
    found = np.zeros((len(triangles), dim, dim))
    found[:, rows, columns] = triangles / np.where(rows == columns, 1.0, math.sqrt(2))
    return found + np.triu(found, 1).swapaxes(1, 2)


class Components(NamedTuple):
    """A mixture of Gaussians with equal weights, one for each of a sample of curvatures.

    Attributes:
      means: ``(num_components, d)``.
      covariances: ``(num_components, d, d)``.
    """

    means: Matrix
    covariances: NDArray[np.float64]

    @property
    def covariance(self) -> Matrix:
        """The covariance of the mixture."""
        offsets = self.means - self.means.mean(0)
        within: Matrix = self.covariances.mean(0)
        return within + offsets.T @ offsets / len(offsets)


class NoiseAware(NamedTuple):
    """A posterior, and where its width comes from; all over flat parameters.

    Attributes:
      components: the posterior.
      curvature: the estimated curvature of the summed loss.
      noise: the covariance of the averaged gradient's noise.
      prior_precision: of the Gaussian that stands for the prior.
      prior_linear: its precision times its mean.
      curvature_doubt: by how much the standard deviations would be smaller if the curvature were
        known, as a share of them.
      drift: how much the message of the releases changed in the course of the run; a chi-square
        variable with as many degrees of freedom as parameters, where the loss is quadratic.
      share: what the clip left of the gradients, and its standard error; NaN where unknown.
      has_curvatures: whether curvature was released, and not only learnt from slopes.
    """

    components: Components
    curvature: Matrix
    noise: Matrix
    prior_precision: Matrix
    prior_linear: Vector
    curvature_doubt: Vector
    drift: float
    share: tuple[float, float]
    has_curvatures: bool

    @property
    def mean(self) -> Vector:
        """The mean of the posterior."""
        mean: Vector = self.components.means.mean(0)
        return mean

    @property
    def covariance(self) -> Matrix:
        """The covariance of the posterior."""
        return self.components.covariance


PriorSite: TypeAlias = Callable[[Vector, Matrix], tuple[Matrix, Vector]]
"""Gives the precision and the linear term of the Gaussian that stands for a prior at a posterior of
given mean and covariance."""


def noise_aware(releases: Releases, prior: PriorSite) -> NoiseAware:
    """Returns the posterior given the releases.

    Args:
      releases: what was released.
      prior: the Gaussian that stands for the prior at a posterior.
    """
    dim = releases.points.shape[1]
    late = releases.is_late * 1.0
    centre = _mean(releases.points, late * releases.counts)
    curvature = _Curvature.of(releases, late / releases.variances, late, centre)
    for _ in range(_NUM_ROUNDS):
        weights, near = _weights(releases, curvature.positive, centre)
        curvature = _Curvature.of(releases, weights, near, centre)
        message = _Message.of(releases, weights)
        precision, linear = prior(centre, np.linalg.inv(curvature.positive))
        centre, covariance = message.posterior(curvature.positive, precision, linear)
        precision, linear = prior(centre, covariance)
    generator = np.random.default_rng(0)
    drawn = [
        message.posterior(curvature.draw(generator), precision, linear)
        for _ in range(_NUM_CURVATURES)
    ]
    components = Components(np.array([mean for mean, _ in drawn]), np.array([c for _, c in drawn]))
    known = np.sqrt(np.diag(covariance) / np.diag(components.covariance))
    shares = weights / weights.sum()
    return NoiseAware(
        components=components,
        curvature=curvature.positive,
        noise=message.noise(curvature.positive),
        prior_precision=precision,
        prior_linear=linear,
        curvature_doubt=1 - np.minimum(known, 1),
        drift=_drift(releases, curvature, weights) if dim else 0.0,
        share=(
            float(shares @ releases.shares),
            math.sqrt(float(shares**2 @ releases.share_variances)),
        ),
        has_curvatures=releases.curvatures is not None,
    )


def _mean(values: Matrix, weights: Vector) -> Vector:
    mean: Vector = weights @ values / weights.sum()
    return mean


def _weights(releases: Releases, curvature: Matrix, centre: Vector) -> tuple[Vector, Vector]:
    """Returns the weights of gradients and those of curvatures, by the errors of each.

    A release at a distance has, beside its noise, the error of the quadratic: the curvature differs
    by a share of itself that grows with the distance, and the gradient by that share of the change.
    Distances are in units of a record's own loss, so that no scaling of parameters matters.
    """
    offsets = releases.points - centre
    changes = offsets @ curvature
    distance = np.sqrt(np.maximum((offsets * changes).sum(1), 0) / releases.num_records)
    typical = np.trace(curvature) / len(centre)
    noise = releases.variances + releases.batch_noise * typical / releases.counts
    wrong = (0.5 * _SLOPE_CHANGE * distance) ** 2 * (changes**2).mean(1)
    weights = 1 / (noise + wrong)
    if releases.curvature_variances is None:
        return weights, weights
    changed = 2 * (_SLOPE_CHANGE * distance * typical) ** 2
    return weights, 1 / (releases.curvature_variances + changed)


class _Message(NamedTuple):
    """What averaged releases say of the parameters once the curvature is known.

    Attributes:
      point: the averaged point.
      gradient: the averaged gradient.
      privacy: the variance of its privacy noise.
      batches: the variance of its batch noise, in units of the curvature.
    """

    point: Vector
    gradient: Vector
    privacy: float
    batches: float

    @classmethod
    def of(cls, releases: Releases, weights: Vector) -> Self:
        shares = weights / weights.sum()
        return cls(
            shares @ releases.points,
            shares @ releases.gradients,
            float(shares**2 @ releases.variances),
            releases.batch_noise * float(shares**2 @ (1 / releases.counts)),
        )

    def noise(self, curvature: Matrix) -> Matrix:
        """Returns the covariance of the averaged gradient's noise."""
        return self.privacy * np.eye(len(curvature)) + self.batches * curvature

    def posterior(
        self, curvature: Matrix, prior_precision: Matrix, prior_linear: Vector
    ) -> tuple[Vector, Matrix]:
        """Returns mean and covariance for a known curvature."""
        share = np.linalg.solve(curvature + self.noise(curvature), curvature).T
        covariance = np.linalg.inv(prior_precision + share @ curvature)
        covariance = (covariance + covariance.T) / 2
        linear = prior_linear + share @ (curvature @ self.point - self.gradient)
        return covariance @ linear, covariance


class _Curvature(NamedTuple):
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
        offsets = releases.points - _mean(releases.points, weights)
        slopes = releases.gradients - _mean(releases.gradients, weights)
        spread, basis = np.linalg.eigh(offsets.T @ (weights[:, None] * offsets))
        spread = np.maximum(spread, 0)
        joint = basis.T @ (slopes.T @ (weights[:, None] * offsets)) @ basis
        precision = (spread[:, None] + spread[None, :]) / 2
        total = (joint + joint.T) / 2
        if releases.curvatures is not None and releases.curvature_variances is not None:
            shares = near / near.sum()
            noise = float(shares**2 @ releases.curvature_variances)
            released = basis.T @ np.tensordot(shares, releases.curvatures, axes=1) @ basis
            precision, total = precision + 1 / noise, total + released / noise
        precision = np.maximum(precision, np.max(precision) * 1e-12 + 1e-300)
        estimate, variances = _shrunk(total / precision, 1 / precision, basis.T @ centre, basis)
        typical = max(float(np.trace(estimate)) / dim, 0.0)
        least = max(0.05 * math.sqrt(float(np.mean(variances))), 1e-3 * typical, 1e-12)
        return cls(basis, estimate, variances, least)

    @property
    def positive(self) -> Matrix:
        """The estimate, positive definite, in the parameters' own basis."""
        return self.basis @ _positive(self.estimate, self.least) @ self.basis.T

    def draw(self, generator: np.random.Generator) -> Matrix:
        """Draws a curvature that is as likely."""
        normal = generator.normal(size=self.estimate.shape)
        error = np.triu(normal * np.sqrt(self.variances / 2), 1)
        error = error + error.T + np.diag(np.diag(normal) * np.sqrt(np.diag(self.variances)))
        return self.basis @ _positive(self.estimate + error, self.least) @ self.basis.T


def _positive(matrix: Matrix, least: float) -> Matrix:
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


def _shrunk(found: Matrix, noise: Matrix, centre: Vector, basis: Matrix) -> tuple[Matrix, Matrix]:
    """Returns a symmetric matrix, shrunk towards a few numbers, and what is not known of it.

    Entries are a structure (identity, common correlation, the direction of the estimate) plus
    independent deviations of one variance, plus noise of known variances. The variance of the
    deviations is the one at which residuals are as large as they should be (Paule and Mandel).
    """
    dim = len(found)
    rows, columns = np.triu_indices(dim)
    isometric = np.where(rows == columns, 1.0, math.sqrt(2))
    values, noises = found[rows, columns] * isometric, noise[rows, columns]
    ones = basis.T @ np.ones(dim)
    parts = [np.eye(dim)]
    if dim > 1:
        parts.append(np.outer(ones, ones) / dim)
    if dim > 2 and centre @ centre > 0:
        parts.append(np.outer(centre, centre) / (centre @ centre))
    design = np.stack([part[rows, columns] * isometric for part in parts], axis=1)
    freedom = len(values) - design.shape[1]
    if freedom <= 0:  # as many numbers as entries: nothing to shrink towards
        return found, noise

    def fitted(deviation: float) -> tuple[Vector, Matrix, float]:
        weights = 1 / (noises + deviation)
        inverse = np.linalg.pinv(design.T @ (weights[:, None] * design))
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


def _drift(releases: Releases, curvature: _Curvature, weights: Vector) -> float:
    """Returns how much the releases' message differs between halves of a run, as chi-square."""
    halves = [weights * releases.is_late, weights * ~releases.is_late]
    if not all(half.sum() > 0 for half in halves):
        return 0.0
    late, early = (_Message.of(releases, half) for half in halves)
    moved = late.point - early.point
    difference = late.gradient - early.gradient - curvature.positive @ moved
    doubt = np.diag(curvature.variances @ (curvature.basis.T @ moved) ** 2)
    noise = late.noise(curvature.positive) + early.noise(curvature.positive)
    noise = noise + curvature.basis @ doubt @ curvature.basis.T
    return float(difference @ np.linalg.solve(noise, difference))
