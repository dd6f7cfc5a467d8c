r"""Pairs of distributions that dominate one release, by their hockey-stick curves.

A pair (P, Q) dominates a release when no two adjacent data sets are easier to tell apart than P
and Q. How easy that is, is ``delta(epsilon) = sup_S P(S) - e^epsilon Q(S)``. Everything is in
units of the clip norm: the noise has standard deviation s, and a record moves a sum by at most 1.

Reference: Zhu, Dong and Wang (2022), Optimal accounting of differential privacy via
characteristic function, sections 3 and 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp

from tacit.privacy._truncation import Cut, Overflow

__all__ = [
    "Pair",
    "removal",
    "replacement",
    "shown_with_chance",
    "symmetric",
    "truncated",
    "truncated_removal",
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
    return Pair(_Mixed((pair.forward,), (chance,)), _Mixed((pair.backward,), (chance,)))


def truncated(cut: Cut, ordinary: Callable[[float], Pair]) -> Pair:
    """The pair of a Poisson batch cut at a capacity; the record counts or not, or is replaced.

    `Cut` has the proof. The others in the batch may be shown, and given them the record is in with
    the ordinary rate, or with that of the last place, or it is out.

    Args:
      cut: the chances of what happens to the record.
      ordinary: the pair of a batch that is not cut, at a rate.
    """
    if cut.last_place == 0:
        return ordinary(cut.rate)
    pairs = ordinary(cut.rate), ordinary(cut.rate_of_last_place)
    weights = 1 - cut.last_place - cut.full_without, cut.last_place
    return Pair(
        _Mixed(tuple(pair.forward for pair in pairs), weights),
        _Mixed(tuple(pair.backward for pair in pairs), weights),
    )


def truncated_removal(overflow: Overflow, noise: float) -> Pair:
    """The pair of a cut Poisson batch where the record is in the first data set only.

    `Overflow` has the proof, which holds for every number of records up to the declared one.
    """
    if overflow.is_certain:
        return removal(1.0, noise / 2)  # it may also take another one's place
    rate, last, full = overflow.rate, overflow.last_place, overflow.full
    ordinary = removal(rate, noise)
    if full == 0:
        return ordinary
    present, absent = _Present(rate, noise, overflow.boost), _Absent(rate, noise, overflow.boost)
    weights = 1 - last - full, last
    return Pair(
        _Mixed((ordinary.forward, present), weights),
        _Mixed((ordinary.backward, absent, _Noticed(rate)), (*weights, full)),
    )


@dataclass(frozen=True)
class _Present:
    """(1-q) N(0) + (q + boost) N(1) against N(0); the boost is mass on top of one."""

    rate: float
    noise: float
    boost: float = 0.0

    @property
    def limit(self) -> float:
        return _loss(self.rate, self.noise, 1 + _TAIL * self.noise, self.boost)

    def delta(self, epsilon: Values) -> Values:
        # The loss exceeds epsilon above the point x, where the likelihood ratio is e^epsilon.
        # log(e^epsilon - (1 - q)), which must not overflow:
        log_excess = epsilon + np.log1p((self.rate - 1) * np.exp(-epsilon))
        log_inside = np.log(self.rate + self.boost)
        x = self.noise**2 * (log_excess - log_inside) + 0.5
        first = log_inside + log_ndtr((1 - x) / self.noise)
        return _difference(first, log_excess + log_ndtr(-x / self.noise))


@dataclass(frozen=True)
class _Absent:
    """N(0) against (1-q) N(0) + (q + boost) N(1)."""

    rate: float
    noise: float
    boost: float = 0.0

    @property
    def limit(self) -> float:
        return -_loss(self.rate, self.noise, -_TAIL * self.noise, self.boost)

    def delta(self, epsilon: Values) -> Values:
        # The loss exceeds epsilon below the point x; from -log(1-q) on it never does.
        excess = np.expm1(-epsilon) + self.rate  # e^-epsilon - (1 - q)
        possible = excess > 0
        log_excess = np.log(np.where(possible, excess, 1.0))
        log_inside = np.log(self.rate + self.boost)
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
class _Noticed:
    """Absent against present with rate q, where being in is noticed for sure."""

    rate: float

    @property
    def limit(self) -> float:
        return -math.log1p(-self.rate)

    def delta(self, epsilon: Values) -> Values:
        return np.maximum(0.0, -np.expm1(epsilon + math.log1p(-self.rate)))


@dataclass(frozen=True)
class _Mixed:
    """A sum of curves, as a public coin shows one of their pairs; weights may miss one."""

    curves: tuple[Curve, ...]
    weights: tuple[float, ...]

    @property
    def limit(self) -> float:
        return max(curve.limit for curve in self.curves)

    def delta(self, epsilon: Values) -> Values:
        parts = zip(self.weights, self.curves, strict=True)
        return np.asarray(sum(weight * curve.delta(epsilon) for weight, curve in parts))


def _loss(rate: float, noise: float, x: float, boost: float = 0.0) -> float:
    """The log likelihood ratio log(1-q + (q + boost) e^((2x-1)/(2 s^2))) at a point."""
    inside = math.log(rate + boost) + (x - 0.5) / noise**2
    return inside if rate == 1 else float(logsumexp([np.log1p(-rate), inside]))


def _difference(first: Values, second: Values) -> Values:
    """exp(first) - exp(second), never negative."""
    return np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
