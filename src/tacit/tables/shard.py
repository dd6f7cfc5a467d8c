"""One shard of a table, as the device sees it that works on it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import lax

from tacit.tables.base import Batch, ClippedSum, shapes_of_sum, sum_of_rows
from tacit.tables.room import room_in_shard
from tacit.tables.scattered import RECORDS, Scattered, scattered_sum
from tacit.typing import Array, Key, Record, Tree

__all__ = ["Shard"]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A run of consecutive records, one of several equal ones that make up a table.

    Guarantee:
      Each record of a batch is in the sum over all shards once. A shard that owns more of a batch
      than it has room for takes another turn, so sharding leaves no record out: a release on shards
      is the same mechanism as without them, at the same cost. (Once in a thousand million draws and
      shards the time of a step tells that some shard owned unusually much of a batch; it tells
      nothing of what the records say.)

    Attributes:
      fetch: returns the rows at these places of this shard.
      rows: all of its rows, where they are on the device.
      length: how many places it has.
      record: the shapes of one record.
      num_records: how many records there are in the whole table.
    """

    fetch: Callable[[Array], Record]
    rows: Record | None
    length: int
    record: Record
    num_records: int

    @property
    def first(self) -> Array:
        """The number of the shard's first record."""
        return lax.axis_index(RECORDS) * self.length

    def clipped_sum(
        self, batch: Batch, key: Key, clipped_sum: ClippedSum, *, rate: float
    ) -> Scattered:
        """Sums what the shard owns of the batch; see `Summing`."""
        if rate >= 1:
            return scattered_sum(self._whole_sum(key, clipped_sum))
        capacity = len(batch.indices)
        room = min(room_in_shard(self.length, rate), capacity)
        is_own = batch.mask & (batch.indices // self.length == lax.axis_index(RECORDS))
        # Places in the batch, in its order; at the end the batch's length, which is nobody's.
        places = jnp.nonzero(is_own, size=-(-capacity // room) * room, fill_value=capacity)[0]

        def add_turn(turn: Array, total: Tree) -> Tree:
            here = lax.dynamic_slice(places, (turn * room,), (room,))
            owned = Batch(batch.indices.at[here].get(mode="clip"), here < capacity)
            rows = self.fetch(jnp.where(owned.mask, owned.indices - self.first, 0))
            return jax.tree.map(jnp.add, total, sum_of_rows(rows, owned, key, clipped_sum))

        num_turns = jnp.maximum(1, -(-jnp.sum(is_own) // room))
        shapes = shapes_of_sum(self.record, room, key, clipped_sum)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return scattered_sum(lax.fori_loop(0, num_turns, add_turn, nothing))

    def _whole_sum(self, key: Key, clipped_sum: ClippedSum) -> Tree:
        """Sums all records of the shard, without looking at what was drawn: that is all of them."""
        places = jnp.arange(self.length)
        owned = Batch(self.first + places, self.first + places < self.num_records)
        rows = self.fetch(places) if self.rows is None else self.rows
        return sum_of_rows(rows, owned, key, clipped_sum)
