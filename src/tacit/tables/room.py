"""How much of a batch a shard has room for, and batches that fit."""

import functools
import math
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import stats

from tacit.tables.base import Batch
from tacit.tables.scattered import RECORDS
from tacit.typing import Array, Key

__all__ = ["Division", "drawn_batch", "in_random_slots", "room_in_shard"]

_TOO_SMALL = 2.0**-64
"""The chance that a batch is drawn again: what the sampler's own 64 bits resolve."""


class Division(NamedTuple):
    """How a table is cut into shards of consecutive records.

    Attributes:
      rows_in_shard: how many records a shard owns, in order; the last one perhaps fewer.
      num_shards: how many there are.
    """

    rows_in_shard: int
    num_shards: int


class _Sampling(Protocol):
    @property
    def rate(self) -> float: ...

    def draw(self, key: Key) -> Batch: ...


@functools.lru_cache(maxsize=64)
def room_in_shard(num_rows: int, rate: float) -> int:
    """Returns the least number of rows that a shard owns more than of a batch once in 2**64 draws.

    Args:
      num_rows: of the shard.
      rate: the chance that a given record is drawn.

    Example:
      >>> room_in_shard(15_000, 256 / 60_000)
      149
    """
    if rate >= 1:
        return num_rows
    mean = num_rows * rate
    # Bernstein's inequality: beyond this reach lies less than 2^-64.
    counts = np.arange(max(1, math.floor(mean)), math.ceil(mean + math.sqrt(90 * mean) + 32))
    is_enough = stats.binom.sf(counts, num_rows, rate) <= _TOO_SMALL
    return min(num_rows, int(counts[np.argmax(is_enough)]))


def drawn_batch(sampling: _Sampling, key: Key, table: Any) -> Batch:
    """Draws a batch of which every shard of the table has room for its own.

    Guarantee:
      A batch that does not fit is drawn again, as a whole, which happens once in 2**64 draws (or
      less often, where the size of a batch is bounded as well). The draw ignores what records hold.
      Given the other records of a batch, a record is either drawn with the odds that it has without
      shards, or, where its shard is full, not at all: sharding only takes from what a batch tells.

    Args:
      sampling: what draws.
      key: used up by this call.
      table: its ``division`` is None where nobody shares it.
    """
    division: Division | None = getattr(table, "division", None)
    if division is None or sampling.rate >= 1:
        return sampling.draw(key)
    room = room_in_shard(division.rows_in_shard, sampling.rate)

    def fits(batch: Batch) -> Array:
        owner = jnp.where(batch.mask, batch.indices // division.rows_in_shard, division.num_shards)
        shards = jnp.arange(division.num_shards)
        return jnp.all(jnp.sum(owner == shards[:, None], axis=1) <= room)

    def again(carry: tuple[Array, Batch, Array]) -> tuple[Array, Batch, Array]:
        attempt = carry[0] + 1
        batch = sampling.draw(jax.random.fold_in(key, attempt))
        return attempt, batch, fits(batch)

    first = sampling.draw(key)
    start = (jnp.zeros((), jnp.int32), first, fits(first))
    return lax.while_loop(lambda carry: ~carry[2], again, start)[1]


def in_random_slots(key: Key, num_slots: int) -> Array:
    """Returns a random order of a shard's slots; each shard has its own.

    What a shard owns of a batch is listed one after the other. In this order it lies in a uniformly
    random injection into the slots; in order, a record that is drawn would move those behind it.
    """
    own = jax.random.fold_in(key, lax.axis_index(RECORDS))
    return jax.random.permutation(own, num_slots)
