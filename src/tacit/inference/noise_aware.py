"""Noise-aware posteriors: what all releases of a run say together, their known noise included.

A gradient method releases, step after step, a point ``w_t`` and a noisy gradient ``g_t`` of the
summed loss there. Near the mode the loss is quadratic with curvature ``A``, so that

    g_t = A (w_t - theta) - e + noise_t,        e ~ N(0, A)

where ``theta`` is the truth, ``e`` the noise of the data (the information equality: scores have
covariance ``A``), the same in all releases, and ``noise_t`` the engine's, of known covariance. For a
known ``A`` the releases therefore pin down ``theta`` with precision

    M = A (A + S)^-1 A,        S = covariance of the averaged noise,

and the posterior is the prior times that Gaussian. Nothing else enters: not how the points were
chosen, not the temperature, momentum or preconditioner of the method. ``S`` has the privacy noise
and, for Poisson and fixed batches of rate ``q``, ``(1 - q) / q A`` for the noise of the batches.

``A`` is not known. It is estimated from the slope of ``g_t`` on ``w_t`` and, where a method releases
curvature, from that; both have known noise. With few or noisy releases an estimate is useless by
itself, so it is shrunk towards a few numbers: a multiple of the identity, a common correlation, and
another curvature along the estimate itself, which is what a generalised linear model has. How far is
decided by what noise alone would explain (empirical Bayes). What stays unknown of ``A`` is integrated
over: the result is the mean and covariance of a mixture over curvatures.

Guarantee:
  All of it is post-processing of releases and public settings. No function here is given a record.

Reference:
  Bernstein, Sheldon, "Differentially private Bayesian linear regression" (2019), for noise-aware
  inference from sufficient statistics; Jälkö et al., "Noise-aware differentially private
  variational inference" (2025). Polyak, Juditsky (1992) for averages of iterates.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from tacit import _tree
from tacit.inference.evidence import Evidence
from tacit.models import Model
from tacit.models.base import IntegrableLogPrior
from tacit.rng import seeded_key
from tacit.typing import Array, Params, Scalar

__all__ = [
    "NoiseAware",
    "PriorSite",
    "Releases",
    "caveats_of",
    "noise_aware",
    "prior_site",
    "releases_in",
]

_NUM_CURVATURES = 64
"""Of the mixture: the error of its variances is about an eighth of what the mixture adds."""

_NUM_ROUNDS = 4
_SLOPE_CHANGE = 4.0
"""How fast the curvature changes: the relative change over a distance at which the loss of a record
changes by half a nat. Logistic regression has 1 to 4; a larger number trusts far releases less."""

_Vector: TypeAlias = NDArray[np.float64]
_Matrix: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What a run has released, as numbers: averages over blocks, from all chains.

    Attributes:
      points: ``(num_blocks, d)``.
      gradients: ``(num_blocks, d)``, of the summed loss, without the prior.
      variances: ``(num_blocks,)``, of the noise on a coordinate of a block's gradient.
      counts: ``(num_blocks,)``, of releases in a block.
      shares: ``(num_blocks,)``, what the clip has left of what was asked for; NaN where unknown.
      share_variances: ``(num_blocks,)``, of their noise.
      curvatures: ``(num_blocks, d, d)``, released curvatures; None where there are none.
      curvature_variance: of the noise on a diagonal entry of one; off the diagonal it is half.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
      num_records: the public number of records.
    """

    points: _Matrix
    gradients: _Matrix
    variances: _Vector
    counts: _Vector
    shares: _Vector
    share_variances: _Vector
    curvatures: NDArray[np.float64] | None = None
    curvature_variance: float = math.inf
    batch_noise: float = 0.0
    num_records: int = 1


def releases_in(
    evidence: Evidence, *, batch_noise: float, num_records: int, share_scale: float
) -> Releases:
    """Returns the releases that the states of all chains hold.

    Args:
      evidence: of all chains; every leaf has a leading chain axis.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
      num_records: the public number of records.
      share_scale: the standard deviation of the noise on a share, for a gradient noise of one.
    """
    points, gradients, variances, shares, counts = (
        np.asarray(leaf, np.float64).reshape(-1, *leaf.shape[2:]) for leaf in evidence[:5]
    )
    is_used = counts > 0
    counts = counts[is_used]
    means = [
        total[is_used] / counts.reshape(-1, *([1] * (total.ndim - 1)))
        for total in (points, gradients, variances, shares)
    ]
    return Releases(
        points=means[0],
        gradients=means[1],
        variances=means[2] / counts,
        counts=counts,
        shares=means[3],
        share_variances=means[2] / counts * share_scale**2,
        batch_noise=batch_noise,
        num_records=num_records,
    )


class NoiseAware(NamedTuple):
    """A Gaussian posterior, and where its width comes from; all over flat parameters.

    Attributes:
      mean: of the posterior.
      covariance: of the posterior.
      curvature: the estimated curvature of the summed loss.
      noise: the covariance of the averaged gradient's noise.
      prior_precision: of the Gaussian that stands for the prior.
      curvature_doubt: by how much the standard deviations would be smaller if the curvature was known,
        as a share of them.
      slope: the standardised change of the releases' message in the course of the run; a
        chi-square variable with as many degrees of freedom as parameters, where the loss is quadratic.
      share: what the clip has left of the gradients, and its standard error; NaN where unknown.
    """

    mean: _Vector
    covariance: _Matrix
    curvature: _Matrix
    noise: _Matrix
    prior_precision: _Matrix
    curvature_doubt: _Vector
    drift: float
    share: tuple[float, float]


PriorSite: TypeAlias = Callable[[_Vector, _Matrix], tuple[_Matrix, _Vector]]
"""Gives the precision and the linear term of the Gaussian that stands for a prior at a posterior."""


def noise_aware(releases: Releases, prior: PriorSite) -> NoiseAware:
    """Returns the posterior given the releases.

    Args:
      releases: what was released.
      prior: the Gaussian that stands for the prior at a posterior (`prior_site`).
    """
    dim = releases.points.shape[1]
    last = np.cumsum(releases.counts) > releases.counts.sum() / 2
    centre = _mean(releases.points, last * releases.counts)
    curvature = _Curvature.of(releases, last / releases.variances, last * 1.0, centre)
    for _ in range(_NUM_ROUNDS):
        weights, near = _weights(releases, curvature.floored, centre)
        curvature = _Curvature.of(releases, weights, near, centre)
        point, gradient, noise = _averaged(releases, weights, curvature.floored)
        precision, linear = prior(centre, np.linalg.inv(curvature.floored + _tiny(dim)))
        centre, covariance = _posterior(
            curvature.floored, noise, point, gradient, precision, linear
        )
        precision, linear = prior(centre, covariance)
    generator = np.random.default_rng(0)
    means, covariances = [], []
    for _ in range(_NUM_CURVATURES):
        drawn = curvature.draw(generator)
        noise_k = _averaged(releases, weights, drawn)[2]
        mean, within = _posterior(drawn, noise_k, point, gradient, precision, linear)
        means.append(mean)
        covariances.append(within)
    within = np.mean(covariances, axis=0)
    mixed = within + np.cov(np.array(means).T, bias=True).reshape(dim, dim)
    plain = np.sqrt(np.diag(covariance) / np.diag(mixed))
    return NoiseAware(
        mean=np.mean(means, axis=0),
        covariance=mixed,
        curvature=curvature.floored,
        noise=noise,
        prior_precision=precision,
        curvature_doubt=1 - np.minimum(plain, 1),
        drift=_drift(releases, curvature, weights, point, gradient),
        share=_share(releases, weights),
    )


def _tiny(dim: int) -> _Matrix:
    return np.eye(dim) * 1e-12


def _mean(values: _Matrix, weights: _Vector) -> _Vector:
    mean: _Vector = weights @ values / weights.sum()
    return mean


def _weights(releases: Releases, curvature: _Matrix, centre: _Vector) -> tuple[_Vector, _Vector]:
    """Returns the weights of gradients, and those of curvatures, by what is wrong with each.

    A release at a distance has, beside its noise, the error of the quadratic: the curvature differs
    by a share of itself that grows with the distance, and the gradient by that share of the change.
    Distances are in units of a record's own loss, so that no scaling of parameters matters.
    """
    offsets = releases.points - centre
    changes = offsets @ curvature
    distance = np.sqrt(np.maximum((offsets * changes).sum(1), 0) / releases.num_records)
    dim = len(centre)
    typical = np.trace(curvature) / dim
    noise = releases.variances + releases.batch_noise * typical / releases.counts
    wrong = (0.5 * _SLOPE_CHANGE * distance) ** 2 * (changes**2).sum(1) / dim
    weights = 1 / (noise + wrong)
    if releases.curvatures is None:
        return weights, weights
    near = 1 / (
        releases.curvature_variance / releases.counts
        + 2 * (_SLOPE_CHANGE * distance * typical) ** 2
    )
    return weights, near


def _averaged(
    releases: Releases, weights: _Vector, curvature: _Matrix
) -> tuple[_Vector, _Vector, _Matrix]:
    """Returns the averaged point, the averaged gradient, and the covariance of its noise."""
    shares = weights / weights.sum()
    privacy = float(shares**2 @ releases.variances)
    batches = releases.batch_noise * float(shares**2 @ (1 / releases.counts))
    noise = privacy * np.eye(len(curvature)) + batches * curvature
    return shares @ releases.points, shares @ releases.gradients, noise


def _posterior(
    curvature: _Matrix,
    noise: _Matrix,
    point: _Vector,
    gradient: _Vector,
    prior_precision: _Matrix,
    prior_linear: _Vector,
) -> tuple[_Vector, _Matrix]:
    """Returns mean and covariance for a known curvature."""
    share = np.linalg.solve(curvature + noise, curvature).T
    covariance = np.linalg.inv(prior_precision + share @ curvature)
    covariance = (covariance + covariance.T) / 2
    return covariance @ (prior_linear + share @ (curvature @ point - gradient)), covariance


class _Curvature(NamedTuple):
    """An estimated curvature, entry by entry in a basis in which its errors are independent.

    Attributes:
      basis: columns are the directions.
      estimate: the curvature in that basis.
      variances: of what is not known of each entry.
      least: the smallest curvature that is taken for possible.
    """

    basis: _Matrix
    estimate: _Matrix
    variances: _Matrix
    least: float

    @classmethod
    def of(
        cls, releases: Releases, weights: _Vector, near: _Vector, centre: _Vector
    ) -> "_Curvature":
        """Returns the estimate from slopes and from released curvatures, shrunk.

        With ``C`` the weighted covariance of the points and ``G`` that of gradients and points, the
        symmetric least squares solution is ``(G + G^T)_ij / (c_i + c_j)`` in the eigenbasis of ``C``
        (eigenvalues ``c``), with independent errors of variance ``1 / (c_i + c_j)``.
        """
        dim = len(centre)
        offsets = releases.points - _mean(releases.points, weights)
        slopes = releases.gradients - _mean(releases.gradients, weights)
        spread, basis = np.linalg.eigh(offsets.T @ (weights[:, None] * offsets))
        spread = np.maximum(spread, 0)
        joint = basis.T @ (slopes.T @ (weights[:, None] * offsets)) @ basis
        # In an isometric basis of symmetric matrices: off the diagonal times the square root of two.
        precision = (spread[:, None] + spread[None, :]) / 2
        total = (joint + joint.T) / 2
        if releases.curvatures is not None:
            shares = near / near.sum()
            noise = releases.curvature_variance * float(shares**2 @ (1 / releases.counts))
            released = basis.T @ np.tensordot(shares, releases.curvatures, axes=1) @ basis
            precision, total = np.full((dim, dim), 1 / noise), released / noise
        precision = np.maximum(precision, np.max(precision) * 1e-12 + 1e-300)
        estimate, variances = _shrunk(total / precision, 1 / precision, basis.T @ centre, basis)
        typical = max(float(np.trace(estimate)) / dim, 0.0)
        least = max(0.5 * math.sqrt(float(np.mean(variances))), 1e-3 * typical, 1e-12)
        return cls(basis, estimate, variances, least)

    @property
    def floored(self) -> _Matrix:
        """The estimate, positive definite, in the parameters' own basis."""
        return self.basis @ _at_least(self.estimate, self.least) @ self.basis.T

    def draw(self, generator: np.random.Generator) -> _Matrix:
        """Draws a curvature that is as likely."""
        normal = generator.normal(size=self.estimate.shape)
        error = np.triu(normal * np.sqrt(self.variances / 2), 1)
        error = error + error.T + np.diag(np.diag(normal) * np.sqrt(np.diag(self.variances)))
        return self.basis @ _at_least(self.estimate + error, self.least) @ self.basis.T


def _at_least(matrix: _Matrix, least: float) -> _Matrix:
    values, vectors = np.linalg.eigh(matrix)
    result: _Matrix = (vectors * np.maximum(values, least)) @ vectors.T
    return result


def _shrunk(
    found: _Matrix, noise: _Matrix, centre: _Vector, basis: _Matrix
) -> tuple[_Matrix, _Matrix]:
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

    def fitted(deviation: float) -> tuple[_Vector, _Matrix, float]:
        weights = 1 / (noises + deviation)
        inverse = np.linalg.pinv(design.T @ (weights[:, None] * design))
        fit = design @ (inverse @ (design.T @ (weights * values)))
        return fit, inverse, float(weights @ (values - fit) ** 2)

    low, high = 0.0, float(np.max(values**2)) + 1e-300
    if freedom > 0 and fitted(low)[2] > freedom:
        for _ in range(60):
            middle = math.sqrt(max(low, high * 1e-18) * high)
            low, high = (middle, high) if fitted(middle)[2] > freedom else (low, middle)
    else:
        high = 0.0
    if freedom <= 0:  # as many numbers as entries: nothing to shrink towards
        high = math.inf
    fit, inverse, _ = fitted(min(high, 1e300))
    kept = np.ones_like(noises) if math.isinf(high) else high / (high + noises)
    of_fit = np.einsum("kp,pq,kq->k", design, inverse, design)
    doubt = kept * noises + (1 - kept) ** 2 * of_fit
    estimate, variances = np.zeros((dim, dim)), np.zeros((dim, dim))
    estimate[rows, columns] = (fit + kept * (values - fit)) / isometric
    variances[rows, columns] = doubt
    return _symmetric(estimate), _symmetric(variances)


def _symmetric(upper: _Matrix) -> _Matrix:
    return np.triu(upper) + np.triu(upper, 1).T


def _drift(
    releases: Releases,
    curvature: _Curvature,
    weights: _Vector,
    point: _Vector,
    gradient: _Vector,
) -> float:
    """Returns how much the message of the releases changed in the course of a run, as chi-square."""
    early = np.cumsum(weights) <= weights.sum() / 2
    if early.all() or not early.any():
        return 0.0
    residuals = (releases.gradients - gradient) - (releases.points - point) @ curvature.floored
    halves = [weights * early, weights * ~early]
    noises = [_averaged(releases, half, curvature.floored)[2] for half in halves]
    difference = _mean(residuals, halves[0]) - _mean(residuals, halves[1])
    moved = curvature.basis.T @ (
        _mean(releases.points, halves[0]) - _mean(releases.points, halves[1])
    )
    doubt = np.diag(curvature.variances @ moved**2)
    whole = sum(noises) + curvature.basis @ doubt @ curvature.basis.T
    return float(difference @ np.linalg.solve(whole, difference))


def _share(releases: Releases, weights: _Vector) -> tuple[float, float]:
    shares = weights / weights.sum()
    return float(shares @ releases.shares), math.sqrt(float(shares**2 @ releases.share_variances))


def prior_site(model: Model, template: Params) -> PriorSite:
    """Returns the Gaussian that stands for a model's prior at a posterior ``N(mean, covariance)``.

    Its precision is the expected curvature of the negative log prior, its slope at the mean the
    expected gradient: what variational inference takes of a prior. In closed form where the prior
    knows its expectation, exact for Gaussian priors; otherwise an average over 64 draws.

    Args:
      model: whose log prior is meant.
      template: parameters, for their shapes.
    """
    flat, unflat = ravel_pytree(_tree.at_least_float32(template))
    log_prior = model.log_prior

    @jax.jit
    def integrated(mean: Array, std: Array) -> tuple[Array, Array]:
        def expected(mean: Array, std: Array) -> Scalar:
            assert isinstance(log_prior, IntegrableLogPrior)
            return log_prior.expected(unflat(mean), unflat(std))

        by_mean, by_std = jax.grad(expected, argnums=(0, 1))(mean, std)
        return by_mean, jnp.diag(-by_std / std)

    @jax.jit
    def averaged(mean: Array, root: Array) -> tuple[Array, Array]:
        def value(offset: Array) -> Scalar:
            return log_prior(unflat(mean + root @ offset))

        half = jax.random.normal(seeded_key(0), (32, flat.size))
        offsets = jnp.concatenate([half, -half])

        def at(offset: Array) -> tuple[Array, Array]:
            point = mean + root @ offset
            return (
                jax.grad(lambda w: log_prior(unflat(w)))(point),
                -jax.hessian(lambda w: log_prior(unflat(w)))(point),
            )

        gradients, curvatures = jax.lax.map(at, offsets)
        return gradients.mean(0), curvatures.mean(0)

    def site(mean: _Vector, covariance: _Matrix) -> tuple[_Matrix, _Vector]:
        centre = jnp.asarray(mean, jnp.float32)
        if isinstance(log_prior, IntegrableLogPrior):
            found = integrated(centre, jnp.sqrt(jnp.asarray(np.diag(covariance), jnp.float32)))
        else:
            root = np.linalg.cholesky(covariance + _tiny(len(mean)))
            found = averaged(centre, jnp.asarray(root, jnp.float32))
        gradient, precision = (np.asarray(part, np.float64) for part in found)
        precision = _at_least(_symmetric(precision), 0.0)
        return precision, precision @ mean + gradient

    return site
