"""Divergences of one release: dominating pairs by hockey-stick curves, and Rényi divergences.

A pair (P, Q) dominates a release when no two adjacent data sets are easier to tell apart than P
and Q. How easy that is, is ``delta(epsilon) = sup_S P(S) - e^epsilon Q(S)``. Everything is in
units of the clip norm: the noise has standard deviation s, and a record moves a sum by at most 1.
One Gaussian shift has a curve in closed form. Rényi divergences, of which there are many, follow.

Reference: Zhu, Dong and Wang (2022), Optimal accounting of differential privacy via
characteristic function, sections 3 and 4.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import dp_accounting as dpa
import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy.special import erfcx, gammaln, log_ndtr, logsumexp

__all__ = [
    "ORDERS",
    "Pair",
    "fixed_size",
    "gaussian",
    "gaussian_delta",
    "gaussian_epsilon",
    "poisson",
    "poisson_with_chance",
    "removal",
    "renyi_delta",
    "renyi_epsilon",
    "replacement",
    "shown_with_chance",
    "symmetric",
]

Values = NDArray[np.float64]

_TAIL = 10.0
"""Standard deviations of noise that are resolved; beyond it (7e-24) losses count as infinite."""


class Curve(Protocol):
    """The hockey-stick divergence of one direction of a pair."""

    @property
    def limit(self) -> float:
        """An epsilon beyond which the divergence is negligible."""

    def delta(self, epsilon: Values) -> Values:
        """The divergence at each non-negative epsilon, accurate to a relative error."""


@dataclass(frozen=True)
class Pair:
    """The curves of (P, Q) and of (Q, P), which together are all there is to know."""

    forward: Curve
    backward: Curve

    def swapped(self) -> "Pair":
        """The pair (Q, P)."""
        return Pair(self.backward, self.forward)


def removal(rate: float, noise: float) -> Pair:
    """(1-q) N(0) + q N(1) against N(0): the record is in the first data set only."""
    return Pair(_Present(rate, noise), _Absent(rate, noise))


def replacement(rate: float, noise: float) -> Pair:
    """(1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1): the record differs, the draw does not."""
    return symmetric(_Replaced(rate, noise))


def symmetric(curve: Curve) -> Pair:
    """The pair that is as hard to tell apart as a curve says, in both directions."""
    return Pair(curve, curve)


def shown_with_chance(chance: float, pair: Pair) -> Pair:
    """A pair that a public coin shows with a chance; else there is nothing to tell apart."""
    return Pair(_Shown(pair.forward, chance), _Shown(pair.backward, chance))


@dataclass(frozen=True)
class _Present:
    """(1-q) N(0) + q N(1) against N(0)."""

    rate: float
    noise: float

    @property
    def limit(self) -> float:
        return _loss(self.rate, self.noise, 1 + _TAIL * self.noise)

    def delta(self, epsilon: Values) -> Values:
        # The loss exceeds epsilon above the point x, where the likelihood ratio is e^epsilon.
        # log(e^epsilon - (1 - q)), which must not overflow:
        log_excess = epsilon + np.log1p((self.rate - 1) * np.exp(-epsilon))
        log_inside = np.log(self.rate)
        x = self.noise**2 * (log_excess - log_inside) + 0.5
        first = log_inside + log_ndtr((1 - x) / self.noise)
        return _difference(first, log_excess + log_ndtr(-x / self.noise))


@dataclass(frozen=True)
class _Absent:
    """N(0) against (1-q) N(0) + q N(1)."""

    rate: float
    noise: float

    @property
    def limit(self) -> float:
        return -_loss(self.rate, self.noise, -_TAIL * self.noise)

    def delta(self, epsilon: Values) -> Values:
        # The loss exceeds epsilon below the point x; from -log(1-q) on it never does.
        excess = np.expm1(-epsilon) + self.rate  # e^-epsilon - (1 - q)
        possible = excess > 0
        log_excess = np.log(np.where(possible, excess, 1.0))
        log_inside = np.log(self.rate)
        x = self.noise**2 * (log_excess - log_inside) + 0.5
        first = epsilon + log_excess + log_ndtr(x / self.noise)
        second = epsilon + log_inside + log_ndtr((x - 1) / self.noise)
        return np.where(possible, _difference(np.where(possible, first, 0.0), second), 0.0)


@dataclass(frozen=True)
class _Replaced:
    """(1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1)."""

    rate: float
    noise: float

    @property
    def limit(self) -> float:
        edge = 1 + _TAIL * self.noise
        return _loss(self.rate, self.noise, edge) - _loss(self.rate, self.noise, -edge)

    def delta(self, epsilon: Values) -> Values:
        # At loss epsilon, sinh(x/s^2 - epsilon/2) = (1-q)/q exp(1/(2 s^2)) sinh(epsilon/2).
        log_rate = np.log(self.rate)
        log_rest = np.log1p(-self.rate) if self.rate < 1 else -np.inf
        with np.errstate(divide="ignore"):
            log_sinh = epsilon / 2 + np.log(-np.expm1(-epsilon)) - np.log(2)
        log_argument = log_rest - log_rate + 0.5 / self.noise**2 + log_sinh
        asinh = np.logaddexp(log_argument, 0.5 * np.logaddexp(2 * log_argument, 0.0))
        x = self.noise**2 * (epsilon / 2 + asinh)
        absent = log_rest + log_ndtr(-x / self.noise)
        first = np.logaddexp(absent, log_rate + log_ndtr((1 - x) / self.noise))
        second = np.logaddexp(absent, log_rate + log_ndtr((-1 - x) / self.noise))
        return _difference(first, epsilon + second)


@dataclass(frozen=True)
class _Shown:
    """A curve that a public coin shows with a chance; else nothing is seen."""

    curve: Curve
    chance: float

    @property
    def limit(self) -> float:
        return self.curve.limit

    def delta(self, epsilon: Values) -> Values:
        return self.chance * self.curve.delta(epsilon)


def _loss(rate: float, noise: float, x: float) -> float:
    """The log likelihood ratio log(1-q + q e^((2x-1)/(2 s^2))) at a point."""
    inside = math.log(rate) + (x - 0.5) / noise**2
    return inside if rate == 1 else float(logsumexp([np.log1p(-rate), inside]))


def _difference(first: Values, second: Values) -> Values:
    """exp(first) - exp(second), never negative."""
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Delta of N(mu, 1) against N(0, 1), exactly: the curve of Gaussian differential privacy.

    It is Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), in log space.

    Reference: Dong, Roth and Su (2022), Gaussian differential privacy, corollary 1.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    distance = epsilon / mu - mu / 2
    log_first = float(log_ndtr(-distance))
    # e^epsilon Phi(-distance - mu) = e^(-distance^2/2) erfcx((distance + mu)/sqrt 2)/2: the two
    # huge exponents cancel on paper instead of in floating point.
    scaled = float(erfcx((distance + mu) / math.sqrt(2))) / 2
    if scaled == 0.0:
        return math.exp(log_first)
    log_second = math.log(scaled) - distance**2 / 2
    return max(0.0, math.exp(log_first) * -math.expm1(min(0.0, log_second - log_first)))


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon with ``gaussian_delta(mu, epsilon) <= delta``, from above."""
    if math.isinf(mu):
        return math.inf
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    # delta <= Phi(mu/2 - epsilon/mu) <= exp(-(epsilon/mu - mu/2)^2 / 2) brackets the answer.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if math.isinf(high):
        return math.inf
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if gaussian_delta(mu, middle) <= delta:
            high = middle
        else:
            low = middle


_FRACTIONAL = 1 + np.arange(1, 100) / 10
_WHOLE = np.append(np.arange(11, 64), 2 ** np.arange(7, 11))
ORDERS: Values = np.append(_FRACTIONAL, _WHOLE).astype(float)

_ROUNDING = 1e-14
"""Added to log moments, so that floating point cannot make a divergence too small."""


def gaussian(noise: float) -> Values:
    """N(1, s^2) against N(0, s^2)."""
    return np.asarray(ORDERS / 2 / noise**2)


@lru_cache(maxsize=1024)
def poisson(rate: float, noise: float) -> Values:
    """(1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2), the larger of the two directions.

    Reference: Mironov, Talwar and Zhang (2019), https://arxiv.org/abs/1908.10530, theorems 4, 5.
    """
    whole = _whole_log_moments(rate, noise, tuple(_WHOLE))
    return _divergence(np.append(_fractional_log_moments(rate, noise), whole), noise)


def _whole_log_moments(rate: float, noise: float, orders: tuple[int, ...]) -> Values:
    """The logs of E_{N(0)} (1-q + q e^((2x-1)/(2 s^2)))^order for whole orders: binomial sums."""
    order, k, log_binomial, starts = _binomial_terms(orders)
    terms = k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / 2 / noise**2
    terms += log_binomial
    top = np.maximum.reduceat(terms, starts)
    sums = np.add.reduceat(np.exp(terms - np.repeat(top, np.add(orders, 1))), starts)
    return np.asarray(top + np.log(sums))


@lru_cache(maxsize=4)
def _binomial_terms(orders: tuple[int, ...]) -> tuple[Values, Values, Values, NDArray[np.int64]]:
    """For all orders in a row: the order, k = 0 ... order, log(order over k), where it starts."""
    order = np.repeat(orders, np.add(orders, 1)).astype(float)
    k = np.concatenate([np.arange(order + 1) for order in orders]).astype(float)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return order, k, log_binomial, np.flatnonzero(k == 0)


def _fractional_log_moments(rate: float, noise: float) -> Values:
    """The same for the fractional orders, by quadrature."""
    if noise < 0.03:
        # The integrand is too narrow for a grid: interpolate the whole orders, as log moments
        # are convex in the order and 0 at order 1.
        known = _whole_log_moments(rate, noise, tuple(range(2, 12)))
        return np.interp(_FRACTIONAL, np.arange(1, 12), np.append(0.0, known))
    # The integrand is analytic at distance pi*s from the real line: the rectangle rule with
    # step s/2 errs by exp(-2 pi pi 2), below the rounding of doubles.
    step = min(0.25, noise / 2)
    u = np.arange(-12.0, _FRACTIONAL[-1] / noise + 12.0, step)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + u / noise - 0.5 / noise**2)
    exponents = _FRACTIONAL[:, np.newaxis] * log_ratio - u**2 / 2
    return _log_sum_exp(exponents) + math.log(step / math.sqrt(2 * math.pi))


def _log_sum_exp(values: Values) -> Values:
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))


@lru_cache(maxsize=1024)
def poisson_with_chance(chance: float, rate: float, noise: float) -> Values:
    """The divergence of `poisson` that a public coin shows with a chance; else there is none.

    Moments average over the coin.
    """
    if chance == 1:
        return poisson(rate, noise)
    moments = [_log_moments(rate, noise) + math.log(chance), 0 * ORDERS + math.log1p(-chance)]
    return _divergence(logsumexp(moments, axis=0), noise)


def _log_moments(rate: float, noise: float) -> Values:
    return (ORDERS - 1) * (poisson(rate, noise) if rate < 1 else gaussian(noise))


def _divergence(log_moments: Values, noise: float) -> Values:
    """From log moments, and never more than a Gaussian of this noise, not amplified, has."""
    divergence = (log_moments + _ROUNDING) / (ORDERS - 1)
    return np.asarray(np.minimum(np.maximum(divergence, 0.0), gaussian(noise)))


@lru_cache(maxsize=64)
def fixed_size(rate: float, noise: float) -> Values:
    """A fixed-size batch in which one record is replaced; ``noise`` is relative to that change.

    Reference: Wang, Balle and Kasiviswanathan (2019), theorem 27, in dp_accounting.
    """
    whole = [int(order) for order in ORDERS if float(order).is_integer()]
    accountant = rdp.RdpAccountant(whole, dpa.NeighboringRelation.REPLACE_ONE)
    # dp_accounting only uses the ratio of the two sizes; beyond 1e6 its logarithms underflow.
    size = 10**12
    accountant.compose(
        dpa.SampledWithoutReplacementDpEvent(
            size, math.ceil(rate * size), dpa.GaussianDpEvent(min(noise, 1e6))
        )
    )
    divergence = np.full(ORDERS.size, np.inf)
    divergence[np.isin(ORDERS, whole)] = accountant.rdp
    divergence = np.where(np.isnan(divergence), np.inf, divergence) + _ROUNDING / (ORDERS - 1)
    return np.asarray(np.minimum(np.maximum(divergence, 0.0), gaussian(noise)))


def renyi_epsilon(divergence: Values, delta: float) -> float:
    """The smallest epsilon that the divergences imply.

    Reference: Canonne, Kamath and Steinke (2020), https://arxiv.org/abs/2004.00010, proposition
    12; and delta <= sqrt(1 - exp(-KL)) (Bretagnolle and Huber) for tiny divergences.
    """
    if _total_variation(divergence) <= delta:
        return 0.0
    bounds = divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def renyi_delta(divergence: Values, epsilon: float) -> float:
    """The smallest delta that the divergences imply; the inverse of `renyi_epsilon`."""
    exponent = (ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(1.0, math.exp(min(0.0, float(exponent.min()))), _total_variation(divergence))


def _total_variation(divergence: Values) -> float:
    return math.sqrt(-math.expm1(-float(divergence.min())))
