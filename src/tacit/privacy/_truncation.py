r"""What happens to a record where a Poisson batch is cut at a capacity, and what that proves.

No batch is cut any more: `tacit.privacy.events.ConditionedPoissonDpEvent` is what is drawn now.
Statements and ledgers of that time are read and verified with what is proven here.

A batch is drawn with rate q from n records; if more than c are drawn, c of them are kept, chosen
uniformly. Let R be the kept records without ours, and K the number of drawn ones without ours.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

from scipy.stats import binom

__all__ = ["Cut", "Overflow"]


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
