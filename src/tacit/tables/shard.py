"""One shard of a table, as the device sees it that works on it."""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
from jax import lax

from tacit.tables.base import Batch, ClippedSum, Keys, sum_of_rows
from tacit.tables.room import Division, in_random_slots, room_in_shard
from tacit.tables.scattered import RECORDS, Scattered, scattered_sum
from tacit.typing import Array, Record

__all__ = ["Shard"]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A run of consecutive records, one of several equal ones that make up a table.

    Guarantee:
      Each record of a batch is in the sum over all shards once: `drawn_batch` draws no batch of
      which a shard owns more than it has room for. What a shard owns lies in a uniformly random
      injection into the slots of its room, so a record moves nobody else, and one record
      moves the sum as little as in a table that is not shared.

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

    @property
    def division(self) -> Division:
        """How the whole table is cut."""
        return Division(self.length, lax.axis_size(RECORDS))

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Scattered, Array]:
        """Sums what the shard owns of the batch; see `Summing`."""
        if rate >= 1:
            return scattered_sum(self._whole_sum(keys, clipped_sum)), jnp.ones((), bool)
        capacity = len(batch.indices)
        room = min(room_in_shard(self.length, rate), capacity)
        is_own = batch.mask & (batch.indices // self.length == lax.axis_index(RECORDS))
        # Places in the batch, in its order; at the end the batch's length, which is nobody's.
        places = jnp.nonzero(is_own, size=room, fill_value=capacity)[0]
        places = places[in_random_slots(keys.slots, room)]
        owned = Batch(batch.indices.at[places].get(mode="clip"), places < capacity)
        rows = self.fetch(jnp.where(owned.mask, owned.indices - self.first, 0))
        return scattered_sum(sum_of_rows(rows, owned, keys, clipped_sum)), jnp.ones((), bool)

    def _whole_sum(self, keys: Keys, clipped_sum: ClippedSum) -> Array:
        """Sums all records of the shard, without looking at what was drawn: that is all of them."""
        places = jnp.arange(self.length)
        owned = Batch(self.first + places, self.first + places < self.num_records)
        rows = self.fetch(places) if self.rows is None else self.rows
        return sum_of_rows(rows, owned, keys, clipped_sum)
