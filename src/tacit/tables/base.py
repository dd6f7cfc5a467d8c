"""What a release asks of a table: rows of a drawn batch, wherever the records are.

A sum over shards ends in an all-reduce, which is a reduce-scatter and an all-gather. Between the
two each device holds one slice of the whole sum and nobody holds all of it: that is where noise is
added, to each number once, by the one device that holds it.

Drawn indices are global, and the batch is the same whoever holds the records. So is the cost: a
table decides where a record is read and summed, never whether.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from scipy import stats

from tacit import _tree
from tacit.typing import Array, Key, Record, Tree

__all__ = [
    "RECORDS",
    "Batch",
    "ClippedSum",
    "Division",
    "InMemory",
    "Keys",
    "Scattered",
    "Shard",
    "Summing",
    "Table",
    "as_summing",
    "as_table",
    "drawn_batch",
    "in_random_slots",
    "in_rows",
    "out_of_rows",
    "room_in_shard",
    "scattered_sum",
    "shape_of_sum",
    "sum_of_rows",
]

RECORDS = "records"
"""The axis of a mesh over which a table is spread."""

_NUM_ROWS = 2
"""Noise is made in pairs, so the numbers of a sum are laid out in two rows."""


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """A device's slice of a sum, on each device of the axis another.

    Attributes:
      own: the slice, ``(num_limbs, 2, length)``: some columns of the sum's numbers, which are laid
        out row after row and filled up to a multiple of the number of devices.
      size: how many numbers the whole sum has.
    """

    own: Array
    size: int

    @property
    def first_column(self) -> Array:
        """Of this device's slice."""
        return lax.axis_index(RECORDS) * self.own.shape[-1]

    def with_own(self, own: Array) -> "Scattered":
        """Returns the sum with this slice for its own."""
        return replace(self, own=own)

    def gathered(self) -> Array:
        """Returns the sum, ``(num_limbs, size)``, whole on every device."""
        whole = lax.all_gather(self.own, RECORDS, axis=-1, tiled=True)
        return out_of_rows(whole, self.size)


def in_rows(total: Array) -> Array:
    """Lays out ``(num_limbs, size)`` numbers as ``(num_limbs, 2, num_columns)``."""
    num_limbs, size = total.shape
    return jnp.pad(total, ((0, 0), (0, -size % _NUM_ROWS))).reshape(num_limbs, _NUM_ROWS, -1)


def out_of_rows(rows: Array, size: int) -> Array:
    """Returns what `in_rows` laid out; further columns are ignored."""
    return rows[..., : -(-size // _NUM_ROWS)].reshape(len(rows), -1)[:, :size]


def scattered_sum(part: Array) -> Scattered:
    """Returns the sum of all devices' parts; to be called inside of a map over the axis."""
    rows = in_rows(part)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[-1] % lax.axis_size(RECORDS))))
    own = lax.psum_scatter(rows, RECORDS, scatter_dimension=2, tiled=True)
    return Scattered(own=own, size=part.shape[1])


ClippedSum: TypeAlias = Callable[[Tree, Key, Array], Array]
"""A function of rows, their keys and a mask: the clipped sum of all rows, ``(num_limbs, size)``."""


class Batch(NamedTuple):
    """Global indices of drawn records, by slot; where ``mask`` is False the index is padding."""

    indices: Array
    mask: Array


class Keys(NamedTuple):
    """The keys of a release that a table needs.

    Attributes:
      record: gives each record a key of its own, by the record's index; may be known.
      slots: decides where records lie that a shard owns; secret, and fresh for each release.
    """

    record: Key
    slots: Key


@runtime_checkable
class Table(Protocol):
    """Records, one for each unit of privacy, somewhere."""

    @property
    def num_records(self) -> int:
        """How many there are."""
        ...

    @property
    def record(self) -> Tree:
        """The shapes and dtypes of one record."""
        ...


@runtime_checkable
class Summing(Table, Protocol):
    """A table, or a part of one, that a device can sum over."""

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Array | Scattered, Array]:
        """Returns the sum over a batch, and whether it is the sum over that batch.

        Args:
          batch: what was drawn, by `drawn_batch`.
          keys: of this release.
          clipped_sum: of rows.
          rate: the chance that a given record is drawn; decides room, never the result.
        """
        ...


class InMemory(NamedTuple):
    """A tree of arrays with one row for each record."""

    rows: Tree

    @property
    def num_records(self) -> int:
        """The length of the leading axis."""
        return _tree.num_records(self.rows)

    @property
    def record(self) -> Tree:
        """The shapes of one row."""
        return _tree.row_shapes(self.rows)

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Array | Scattered, Array]:
        """Gathers the batch and sums it."""
        del rate
        rows = _tree.take(self.rows, batch.indices)
        return sum_of_rows(rows, batch, keys, clipped_sum), jnp.ones((), bool)


def as_table(data: Any) -> Table:
    """Returns the table that data are; a tree of arrays is one in memory."""
    return data if isinstance(data, Table) else InMemory(data)


def as_summing(data: Any) -> Summing:
    """Returns the table that data are, to sum over."""
    return data if isinstance(data, Summing) else InMemory(data)


def sum_of_rows(rows: Tree, batch: Batch, keys: Keys, clipped_sum: ClippedSum) -> Array:
    """Returns the sum over rows that are at hand, in the order of the batch."""
    # A record's key follows its index, so that padding, batching and sharding never change it.
    own = jax.vmap(lambda index: jax.random.fold_in(keys.record, index))(batch.indices)
    return clipped_sum(rows, own, batch.mask)


def shape_of_sum(
    record: Tree, num_rows: int, key: Key, clipped_sum: ClippedSum
) -> jax.ShapeDtypeStruct:
    """Returns the shape of the sum over so many rows."""

    def several(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((num_rows, *leaf.shape), leaf.dtype)

    keys = jax.ShapeDtypeStruct((num_rows,), key.dtype)
    mask = jax.ShapeDtypeStruct((num_rows,), bool)
    found: jax.ShapeDtypeStruct = jax.eval_shape(
        clipped_sum, jax.tree.map(several, record), keys, mask
    )
    return found


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
