"""The one table: sampling x adjacency x accountant -> how a release is accounted for.

A cell that is missing has no proof that we know of, and asking for it raises. All scaling of
sensitivities happens here and nowhere else: a record that is replaced moves a sum by 2, not 1,
and so does one that displaces another from a batch of fixed size. Under add-remove the number of
records in an event is a public upper bound, and the rule holds for every number up to it.
"""

import enum
import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from tacit.errors import UnprovenAccountingError
from tacit.privacy.accounting import divergences
from tacit.privacy.accounting.divergences import Pair
from tacit.privacy.accounting.releases import Release, SamplingKind

__all__ = [
    "DIVERGENCES",
    "EXACT_MU",
    "LIMIT_MU",
    "PAIRS",
    "UNAMPLIFIED_MU",
    "Adjacency",
    "RuleTable",
    "SquaredMu",
    "look_up",
]


class Adjacency(enum.Enum):
    """What it means for two data sets to differ in one record; printed wherever epsilon is.

    Example:
      >>> print(Adjacency.ZERO_OUT)
      zero-out
      >>> Adjacency("add-remove").sentence
      'one record may be present or absent; the declared number of records is public'
    """

    ZERO_OUT = "zero-out"
    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    def __str__(self) -> str:
        return self.value

    @property
    def sentence(self) -> str:
        """The relation in words that a person who is not an expert can read."""
        return _SENTENCES[self]


_SENTENCES = {
    Adjacency.ZERO_OUT: (
        "one record may count or contribute nothing; the number of records is public"
    ),
    # The true number is private. Rate, capacity and cost come from the declared one.
    Adjacency.ADD_REMOVE: (
        "one record may be present or absent; the declared number of records is public"
    ),
    Adjacency.REPLACE_ONE: (
        "one record may be replaced by any other; the number of records is public"
    ),
}


Rule = TypeVar("Rule")
RuleTable: TypeAlias = Mapping[tuple[SamplingKind, Adjacency], Rule]

SquaredMu: TypeAlias = Callable[[Release], float]

_FULL, _POISSON = SamplingKind.FULL, SamplingKind.POISSON
_CONDITIONED, _FIXED = SamplingKind.CONDITIONED, SamplingKind.FIXED
_ZERO, _ADD, _REPLACE = Adjacency.ZERO_OUT, Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE


def look_up(
    table: RuleTable[Rule], release: Release, adjacency: Adjacency, accountant: str
) -> Rule:
    """Returns the rule of a cell, or raises with the cell's name and what to do instead."""
    if release.is_sharded and adjacency is Adjacency.REPLACE_ONE:
        raise UnprovenAccountingError(
            "a cost that counts once for disjoint shards is not proven under adjacency "
            f"{adjacency}: the record that replaces another may belong to another shard. Use "
            f"adjacency {Adjacency.ZERO_OUT} or {Adjacency.ADD_REMOVE}."
        )
    rule = table.get((release.sampling, adjacency))
    if rule is None:
        others = [str(a) for a in Adjacency if (release.sampling, a) in table]
        remedy = f"adjacency {' or '.join(others)}" if others else "another way of sampling"
        raise UnprovenAccountingError(
            f"nobody has proven how {accountant} accounts for a {release.sampling.value} under "
            f"adjacency {adjacency}. Use the PLD accountant, or {remedy}."
        )
    return rule


def _seen(r: Release) -> float:
    return _chance_of_room(r.num_records, r.rate, r.size)


@lru_cache(maxsize=64)
def _chance_of_room(num_records: int, rate: float, capacity: int) -> float:
    """An upper bound on the chance that others leave room for a record in a conditioned batch.

    `ConditionedPoissonDpEvent` has the proof. That they leave none is taken to be less likely than
    it is: by a part in a million, for the errors of SciPy, and by the distance of the table from
    which sizes are drawn, `tacit.privacy.drawing.size_table`.
    """
    possible = float(binom.cdf(capacity, num_records, rate))
    if possible < 1e-9:  # far below the mean, where SciPy may err
        return 1.0
    full = float(binom.pmf(capacity, num_records, rate)) / possible
    without = (1 - 1e-6) * full * (1 - capacity / num_records)
    return min(1.0, 1.0 - without + (capacity + 2) ** 2 * 2.0**-63)


# PLD: a pair for each direction (record in the first data set, record in the second); composed
# separately, the worse one counts. A symmetric pair serves both.


def _both_ways(rate: float, noise: float) -> tuple[Pair, ...]:
    removal = divergences.removal(rate, noise)
    return removal, removal.swapped()


def _pairs_poisson(r: Release) -> tuple[Pair, ...]:
    return _both_ways(r.rate, r.noise_multiplier)


def _pairs_poisson_replace(r: Release) -> tuple[Pair, ...]:
    return (divergences.replacement(r.rate, r.noise_multiplier),)


def _pairs_conditioned(r: Release) -> tuple[Pair, ...]:
    seen = _seen(r)
    return tuple(divergences.shown_with_chance(seen, pair) for pair in _pairs_poisson(r))


def _pairs_conditioned_replace(r: Release) -> tuple[Pair, ...]:
    seen = _seen(r)
    return tuple(divergences.shown_with_chance(seen, pair) for pair in _pairs_poisson_replace(r))


def _pairs_fixed(r: Release) -> tuple[Pair, ...]:
    return _both_ways(r.rate, r.noise_multiplier / 2)


def _pairs_fixed_replace(r: Release) -> tuple[Pair, ...]:
    # Proven is only the curve of the pair below for epsilon >= 0, in both directions.
    return (divergences.symmetric(divergences.removal(r.rate, r.noise_multiplier / 2).forward),)


def _pairs_full(r: Release) -> tuple[Pair, ...]:
    return (divergences.removal(1.0, r.noise_multiplier),)


def _pairs_full_replace(r: Release) -> tuple[Pair, ...]:
    return (divergences.removal(1.0, r.noise_multiplier / 2),)


PAIRS: RuleTable[Callable[[Release], tuple[Pair, ...]]] = {
    (_FULL, _ZERO): _pairs_full,
    (_FULL, _ADD): _pairs_full,
    (_FULL, _REPLACE): _pairs_full_replace,
    (_POISSON, _ZERO): _pairs_poisson,
    (_POISSON, _ADD): _pairs_poisson,
    (_POISSON, _REPLACE): _pairs_poisson_replace,
    (_CONDITIONED, _ZERO): _pairs_conditioned,
    (_CONDITIONED, _ADD): _pairs_conditioned,
    (_CONDITIONED, _REPLACE): _pairs_conditioned_replace,
    (_FIXED, _ZERO): _pairs_fixed_replace,
    (_FIXED, _ADD): _pairs_fixed,
    (_FIXED, _REPLACE): _pairs_fixed_replace,
}


# RDP: divergences at the fixed orders. Zeroing a record of a fixed-size batch is a case of
# replacing it.


def _renyi_full(r: Release) -> NDArray[np.float64]:
    return divergences.gaussian(r.noise_multiplier)


def _renyi_full_replace(r: Release) -> NDArray[np.float64]:
    return divergences.gaussian(r.noise_multiplier / 2)


def _renyi_poisson(r: Release) -> NDArray[np.float64]:
    return divergences.poisson(r.rate, r.noise_multiplier)


def _renyi_conditioned(r: Release) -> NDArray[np.float64]:
    return divergences.poisson_with_chance(_seen(r), r.rate, r.noise_multiplier)


def _renyi_fixed(r: Release) -> NDArray[np.float64]:
    return divergences.poisson(r.rate, r.noise_multiplier / 2)


def _renyi_fixed_replace(r: Release) -> NDArray[np.float64]:
    return divergences.fixed_size(r.rate, r.noise_multiplier / 2)


DIVERGENCES: RuleTable[Callable[[Release], NDArray[np.float64]]] = {
    (_FULL, _ZERO): _renyi_full,
    (_FULL, _ADD): _renyi_full,
    (_FULL, _REPLACE): _renyi_full_replace,
    (_POISSON, _ZERO): _renyi_poisson,
    (_POISSON, _ADD): _renyi_poisson,
    (_CONDITIONED, _ZERO): _renyi_conditioned,
    (_CONDITIONED, _ADD): _renyi_conditioned,
    (_FIXED, _ZERO): _renyi_fixed_replace,
    (_FIXED, _ADD): _renyi_fixed,
    (_FIXED, _REPLACE): _renyi_fixed_replace,
}


# GDP and the CLT: the square of mu, which adds up.


def _one(r: Release) -> float:
    return _divide(1.0, r.noise_multiplier)


def _two(r: Release) -> float:
    return _divide(2.0, r.noise_multiplier)


def _limit(r: Release) -> float:
    exponent = _one(r)
    return math.inf if exponent > 700 else r.rate**2 * math.expm1(exponent)


def _divide(sensitivity: float, noise: float) -> float:
    ratio = sensitivity / noise
    return ratio * ratio  # not a power: that raises where this is infinite


EXACT_MU: RuleTable[SquaredMu] = {
    (_FULL, _ZERO): _one,
    (_FULL, _ADD): _one,
    (_FULL, _REPLACE): _two,
}

LIMIT_MU: RuleTable[SquaredMu] = {
    (sampling, adjacency): _limit
    for sampling in (_FULL, _POISSON, _CONDITIONED)
    for adjacency in (_ZERO, _ADD)
}

UNAMPLIFIED_MU: RuleTable[SquaredMu] = {
    # An adversary who sees which records were drawn. Where the draw does not depend on the data
    # only the record itself changes; else it may also take another record's place.
    **{(sampling, _ZERO): _one for sampling in SamplingKind},
    **{(sampling, _REPLACE): _two for sampling in SamplingKind},
    (_FULL, _ADD): _one,
    (_POISSON, _ADD): _one,
    (_CONDITIONED, _ADD): _one,
    (_FIXED, _ADD): _two,
}
