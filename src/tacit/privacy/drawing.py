"""Drawing: sizes and distinct indices of batches, exact to 64 random bits.

* The size of a Poisson batch is binomial, conditioned on being at most the capacity. It comes from
  a 64-bit inverse distribution table that is computed once from public numbers, in integers, and
  rounded so that the cost holds for the rounded table (`size_table` has the proof).
* A uniform index is the whole part of num_records times a 64-bit fraction. No index is more
  likely than another by more than 2^-33 of its chance. (Remainders of 32 bits, which
  ``jax.random.randint`` takes, favour some records by up to one half.)
* Distinct indices come from a stream of independent uniform ones by keeping first occurrences.
  Relabelling the records does not change which positions of the stream collide, so the kept
  indices are a uniformly random ordered subset, also when a draw with too many collisions is
  thrown away and repeated. Nothing rests on a block cipher having enough rounds.
"""

import functools
import itertools
import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import native
from tacit.typing import Array, Key

__all__ = [
    "SizeTable",
    "distinct_indices",
    "first_occurrences",
    "first_of_each",
    "shuffled",
    "size_table",
    "uniform_indices",
]


@dataclass(frozen=True)
class SizeTable:
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
def size_table(num_records: int, rate: float, capacity: int) -> SizeTable:
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
    # NumPy's integers would overflow below, or wrap around.
    num_records, capacity = int(num_records), int(capacity)
    inside, whole = float(rate).as_integer_ratio()
    outside = whole - inside
    if outside == 0:  # everyone is drawn, and `PoissonBatch` has room for them
        return SizeTable((0,) * capacity + (2**64,))
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
    return SizeTable(tuple(counts))


def distinct_indices(key: Key, num_indices: int, population: int) -> Array:
    """Draws a uniformly random ordered subset of ``range(population)``."""
    if population <= 4 * num_indices:
        words = jax.random.bits(key, (2, population), jnp.uint32)
        return shuffled(words)[:num_indices]
    return first_occurrences(key, num_indices, population)


def shuffled(words: Array) -> Array:
    """Sorts indices by two random words each; ties have probability below n^2 / 2^65."""
    num = words.shape[1]
    if not native.is_loaded():
        return _shuffled_in_jax(words)
    return native.call(
        "tacit_ordered",
        _shuffled_in_jax,
        words,
        results=(((num,), jnp.int32),),
        attributes={"length": num},
        static={},
    )[0]


def _shuffled_in_jax(words: Array) -> Array:
    indices = jnp.arange(words.shape[1], dtype=jnp.int32)
    return lax.sort((words[0], words[1], indices), num_keys=2)[2]


def uniform_indices(words: Array, population: int) -> Array:
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


def first_occurrences(key: Key, num_indices: int, population: int) -> Array:
    """Keeps the first occurrences in a stream of independent uniform indices."""
    # The number of collisions is about Poisson with this mean, since num_indices is at most a
    # quarter of the population; beyond eight standard deviations the loop draws again.
    collisions = num_indices**2 / (2 * population) * 1.3
    num_drawn = num_indices + math.ceil(collisions + 8 * math.sqrt(collisions)) + 8

    def attempt(key: Key) -> tuple[Array, Array]:
        drawn = uniform_indices(jax.random.bits(key, (2, num_drawn), jnp.uint32), population)
        return first_of_each(drawn, num_indices=num_indices, population=population)

    def unfinished(carry: tuple[Key, Array, Array]) -> Array:
        return ~carry[2]

    def again(carry: tuple[Key, Array, Array]) -> tuple[Key, Array, Array]:
        key, subkey = jax.random.split(carry[0])
        return key, *attempt(subkey)

    start = (key, jnp.zeros(num_indices, jnp.int32), jnp.zeros((), bool))
    return lax.while_loop(unfinished, again, start)[1]


def first_of_each(drawn: Array, *, num_indices: int, population: int) -> tuple[Array, Array]:
    """Returns the first of equal indices, in order, and whether there are as many as wanted."""
    if not native.is_loaded():
        return _first_of_each(drawn, num_indices=num_indices, population=population)
    kept, is_enough = native.call(
        "tacit_firsts",
        _first_of_each,
        drawn,
        results=(((num_indices,), jnp.int32), ((), jnp.bool_)),
        attributes={},
        static={"num_indices": num_indices, "population": population},
    )
    return kept, is_enough


def _first_of_each(drawn: Array, *, num_indices: int, population: int) -> tuple[Array, Array]:
    kept = _first_positions(drawn, population)[:num_indices]
    return drawn.at[kept].get(mode="clip"), kept[-1] < drawn.shape[0]


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
