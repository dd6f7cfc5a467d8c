"""Cost: what releases cost, as data that budgets, ledgers, plans and statements take.

A `Cost` is an event and whether its noise is secret. An event is a tree of dp_accounting's classes
and two of our own; it is written to JSON by name and fields, so that a statement can be checked,
and an accountant run again, from the file alone.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Self

import attrs
import dp_accounting
from dp_accounting import DpEvent

from tacit.errors import InvalidArgumentError

__all__ = [
    "ConditionedPoissonDpEvent",
    "Cost",
    "ParallelDpEvent",
    "composed",
    "count_releases",
    "event_from_json",
    "event_of",
    "event_to_json",
    "noise_multipliers",
    "num_shards",
    "repeated",
]


@dataclass(frozen=True)
class Cost:
    """What was released on some records, or will be. Costs add up.

    Attributes:
      event: what an accountant turns into epsilon.
      is_secure: whether all of the noise comes from secret keys; a seed is not secret.

    Example:
      >>> first = Cost(dp_accounting.GaussianDpEvent(4.0), is_secure=True)
      >>> second = Cost(dp_accounting.GaussianDpEvent(4.0), is_secure=False)
      >>> (first + second).is_secure
      False
      >>> first + Cost.nothing() == first
      True
    """

    event: DpEvent
    is_secure: bool = field(kw_only=True)

    @classmethod
    def nothing(cls) -> Self:
        """The cost of no release."""
        return cls(dp_accounting.NoOpDpEvent(), is_secure=True)

    def __add__(self, other: "Cost") -> "Cost":
        event = composed(self.event, other.event)
        return Cost(event, is_secure=self.is_secure and other.is_secure)


def event_of(cost: Cost | DpEvent) -> DpEvent:
    """Returns what an accountant takes; whether noise is secret does not change epsilon."""
    return cost.event if isinstance(cost, Cost) else cost


@attrs.frozen
class ParallelDpEvent(DpEvent):  # type: ignore[misc]
    """The same work on each of several disjoint shards of the records.

    Guarantee:
      A record is in one shard, and the work on the others neither reads it nor changes with it, so
      that one record pays for ``event`` once. That holds while a record cannot change its shard:
      accountants refuse it under replace-one adjacency.

    Attributes:
      event: what is done on each shard.
      num_shards: how many there are.

    Reference:
      McSherry, "Privacy integrated queries" (2009), theorem 4.
    """

    event: DpEvent
    num_shards: int


@attrs.frozen
class ConditionedPoissonDpEvent(DpEvent):  # type: ignore[misc]
    r"""A Gaussian on a Poisson batch whose size is conditioned on being at most a capacity.

    Of n rows each is drawn with chance q, independently; a batch of more than c rows is not cut but
    drawn again as a whole (or its size is drawn from Binomial(n, q) given that it is at most c).

    Guarantee:
      Under zero-out and replace-one adjacency the privacy profile is w times that of Poisson
      sampling at rate q, for every capacity: delta(epsilon) of this event is w delta(epsilon) of
      ``PoissonSampledDpEvent(q, event)``, with w = 1 - (1 - c/n) P(size = c). Under add-remove
      adjacency the same holds where n is a declared number of rows, of which those that hold no
      record are drawn like any other and add nothing.

    Proof. A set B of at most c rows is drawn with a chance in proportion to (q/(1-q))^|B|. Let R be
    the drawn rows other than ours. Draws ignore values, so R has one law for both data sets, and
    showing it to the adversary loses nothing. Given R with |R| < c, the odds of ours are those of
    R with it to R without it, q/(1-q): it is drawn with chance q, as in Poisson sampling. Given
    |R| = c it is not drawn, and nothing of it is seen. So the release is a coin, thrown without
    looking at the data, that shows a release on a Poisson batch with chance w and else nothing, and
    hockey-stick divergences average over such a coin. Here 1 - w = P(|R| = c) is the chance that
    the batch is full, P(size = c), times that ours is not in it, 1 - c/n. As it holds for every
    release given those before it, it composes. Under add-remove, two tables with one record more or
    less fill the same n rows, in which one row counts or is vacant: that is zero-out.

    Conditioning on the *true* number of records would not do under add-remove: a record that comes
    or goes then changes the law of R.

    Attributes:
      sampling_probability: q.
      num_records: n, or the declared number under add-remove.
      capacity: c.
      event: what is released on a batch.
    """

    sampling_probability: float
    num_records: int
    capacity: int
    event: DpEvent


_KNOWN = {
    event.__name__: event
    for event in (
        dp_accounting.NoOpDpEvent,
        dp_accounting.NonPrivateDpEvent,
        dp_accounting.GaussianDpEvent,
        dp_accounting.PoissonSampledDpEvent,
        ConditionedPoissonDpEvent,
        dp_accounting.SampledWithoutReplacementDpEvent,
        dp_accounting.SelfComposedDpEvent,
        dp_accounting.ComposedDpEvent,
        ParallelDpEvent,
    )
}


def repeated(event: DpEvent, count: int) -> DpEvent:
    """Returns an event ``count`` times, in the shortest form."""
    if count == 0 or isinstance(event, dp_accounting.NoOpDpEvent):
        return dp_accounting.NoOpDpEvent()
    return event if count == 1 else dp_accounting.SelfComposedDpEvent(event, count)


def composed(*events: DpEvent) -> DpEvent:
    """Returns events one after the other, in the shortest form."""
    real = [event for event in events if not isinstance(event, dp_accounting.NoOpDpEvent)]
    if not real:
        return dp_accounting.NoOpDpEvent()
    return real[0] if len(real) == 1 else dp_accounting.ComposedDpEvent(real)


def count_releases(event: DpEvent) -> Counter[DpEvent]:
    """Returns how often each elementary release occurs in a cost, as one record is concerned.

    Example:
      >>> gaussian = dp_accounting.GaussianDpEvent(1.0)
      >>> count_releases(composed(repeated(gaussian, 3), gaussian))
      Counter({GaussianDpEvent(noise_multiplier=1.0): 4})
    """
    match event:
        case dp_accounting.NoOpDpEvent():
            return Counter()
        case ParallelDpEvent():
            return count_releases(event.event)
        case dp_accounting.SelfComposedDpEvent():
            inner = count_releases(event.event)
            return Counter({key: event.count * count for key, count in inner.items()})
        case dp_accounting.ComposedDpEvent():
            return sum(map(count_releases, event.events), Counter[DpEvent]())
        case _:
            return Counter([_hashable(event)])


def noise_multipliers(event: DpEvent, count: int = 1) -> Iterator[tuple[float, int]]:
    """Yields the noise multiplier of every Gaussian in a cost, and how often it is made.

    Sampled events are entered too, so this sees each noisy sum and not what it costs.

    Example:
      >>> twice = dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5.0), 2)
      >>> list(noise_multipliers(dp_accounting.PoissonSampledDpEvent(0.1, twice)))
      [(5.0, 2)]
    """
    match event:
        case dp_accounting.NoOpDpEvent():
            return
        case dp_accounting.NonPrivateDpEvent():
            yield 0.0, count
        case dp_accounting.SelfComposedDpEvent():
            yield from noise_multipliers(event.event, count * int(event.count))
        case ParallelDpEvent():
            yield from noise_multipliers(event.event, count * int(event.num_shards))
        case dp_accounting.ComposedDpEvent():
            for part in event.events:
                yield from noise_multipliers(part, count)
        case (
            dp_accounting.PoissonSampledDpEvent()
            | ConditionedPoissonDpEvent()
            | dp_accounting.SampledWithoutReplacementDpEvent()
        ):
            yield from noise_multipliers(event.event, count)
        case dp_accounting.GaussianDpEvent():
            yield float(event.noise_multiplier), count
        case _:
            raise _unknown(event)


def num_shards(event: DpEvent) -> int:
    """Returns the largest number of disjoint shards over which a part of a cost runs."""
    match event:
        case ParallelDpEvent():
            return max(int(event.num_shards), num_shards(event.event))
        case dp_accounting.SelfComposedDpEvent():
            return num_shards(event.event)
        case dp_accounting.ComposedDpEvent():
            return max((num_shards(part) for part in event.events), default=1)
        case _:
            return 1


def event_to_json(event: DpEvent) -> dict[str, Any]:
    """Returns a JSON-able description of a cost."""
    name = type(event).__name__
    if name not in _KNOWN:
        raise _unknown(event)
    fields = {field.name: getattr(event, field.name) for field in attrs.fields(type(event))}
    return {"kind": name} | {key: _value_to_json(value) for key, value in fields.items()}


def event_from_json(document: dict[str, Any]) -> DpEvent:
    """Returns the cost that `event_to_json` described.

    Example:
      >>> event_from_json(event_to_json(dp_accounting.GaussianDpEvent(2.0)))
      GaussianDpEvent(noise_multiplier=2.0)
    """
    fields = dict(document)
    name = fields.pop("kind", None)
    if name not in _KNOWN:
        known = ", ".join(_KNOWN)
        raise InvalidArgumentError(f"kind must be one of {known}; got {name!r}.")
    return _KNOWN[name](**{key: _value_from_json(value) for key, value in fields.items()})


def _value_to_json(value: Any) -> Any:
    if isinstance(value, DpEvent):
        return event_to_json(value)
    if isinstance(value, list | tuple):
        return [_value_to_json(item) for item in value]
    # JSON knows neither the numbers of NumPy nor infinity.
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return "infinity" if math.isinf(value) else float(value)
    return value


def _value_from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return event_from_json(value)
    if isinstance(value, list):
        return [_value_from_json(item) for item in value]
    return math.inf if value == "infinity" else value


def _hashable(event: DpEvent) -> DpEvent:
    """A sampled event with its parts in tuples; dp_accounting keeps them in lists."""
    if isinstance(event, dp_accounting.ComposedDpEvent):
        return attrs.evolve(event, events=tuple(map(_hashable, event.events)))
    inner = getattr(event, "event", None)
    return event if inner is None else attrs.evolve(event, event=_hashable(inner))


def _unknown(event: DpEvent) -> InvalidArgumentError:
    return InvalidArgumentError(f"event must be one that tacit can account; got {event!r}.")
