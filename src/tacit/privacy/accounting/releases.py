"""What a cost consists of: equal noisy sums, counted."""

import enum
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from typing import TypeAlias

import dp_accounting as dpa
from dp_accounting import DpEvent

from tacit.errors import InvalidArgumentError, UnprovenAccountingError
from tacit.privacy.cost import ConditionedPoissonDpEvent, ParallelDpEvent

__all__ = ["Counts", "Release", "SamplingKind", "distinct_releases", "merge_similar"]


class SamplingKind(enum.Enum):
    """How the batch behind a release was drawn."""

    FULL = "full batch"
    POISSON = "Poisson batch"
    CONDITIONED = "Poisson batch of bounded size"
    FIXED = "fixed-size batch"


@dataclass(frozen=True, kw_only=True)
class Release:
    """One Gaussian sum over one batch.

    Attributes:
      sampling: how the batch was drawn.
      noise_multiplier: standard deviation of the noise over the clip norm; 0 means no privacy.
      rate: the chance that a record is drawn (before conditioning).
      num_records: the size of the data set, where the analysis needs it.
      size: the batch size (FIXED) or the capacity (CONDITIONED).
      is_sharded: whether it counts once for several disjoint shards.
    """

    sampling: SamplingKind
    noise_multiplier: float
    rate: float = 1.0
    num_records: int = 0
    size: int = 0
    is_sharded: bool = False


Counts: TypeAlias = tuple[tuple[Release, int], ...]
"""Distinct releases, each with how often it is made; hashable, so that results can be cached."""

_LEAST_NOISE, _MOST_NOISE, _LEAST_RATE, _MOST_TIMES = 1e-9, 1e9, 1e-12, 1e15
"""Beyond these, squares and logarithms leave the range of doubles; rounded to the safe side."""


def distinct_releases(cost: DpEvent) -> Counts:
    """Flattens a cost into its distinct releases; a batch that is always empty is left out."""
    counter: Counter[Release] = Counter()
    for release, count in _leaves(cost, 1):
        if count > 0 and release.rate > 0:
            counter[release] += count
    return tuple(counter.items())


def _leaves(event: DpEvent, count: int) -> Iterator[tuple[Release, int]]:
    match event:
        case dpa.NoOpDpEvent():
            return
        case dpa.NonPrivateDpEvent():
            yield Release(sampling=SamplingKind.FULL, noise_multiplier=0.0), count
        case dpa.SelfComposedDpEvent():
            yield from _leaves(event.event, count * _whole(event.count))
        case dpa.ComposedDpEvent():
            for part in event.events:
                yield from _leaves(part, count)
        case ParallelDpEvent():
            for release, inner in _leaves(event.event, count):
                yield replace(release, is_sharded=True), inner
        case _:
            yield _release(event), count


def _release(event: DpEvent) -> Release:
    match event:
        case dpa.GaussianDpEvent():
            return Release(sampling=SamplingKind.FULL, noise_multiplier=_noise(event))
        case dpa.PoissonSampledDpEvent():
            return _poisson(event.sampling_probability, _noise(event.event))
        case ConditionedPoissonDpEvent():
            return _conditioned(event)
        case dpa.SampledWithoutReplacementDpEvent():
            noise = _noise(event.event)
            _require_sizes(event.sample_size, event.source_dataset_size)
            rate = _probability(event.sample_size / event.source_dataset_size)
            if rate == 1.0:
                return Release(sampling=SamplingKind.FULL, noise_multiplier=noise)
            return Release(
                sampling=SamplingKind.FIXED,
                noise_multiplier=noise,
                rate=rate,
                num_records=event.source_dataset_size,
                size=event.sample_size,
            )
        case _:
            raise _unknown(event)


def _conditioned(event: ConditionedPoissonDpEvent) -> Release:
    _require_sizes(event.capacity, event.num_records)
    poisson = _poisson(event.sampling_probability, _noise(event.event))
    if event.capacity >= event.num_records:
        return poisson
    if poisson.rate == 1:
        raise InvalidArgumentError(
            "sampling_probability must be below 1 where a batch has no room for all records; got 1,"
            f" with room for {event.capacity} of {event.num_records}."
        )
    return replace(
        poisson,
        sampling=SamplingKind.CONDITIONED,
        num_records=event.num_records,
        size=event.capacity,
    )


def _poisson(rate: float, noise_multiplier: float) -> Release:
    rate = _probability(rate)
    if rate == 1.0:
        return Release(sampling=SamplingKind.FULL, noise_multiplier=noise_multiplier)
    return Release(sampling=SamplingKind.POISSON, noise_multiplier=noise_multiplier, rate=rate)


def _noise(event: DpEvent) -> float:
    """The multiplier of one Gaussian that tells as much as all those in ``event`` together."""
    match event:
        case dpa.GaussianDpEvent():
            noise = float(event.noise_multiplier)
            if not noise >= 0:
                raise InvalidArgumentError(
                    f"noise_multiplier must be a non-negative number; got {noise!r}."
                )
            return 0.0 if noise < _LEAST_NOISE else min(noise, _MOST_NOISE)
        case dpa.SelfComposedDpEvent():
            return _joint_noise([_noise(event.event)] * min(1, _whole(event.count)), event.count)
        case dpa.ComposedDpEvent():
            return _joint_noise([_noise(part) for part in event.events], 1)
        case _:
            raise _unknown(event)


def _joint_noise(multipliers: Iterable[float], count: int) -> float:
    precision = 0.0
    for noise in multipliers:
        if noise == 0:
            return 0.0
        precision += count / noise**2
    return _MOST_NOISE if precision == 0 else precision**-0.5


def _probability(rate: float) -> float:
    if not 0 <= rate <= 1:
        raise InvalidArgumentError(f"a sampling rate must lie in [0, 1]; got {rate!r}.")
    return 0.0 if rate == 0 else max(float(rate), _LEAST_RATE)


def _whole(count: int) -> int:
    if count < 0 or count != int(count):
        raise InvalidArgumentError(f"a count must be a whole number, not negative; got {count!r}.")
    if count > _MOST_TIMES:
        raise InvalidArgumentError(f"a count must be at most {_MOST_TIMES:g}; got more.")
    return int(count)


def _require_sizes(batch: int, table: int) -> None:
    if not (batch >= 0 and table > 0):
        raise InvalidArgumentError(
            f"a batch must not be negative, and a table not empty; got {batch!r} of {table!r}."
        )


def _unknown(event: DpEvent) -> UnprovenAccountingError:
    return UnprovenAccountingError(
        f"tacit cannot account for {type(event).__name__}. Use Gaussian releases on full, Poisson "
        "or fixed-size batches, or account for this cost with dp_accounting directly."
    )


def merge_similar(counts: Counts, limit: int) -> Counts:
    """Leaves about ``limit`` distinct noise multipliers for each way of sampling.

    Guarantee:
      Pessimistic: a multiplier is only ever replaced by a smaller one. Where there are more than
      ``limit``, they are rounded down to powers of 2^(1/k), for the largest k = 2^i that leaves at
      most ``limit`` on average over all scales. So k does not change when all are scaled, more
      noise never becomes less, and a search over a common factor meets the same multipliers again.
    """

    def family(item: tuple[Release, int]) -> tuple[object, ...]:
        release = item[0]
        return (
            release.sampling.value,
            release.rate,
            release.num_records,
            release.size,
            release.is_sharded,
        )

    merged: Counter[Release] = Counter()
    for _, group in groupby(sorted(counts, key=family), key=family):
        members = sorted(group, key=lambda item: item[0].noise_multiplier)
        if len(members) <= limit or members[0][0].noise_multiplier == 0:
            merged.update(dict(members))
            continue
        logs = [math.log2(release.noise_multiplier) for release, _ in members]
        per_octave = 1024.0
        # Two neighbours are in different cells for so large a part of all scales.
        while sum(min(1.0, (b - a) * per_octave) for a, b in pairwise(logs)) > limit + 0.5:
            per_octave /= 2
        for cell, cells in groupby(
            zip(logs, members, strict=True), key=lambda item: math.floor(item[0] * per_octave)
        ):
            similar = [member for _, member in cells]
            lowest = similar[0][0]
            noise = min(2.0 ** (cell / per_octave), lowest.noise_multiplier)
            merged[replace(lowest, noise_multiplier=noise)] += sum(count for _, count in similar)
    return tuple(merged.items())
