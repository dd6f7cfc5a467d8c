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
shrunk towards a few numbers: for each group of parameters that are alike a multiple of the
identity and a common correlation, and another curvature along the estimate itself, which is what a
generalised linear model has. How far is decided by what noise alone would explain (empirical
Bayes). What remains unknown of ``A`` is integrated over: the result is a mixture of Gaussians, one
for each of a sample of curvatures.

Guarantee:
  All of it is post-processing of releases and public settings. No function here receives a record.

Reference:
  Bernstein, Sheldon, "Differentially private Bayesian linear regression" (2019), for noise-aware
  inference from sufficient statistics; Jälkö et al., "Noise-aware differentially private
  variational inference" (2025). Paule, Mandel, "Consensus values and weighting factors" (1982), for
  the variance of the deviations; Smolin, Gambetta, Smith, "Efficient method for computing the
  maximum-likelihood quantum state" (2012), for the nearest positive matrix of the same trace.
"""

from collections.abc import Callable
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tacit.inference.curvature import Curvature, weighted_mean
from tacit.inference.evidence import Matrix, Releases, Vector
from tacit.privacy.clipping.slack import NormHistogram

__all__ = ["Components", "Message", "NoiseAware", "PriorSite", "noise_aware"]

_NUM_CURVATURES = 100
"""Of the mixture: its variances then have an error of a seventh of what the mixture adds."""

_NUM_ROUNDS = 4


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
      norms: how large records' gradients were beside the clip norm; NaN where unknown.
      num_records: the public number of records.
      has_curvatures: whether curvature was released, and not only learnt from slopes.
      message: the averaged releases.
      curvatures: ``(num_components, d, d)``, those that the components were made with.
    """

    components: Components
    curvature: Matrix
    noise: Matrix
    prior_precision: Matrix
    prior_linear: Vector
    curvature_doubt: Vector
    drift: float
    norms: NormHistogram
    num_records: int
    has_curvatures: bool
    message: "Message"
    curvatures: NDArray[np.float64]

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
    late: Vector = releases.is_late.astype(np.float64)
    centre = weighted_mean(releases.points, late * releases.counts)
    curvature = Curvature.of(releases, late / releases.variances, late, centre)
    for _ in range(_NUM_ROUNDS):
        weights, near, bends = _weights(releases, curvature.positive, centre)
        curvature = Curvature.of(releases, weights, near, centre)
        message = Message.of(releases, weights, bends)
        inverse = np.asarray(np.linalg.inv(curvature.positive), np.float64)
        precision, linear = prior(centre, inverse)
        centre, covariance = message.posterior(curvature.positive, precision, linear)
        precision, linear = prior(centre, covariance)
    generator = np.random.default_rng(0)
    curvatures = np.array([curvature.draw(generator) for _ in range(_NUM_CURVATURES)])
    drawn = [message.posterior(matrix, precision, linear) for matrix in curvatures]
    components = Components(np.array([mean for mean, _ in drawn]), np.array([c for _, c in drawn]))
    known = np.sqrt(np.diag(covariance) / np.diag(components.covariance))
    return NoiseAware(
        components=components,
        curvature=curvature.positive,
        noise=message.noise(curvature.positive),
        prior_precision=precision,
        prior_linear=linear,
        curvature_doubt=1 - np.minimum(known, 1),
        drift=_drift(releases, curvature, weights),
        norms=releases.histogram(weights),
        num_records=releases.num_records,
        has_curvatures=releases.curvatures is not None,
        message=message,
        curvatures=curvatures,
    )


def _weights(
    releases: Releases, curvature: Matrix, centre: Vector
) -> tuple[Vector, Vector, Matrix]:
    """Returns the weights of gradients and of curvatures, and how wrong gradients may be.

    A release at a distance has, beside its noise, the error of the quadratic: the curvature differs
    by a share of itself that grows with the distance, and the gradient by that share of the change.
    Many releases far away share that error, so it does not average out: together they count as one.
    Distances are in units of a record's own loss, so that no scaling of parameters matters.
    """
    offsets = releases.points - centre
    changes = offsets @ curvature
    distance = np.sqrt(np.maximum((offsets * changes).sum(1), 0) / releases.num_records)
    typical = np.trace(curvature) / len(centre)
    noise = releases.variances + releases.batch_noise * typical / releases.counts
    order = np.sort(distance)
    beyond = np.cumsum(releases.counts[np.argsort(distance)][::-1])[::-1]
    as_far = beyond[np.minimum(np.searchsorted(order, distance / 2), len(order) - 1)]
    bends = 0.5 * releases.slope_change * distance[:, None] * changes
    weights = 1 / (noise + as_far * (bends**2).mean(1))
    if releases.curvature_variances is None:
        return weights, weights, bends
    changed = 2 * (releases.slope_change * distance * typical) ** 2
    return weights, 1 / (releases.curvature_variances + changed), bends


class Message(NamedTuple):
    """What averaged releases say of the parameters once the curvature is known.

    Attributes:
      point: the averaged point.
      gradient: the averaged gradient.
      privacy: the variance of its privacy noise.
      batches: the variance of its batch noise, in units of the curvature.
      bend: how wrong it may be because the loss is not quadratic: releases far away have this error
        in common, towards where they are.
    """

    point: Vector
    gradient: Vector
    privacy: float
    batches: float
    bend: Vector

    @classmethod
    def of(cls, releases: Releases, weights: Vector, bends: Matrix) -> Self:
        """Returns the averages under these weights."""
        shares = weights / weights.sum()
        return cls(
            shares @ releases.points,
            shares @ releases.gradients,
            float(shares**2 @ releases.variances),
            releases.batch_noise * float(shares**2 @ (1 / releases.counts)),
            shares @ bends,
        )

    def noise(self, curvature: Matrix) -> Matrix:
        """Returns the covariance of what is wrong with the averaged gradient."""
        independent = self.privacy * np.eye(len(curvature)) + self.batches * curvature
        noise: Matrix = independent + np.outer(self.bend, self.bend)
        return noise

    def posterior(
        self, curvature: Matrix, prior_precision: Matrix, prior_linear: Vector
    ) -> tuple[Vector, Matrix]:
        """Returns mean and covariance for a known curvature."""
        share = np.linalg.solve(curvature + self.noise(curvature), curvature).T
        covariance = np.linalg.inv(prior_precision + share @ curvature)
        covariance = (covariance + covariance.T) / 2
        linear = prior_linear + share @ (curvature @ self.point - self.gradient)
        return covariance @ linear, covariance


def _drift(releases: Releases, curvature: Curvature, weights: Vector) -> float:
    """Returns how much the releases' message differs between halves of a run, as chi-square."""
    halves = [weights * releases.is_late, weights * ~releases.is_late]
    if not all(half.sum() > 0 for half in halves):
        return 0.0
    exact = np.zeros_like(releases.points)
    late, early = (Message.of(releases, half, exact) for half in halves)
    moved = late.point - early.point
    difference = late.gradient - early.gradient - curvature.positive @ moved
    doubt = np.diag(curvature.variances @ (curvature.basis.T @ moved) ** 2)
    noise = late.noise(curvature.positive) + early.noise(curvature.positive)
    noise = noise + curvature.basis @ doubt @ curvature.basis.T
    return float(difference @ np.linalg.solve(noise, difference))
