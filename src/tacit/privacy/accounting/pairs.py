"""Pairs of distributions that dominate one release, by their hockey-stick curves.

No batch is cut any more: `tacit.privacy.cost.ConditionedPoissonDpEvent` is what is drawn now.
Statements and ledgers of that time are read and verified with what is proven here.

A batch is drawn with rate q from n records; if more than c are drawn, c of them are kept, chosen
uniformly. Let R be the kept records without ours, and K the number of drawn ones without ours.

A pair (P, Q) dominates a release when no two adjacent data sets are easier to tell apart than P
and Q. How easy that is, is ``delta(epsilon) = sup_S P(S) - e^epsilon Q(S)``. Everything is in
units of the clip norm: the noise has standard deviation s, and a record moves a sum by at most 1.

Reference: Zhu, Dong and Wang (2022), Optimal accounting of differential privacy via
characteristic function, sections 3 and 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, logsumexp
from scipy.stats import binom

__all__ = [
    "Cut",
    "Overflow",
    "Pair",
    "removal",
    "replacement",
    "shown_with_chance",
    "symmetric",
    "truncated",
    "truncated_removal",
]


@dataclass(frozen=True)
class Cut:
    """The chances in a table of a known size, where the record is replaced or zeroed.

    Which records are kept does not depend on their values, so R has the same law in both data
    sets and may be shown. Given R with fewer than c - 1 records, ours is in with chance q, as in a
    batch that is not cut. Given one of c - 1, it is in with a larger chance, since batches that
    overflow end up here too; given a full one it is out. So a release is a public coin that shows
    an ordinary release at the one rate or at the other, or nothing.

    Attributes:
      rate: q.
      last_place: the chance that R has c - 1 records.
      rate_of_last_place: the chance that the record is in, given that.
      full_without: the chance that R has c records.
    """

    rate: float
    last_place: float
    rate_of_last_place: float
    full_without: float

    @staticmethod
    @lru_cache(maxsize=64)
    def of(num_records: int, rate: float, capacity: int) -> "Cut":
        """The chances for a table of ``num_records``."""
        drawn = binom(num_records, rate)
        full, share = float(drawn.sf(capacity - 1)), capacity / num_records
        inside = full * share
        outside = float(drawn.pmf(capacity - 1)) * (1 - share + 1 / num_records)
        last = inside + outside
        return Cut(rate, last, inside / last if last > 0 else rate, full * (1 - share))


@dataclass(frozen=True)
class Overflow:
    r"""Chances that bound all tables of up to a declared size; the record is present or absent.

    Guarantee:
      The pair below dominates every two data sets with n and n - 1 records, for all n up to the
      declared number.

    Show R, and let f = P(K >= c) and p = P(K = c - 1). R has fewer than c - 1 records with the same
    chance in both data sets, and then the pair is the ordinary one. Ours takes another one's place
    with chance e, which is at most q f: where R is full, that makes R less likely by a factor
    1 - e/f if ours is present; where it has c - 1 records, it adds e/p to the chance q of ours to
    be in. With L = N(1)/N(0), the ratio of the densities (present over absent) is therefore

        (1-q) + q L,    (1-q) + (q + e/p) L,    1 - e/f,        with chances 1-p-f, p and f.

    Raising e to q f spreads it (in convex order, so that no divergence, in either direction,
    becomes smaller; the last is 1-q + (q - e/f) E L). What results is (1-q) + q X L, with X equal
    to 1, 1 + f/p and 0, of mean 1. It spreads with n, as E (X-t)+ is f (1 - (t-1) p/f)+ for t >= 1,
    E (t-X)+ is f t for t <= 1, and both f and f/p = sum_j prod_{i<j} (n-c-i) / (c+i) q / (1-q) grow
    with n: more records only make batches overflow more often.

    Attributes:
      rate: q.
      last_place: p.
      full: f.
    """

    rate: float
    last_place: float
    full: float

    @staticmethod
    @lru_cache(maxsize=64)
    def of(declared_records: int, rate: float, capacity: int) -> "Overflow":
        """The chances for ``declared_records``."""
        others = binom(declared_records - 1, rate)
        return Overflow(rate, float(others.pmf(capacity - 1)), float(others.sf(capacity - 1)))

    @property
    def boost(self) -> float:
        """What the second ratio has more of L than the first; infinite where it never occurs."""
        return self.rate * self.full / self.last_place if self.last_place > 0 else math.inf

    @property
    def is_certain(self) -> bool:
        """Whether nearly every batch overflows; amplification is then not worth computing."""
        return self.full > 0 and self.boost > 1e100


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
