"""Sampling: which records a release looks at, and what that costs.

A batch is drawn as global indices and a mask of one static shape, whatever its realised size, so
that neither the compile cache nor the running time tells how many records were drawn. Drawing
costs O(batch) work however many records there are, and is exact to 64 random bits:

* The size of a Poisson batch is binomial, conditioned on being at most the capacity. It comes from
  a 64-bit inverse distribution table that is computed once from public numbers, in integers, and
  rounded so that the cost holds for the rounded table (`_size_table` has the proof). Nothing is
  ever cut from a batch.
* A uniform index is the whole part of num_records times a 64-bit fraction. No index is more
  likely than another by more than 2^-33 of its chance. (Remainders of 32 bits, which
  ``jax.random.randint`` takes, favour some records by up to one half.)
* Distinct indices come from a stream of independent uniform ones by keeping first occurrences.
  Relabelling the records does not change which positions of the stream collide, so the kept
  indices are a uniformly random ordered subset, also when a draw with too many collisions is
  thrown away and repeated. Nothing rests on a block cipher having enough rounds.
* Where the number of records is private, a batch is drawn from the declared number of rows, and
  those beyond the true number are vacant. A record that comes or goes is a row that counts or is
  vacant, and nothing else about the draw changes.
* Drawn records lie in the slots of the batch by a uniformly random injection. Restricted to the
  others it is the same whether one record is drawn or not: nobody moves, so a record changes only
  the block of slots that it lies in.
"""

import functools
import itertools
import math
from dataclasses import dataclass
from typing import Protocol

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from jax import lax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.cost import ConditionedPoissonDpEvent
from tacit.tables.base import Batch
from tacit.typing import Array, Key

__all__ = ["Batch", "FixedBatch", "FullBatch", "PoissonBatch", "Sampling"]

_MAX_RECORDS = 2**31 - 1


class Sampling(Protocol):
    """How a release draws its records. Every field is public, but see `PoissonBatch`."""

    @property
    def num_records(self) -> int:
        """How many records there are; only to draw them, and to check a table."""
        ...

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        ...

    @property
    def rate(self) -> float:
        """The sampling rate of the cost: given the others in a batch, a record's chance at most."""
        ...

    @property
    def inclusion_rate(self) -> float:
        """The chance that a given record is drawn: the public denominator of estimates.

        A sum over a batch divided by it is an unbiased estimate of the sum over all records.
        """
        ...

    @property
    def capacity(self) -> int:
        """The static length of a batch."""
        ...

    def draw(self, key: Key) -> Batch:
        """Draws a batch; a pure function of the key, never of any record."""
        ...

    def cost(self, noise_multiplier: float) -> DpEvent:
        """What one Gaussian release on such a batch costs."""
        ...


def _gaussian(noise_multiplier: float) -> DpEvent:
    _check.positive(noise_multiplier=noise_multiplier)
    return dp_accounting.GaussianDpEvent(float(noise_multiplier))


def _check_num_records(num_records: int) -> None:
    _check.positive_integer(num_records=num_records)
    if num_records > _MAX_RECORDS:
        raise InvalidArgumentError(
            f"num_records must be at most {_MAX_RECORDS}; got {num_records}. Indices are 32-bit."
        )


@dataclass(frozen=True, kw_only=True)
class FullBatch:
    """Every record, every time: no amplification, exact Gaussian accounting.

    Example:
      >>> FullBatch(num_records=3).draw(jax.random.key(0)).indices
      Array([0, 1, 2], dtype=int32)
    """

    num_records: int

    def __post_init__(self) -> None:
        _check_num_records(self.num_records)

    @property
    def public_records(self) -> int:
        """The number of records."""
        return self.num_records

    @property
    def rate(self) -> float:
        """One."""
        return 1.0

    @property
    def inclusion_rate(self) -> float:
        """One."""
        return 1.0

    @property
    def capacity(self) -> int:
        """The number of records."""
        return self.num_records

    def draw(self, key: Key) -> Batch:
        """Returns all indices in order; the key is not used."""
        del key
        return Batch(jnp.arange(self.num_records, dtype=jnp.int32), jnp.ones(self.capacity, bool))

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian mechanism, not amplified."""
        return _gaussian(noise_multiplier)


@dataclass(frozen=True, kw_only=True)
class PoissonBatch:
    """Each record with one public probability, given that all that are drawn have room.

    The probability, ``rate``, is ``batch_size / num_records``, or ``batch_size / declared_records``
    where the number of records is private, as under add-remove adjacency. The size of a batch is
    drawn from Binomial(number of records, rate) *conditioned on being at most the capacity*, and
    then that many distinct records, uniformly.

    Guarantee:
      A release on such a batch costs at most as much as on a Poisson batch of the same rate and
      without a capacity, step by step, for every capacity and under every adjacency
      (`tacit.privacy.cost.ConditionedPoissonDpEvent` has the proof). No batch is ever cut, and
      its size stays secret. With ``declared_records`` a batch is drawn from that many rows, of
      which only ``num_records`` hold a record: nothing but the indices depends on ``num_records``,
      and rates, capacity and cost are those of the declared number.

    Args:
      num_records: how many records (units of privacy) there are; public, unless
        ``declared_records`` is given.
      batch_size: ``rate`` times the number of records, or of declared ones; public. A batch has
        slightly fewer records on average, as ``inclusion_rate`` says: 1.7 % fewer for 256 of 60 000
        by default.
      max_batch_size: the capacity, which is the static length of a batch; at least ``batch_size``.
        The default is one standard deviation above it. A smaller one saves time, and batches have
        fewer records on average; no choice makes a step cost more than that of a Poisson batch.
      declared_records: a public upper bound on the number of records, declared by their owner
        without looking at them. Add-remove adjacency needs it, and the others refuse it.

    Example:
      >>> sampling = PoissonBatch(num_records=60_000, batch_size=256)
      >>> sampling.rate, sampling.capacity
      (0.004266666666666667, 272)
      >>> f"{60_000 * sampling.inclusion_rate:.1f}"
      '251.6'
      >>> declared = PoissonBatch(num_records=58_123, batch_size=256, declared_records=60_000)
      >>> (declared.rate, declared.capacity) == (sampling.rate, sampling.capacity)
      True
    """

    num_records: int
    batch_size: float
    max_batch_size: int | None = None
    declared_records: int | None = None

    def __post_init__(self) -> None:
        _check_num_records(self.num_records)
        _check.positive(batch_size=self.batch_size)
        if self.declared_records is not None:
            _check_num_records(self.declared_records)
            if self.num_records > self.declared_records:
                raise InvalidArgumentError(
                    f"declared_records must be at least the number of records; got"
                    f" {self.declared_records}, and there are more. Declare an upper bound that"
                    " does not come from the records."
                )
        if self.batch_size > self.public_records:
            raise InvalidArgumentError(
                f"batch_size must be at most num_records={self.public_records}; got"
                f" {self.batch_size}. Use FullBatch to look at every record."
            )
        if self.max_batch_size is not None:
            _check.positive_integer(max_batch_size=self.max_batch_size)
            if self.max_batch_size < self.batch_size:
                raise InvalidArgumentError(
                    f"max_batch_size must be at least batch_size={self.batch_size}; got"
                    f" {self.max_batch_size}. Leave it out for the default, or ask for a smaller"
                    " batch_size: batches of the same average size then cost less."
                )

    def __repr__(self) -> str:
        # Statements and errors show it; the true number is not in it where one is declared.
        count = "num_records" if self.declared_records is None else "declared_records"
        return (
            f"PoissonBatch({count}={self.public_records}, batch_size={self.batch_size!r},"
            f" max_batch_size={self.max_batch_size!r})"
        )

    @property
    def public_records(self) -> int:
        """``declared_records`` if it is given, or ``num_records``."""
        return self.num_records if self.declared_records is None else self.declared_records

    @property
    def rate(self) -> float:
        """The sampling probability, before the size is conditioned on the capacity."""
        return self.batch_size / self.public_records

    @property
    def inclusion_rate(self) -> float:
        """The mean size of a batch, given that it is at most the capacity, over that of the table.

        With ``declared_records`` that is the chance of each row, and so of each record, however
        many of the rows hold one.
        """
        return _size_table(self.public_records, self.rate, self.capacity).mean / self.public_records

    @property
    def capacity(self) -> int:
        """``max_batch_size``, or one standard deviation above ``batch_size``."""
        num_rows = self.public_records
        if self.max_batch_size is not None:
            return min(self.max_batch_size, num_rows)
        mean, deviation = self.batch_size, math.sqrt(self.batch_size * (1 - self.rate))
        return min(num_rows, max(math.ceil(mean + deviation), math.floor(mean) + 1))

    def draw(self, key: Key) -> Batch:
        """Draws the size, then that many distinct indices, into uniformly random slots."""
        size_key, index_key = jax.random.split(key)
        # One draw for size and slots: a second one would compile the generator once more.
        words = jax.random.bits(size_key, (2, 1 + self.capacity), jnp.uint32)
        size = _size_table(self.public_records, self.rate, self.capacity).invert(words[:, 0])
        indices = _distinct(index_key, self.capacity, self.public_records)
        slots = _shuffled(words[:, 1:])
        indices, mask = indices[slots], slots < size
        if self.num_records == self.public_records:
            return Batch(indices, mask)
        is_held = indices < self.num_records
        return Batch(jnp.where(is_held, indices, 0), mask & is_held)

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Poisson-sampled Gaussian, conditioned on the capacity."""
        event = _gaussian(noise_multiplier)
        if self.capacity >= self.public_records:
            return dp_accounting.PoissonSampledDpEvent(self.rate, event)
        return ConditionedPoissonDpEvent(self.rate, self.public_records, self.capacity, event)


@dataclass(frozen=True, kw_only=True)
class FixedBatch:
    """Exactly ``batch_size`` distinct records, uniformly at random.

    One record more or less also moves another one in or out, so a fixed-size batch costs much
    more than a Poisson batch of the same expected size; prefer `PoissonBatch`.

    Example:
      >>> FixedBatch(num_records=100, batch_size=10).rate
      0.1
    """

    num_records: int
    batch_size: int

    def __post_init__(self) -> None:
        _check_num_records(self.num_records)
        _check.positive_integer(batch_size=self.batch_size)
        if self.batch_size > self.num_records:
            raise InvalidArgumentError(
                f"batch_size must be at most num_records={self.num_records}; got {self.batch_size}."
            )

    @property
    def public_records(self) -> int:
        """The number of records."""
        return self.num_records

    @property
    def rate(self) -> float:
        """The share of records in a batch."""
        return self.batch_size / self.num_records

    @property
    def inclusion_rate(self) -> float:
        """The same."""
        return self.rate

    @property
    def capacity(self) -> int:
        """The batch size."""
        return self.batch_size

    def draw(self, key: Key) -> Batch:
        """Draws distinct indices in uniform order."""
        indices = _distinct(key, self.batch_size, self.num_records)
        return Batch(indices, jnp.ones(self.batch_size, bool))

    def cost(self, noise_multiplier: float) -> DpEvent:
        """A Gaussian on a sample without replacement."""
        return dp_accounting.SampledWithoutReplacementDpEvent(
            self.num_records, self.batch_size, _gaussian(noise_multiplier)
        )


@dataclass(frozen=True)
class _SizeTable:
    """The law of a batch's size: of 2^64 equally likely words, ``counts[k]`` lead to size k."""

    counts: tuple[int, ...]

    @functools.cached_property
    def mean(self) -> float:
        """The mean size."""
        return sum(size * count for size, count in enumerate(self.counts)) / 2**64

    def invert(self, words: Array) -> Array:
        """Returns the size that a 64-bit word, given as its high and low half, leads to."""
        high, low = self._halves
        word_high, word_low = words
        below = (high < word_high) | ((high == word_high) & (low <= word_low))
        return jnp.sum(below, dtype=jnp.int32)

    @functools.cached_property
    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        # How many words lead to at most k; from the largest size that occurs on, all of them.
        totals = [total for total in itertools.accumulate(self.counts) if total < 2**64]
        high = np.array([total >> 32 for total in totals], np.uint32)
        return high, np.array([total & 0xFFFFFFFF for total in totals], np.uint32)


@functools.lru_cache(maxsize=64)
def _size_table(num_records: int, rate: float, capacity: int) -> _SizeTable:
    """Tabulates Binomial(num_records, rate) conditioned on being at most ``capacity``.

    Guarantee:
      With n records and rate q, the counts m_k of the sizes k sum to 2^64 and satisfy

          (k + 1) m_{k+1} (1 - q)  <=  (n - k) m_k q        exactly, for every k < capacity,

      with equality for the binomial. A given set of k records is drawn with chance m_k / (n over k)
      / 2^64. So, given the other records R in a batch, any record is in it with odds at most
      q / (1 - q), and so with chance at most q: the argument of `ConditionedPoissonDpEvent` is true
      of this table, and there is no rounding to be paid for. The total variation distance from the
      conditioned binomial is below (capacity + 2)^2 / 2^64; it matters for estimates only.

    All of it is integer arithmetic; a rate is a fraction of integers, as every double is. From the
    mode upwards counts follow the ratio of the binomial and are rounded down, from the mode
    downwards they are divided by it and rounded up, so that they satisfy the inequality. (Sizes
    that are too unlikely for 64 bits thus have a count of one below the mode and of none above.)
    What is left of 2^64 goes to size zero, which is in the inequality on its larger side only.
    """
    inside, whole = rate.as_integer_ratio()
    outside = whole - inside
    if outside == 0:  # everyone is drawn, and `PoissonBatch` has room for them
        return _SizeTable((0,) * capacity + (2**64,))
    mode = min(capacity, (num_records + 1) * inside // whole)

    def counts_from(top: int) -> list[int]:
        above, below = [top], [top]
        for k in range(mode, capacity):
            above.append(above[-1] * (num_records - k) * inside // ((k + 1) * outside))
        for k in range(mode - 1, -1, -1):
            below.append(-(-below[-1] * (k + 1) * outside // ((num_records - k) * inside)))
        return below[:0:-1] + above

    # The mode's share, from counts that are so large that their rounding is not seen.
    top = (2**64 << 160) // sum(counts_from(2**160))
    while sum(counts := counts_from(top)) > 2**64:
        top -= 1 + (sum(counts) - 2**64) * top // 2**64
    counts[0] += 2**64 - sum(counts)
    return _SizeTable(tuple(counts))


def _distinct(key: Key, num_indices: int, population: int) -> Array:
    """Draws a uniformly random ordered subset of ``range(population)``."""
    if population <= 4 * num_indices:
        words = jax.random.bits(key, (2, population), jnp.uint32)
        return _shuffled(words)[:num_indices]
    return _first_occurrences(key, num_indices, population)


def _shuffled(words: Array) -> Array:
    """Sorts indices by two random words each; ties have probability below n^2 / 2^65."""
    indices = jnp.arange(words.shape[1], dtype=jnp.int32)
    return lax.sort((words[0], words[1], indices), num_keys=2)[2]


def _uniform_indices(words: Array, population: int) -> Array:
    """Maps uint32[2, n] uniform words to int32[n], floor(population * u) for u of 64 bits.

    Of the 2^64 equally likely words floor(2^64 / population) or one more lead to each index.
    """
    high, low = words
    top, middle = _product(high, population)
    carried, _ = _product(low, population)
    total = middle + carried
    return (top + (total < carried)).astype(jnp.int32)


def _product(word: Array, factor: int) -> tuple[Array, Array]:
    """The high and low words of a 32-bit word times a number below 2^31, from 16-bit halves."""
    low_factor, high_factor = jnp.uint32(factor & 0xFFFF), jnp.uint32(factor >> 16)
    low, high = word & 0xFFFF, word >> 16
    crossed = high * low_factor + (low * low_factor >> 16)
    other = low * high_factor + (crossed & 0xFFFF)
    return high * high_factor + (crossed >> 16) + (other >> 16), word * jnp.uint32(factor)


def _first_occurrences(key: Key, num_indices: int, population: int) -> Array:
    """Keeps the first occurrences in a stream of independent uniform indices."""
    # The number of collisions is about Poisson with this mean, since num_indices is at most a
    # quarter of the population; beyond eight standard deviations the loop draws again.
    collisions = num_indices**2 / (2 * population) * 1.3
    num_drawn = num_indices + math.ceil(collisions + 8 * math.sqrt(collisions)) + 8

    def attempt(key: Key) -> tuple[Array, Array]:
        drawn = _uniform_indices(jax.random.bits(key, (2, num_drawn), jnp.uint32), population)
        kept = _first_positions(drawn, population)[:num_indices]
        return drawn.at[kept].get(mode="clip"), kept[-1] < num_drawn

    def unfinished(carry: tuple[Key, Array, Array]) -> Array:
        return ~carry[2]

    def again(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, subkey = jax.random.split(carry[0])
        return key, *attempt(subkey)

    start = (key, jnp.zeros(num_indices, jnp.int32), jnp.zeros((), bool))
    return lax.while_loop(unfinished, again, start)[1]


def _first_positions(drawn: Array, population: int) -> Array:
    """Returns in order where an index occurs for the first time, then the length as often as not.

    Sorting one array of numbers is twice as fast as sorting pairs or scattering, so index and
    position share a word where they fit.
    """
    length = drawn.shape[0]
    position_bits = (length - 1).bit_length()
    if int(population - 1).bit_length() + position_bits <= 32:
        position = jnp.arange(length, dtype=jnp.uint32)
        packed = lax.sort(drawn.astype(jnp.uint32) << position_bits | position)
        ordered, position = packed >> position_bits, packed & (2**position_bits - 1)
    else:
        position = jnp.arange(length, dtype=jnp.int32)
        ordered, position = lax.sort((drawn, position), num_keys=2)
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    return lax.sort(jnp.where(is_first, position, length).astype(jnp.int32))
