r"""Pairs of distributions that dominate one release, by their hockey-stick curves.

A pair (P, Q) dominates a release when no two adjacent data sets are easier to tell apart than P
and Q. How easy that is, is ``delta(epsilon) = sup_S P(S) - e^epsilon Q(S)``. Everything is in
units of the clip norm: the noise has standard deviation s, and a record moves a sum by at most 1.

Reference: Zhu, Dong and Wang (2022), Optimal accounting of differential privacy via
characteristic function, sections 3 and 4.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

from tacit.privacy._releases import Release

__all__ = ["Pair", "removal", "replacement", "symmetric", "truncated"]

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


def truncated(release: Release, ordinary: Pair) -> Pair:
    """The pair of a Poisson batch cut at a capacity, by dropping records uniformly at random.

    Unless the other records fill the batch, the record acts as in an untruncated one. If they
    do, it takes another record's place, which moves the sum by at most 2.

    Reference: dp_accounting, ``from_truncated_subsampled_gaussian_mechanism``.
    """
    n, rate, capacity = release.num_records, release.rate, release.size
    full = float(binom.sf(capacity - 1, n - 1, rate))
    drawn = float(binom.sf(capacity, n, rate)) * capacity / n / full if full > 0 else 0.0
    if drawn == 0.0:
        return ordinary
    displaced = _Replaced(min(1.0, drawn), release.noise_multiplier / 2)
    return Pair(
        _Mixed(ordinary.forward, displaced, full), _Mixed(ordinary.backward, displaced, full)
    )


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
        x = self.noise**2 * (log_excess - np.log(self.rate)) + 0.5
        first = np.log(self.rate) + log_ndtr((1 - x) / self.noise)
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
        x = self.noise**2 * (log_excess - np.log(self.rate)) + 0.5
        first = epsilon + log_excess + log_ndtr(x / self.noise)
        second = epsilon + np.log(self.rate) + log_ndtr((x - 1) / self.noise)
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
class _Mixed:
    """A public coin, which shows the second curve's pair with probability ``weight``."""

    first: Curve
    second: Curve
    weight: float

    @property
    def limit(self) -> float:
        return max(self.first.limit, self.second.limit)

    def delta(self, epsilon: Values) -> Values:
        first, second = self.first.delta(epsilon), self.second.delta(epsilon)
        return (1 - self.weight) * first + self.weight * second


def _loss(rate: float, noise: float, x: float) -> float:
    """The log likelihood ratio log(1-q + q e^((2x-1)/(2 s^2))) of ``removal`` at a point."""
    if rate == 1:
        return (x - 0.5) / noise**2
    return float(logsumexp([np.log1p(-rate), np.log(rate) + (x - 0.5) / noise**2]))


def _difference(first: Values, second: Values) -> Values:
    """exp(first) - exp(second), never negative."""
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
