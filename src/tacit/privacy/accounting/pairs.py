"""Pairs of distributions that dominate one release, by their hockey-stick curves.

A pair (P, Q) dominates a release when no two adjacent data sets are easier to tell apart than P
and Q. How easy that is, is ``delta(epsilon) = sup_S P(S) - e^epsilon Q(S)``. Everything is in
units of the clip norm: the noise has standard deviation s, and a record moves a sum by at most 1.
One Gaussian shift, whose curve has a closed form, is at the end.

Reference: Zhu, Dong and Wang (2022), Optimal accounting of differential privacy via
characteristic function, sections 3 and 4.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr, logsumexp

__all__ = [
    "Pair",
    "gaussian_delta",
    "gaussian_epsilon",
    "removal",
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
