"""Tables: what a release asks of one, wherever its records are.

A release draws a batch, asks the table for its rows (`Table.gather`), clips and sums them itself,
and adds up what the devices that share the table have found (`sum_over_devices`). Drawn indices are
global, and the batch is the same whoever holds the records. So is the cost: a table decides where a
record is read, never whether.

A sum over devices ends in an all-reduce, which is a reduce-scatter and an all-gather. Between the
two each device holds one slice of the whole sum and nobody holds all of it: that is where noise is
added, to each number once, by the one device that holds it.
"""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from scipy import stats

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Key, Tree

__all__ = [
    "RECORDS",
    "Batch",
    "Division",
    "Gathered",
    "InMemory",
    "Slice",
    "Table",
    "as_table",
    "drawn_batch",
    "in_random_slots",
    "own_batch",
    "room_in_shard",
    "sum_over_devices",
    "table_of",
]

RECORDS = "records"
"""The axis of a mesh over which a table is spread."""

_NUM_ROWS = 2
"""Noise is made in pairs, so the numbers of a sum are laid out in two rows."""


class Batch(NamedTuple):
    """Global indices of drawn records, by slot; where ``mask`` is False the index is padding."""

    indices: Array
    mask: Array


class Gathered(NamedTuple):
    """The rows of a batch that this device is to sum.

    Attributes:
      rows: one for each slot.
      batch: the index of each row, and which of them are no padding.
      is_known: whether these are the rows of the batch that was asked for.
    """

    rows: Tree
    batch: Batch
    is_known: Array | bool = True


class Division(NamedTuple):
    """How a table is cut into shards of consecutive records.

    Attributes:
      rows_in_shard: how many records a shard owns, in order; the last one perhaps fewer.
      num_shards: how many there are.
    """

    rows_in_shard: int
    num_shards: int

    @classmethod
    def among(cls, mesh: Mesh | None, num_records: int) -> "Division | None":
        """Returns how so many records are cut among the devices of a mesh; None without one."""
        if mesh is None:
            return None
        num_shards = int(mesh.shape[RECORDS])
        return cls(-(-num_records // num_shards), num_shards)


@runtime_checkable
class Table(Protocol):
    """Records, one for each unit of privacy: in memory, on devices or on disk."""

    @property
    def num_records(self) -> int:
        """How many there are."""
        ...

    @property
    def record(self) -> Tree:
        """The shapes and dtypes of one record."""
        ...

    @property
    def mesh(self) -> Mesh | None:
        """The devices that share it, each with a part of each batch; None for one device."""
        ...

    @property
    def division(self) -> Division | None:
        """How it is cut into shards; None where it is not."""
        ...

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Returns the rows of a batch; those that this device owns, where several share the table.

        To be called inside of `on_table`.

        Args:
          batch: what was drawn, by `drawn_batch`.
          slots_key: decides where records lie that a shard owns; secret, fresh for each release.
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

    @property
    def mesh(self) -> None:
        """None: one device has all rows."""
        return

    @property
    def division(self) -> None:
        """None: it is not cut."""
        return

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Takes the rows of the batch, in its order."""
        del slots_key, rate
        return Gathered(_tree.take(self.rows, batch.indices), batch)


def as_table(data: Any) -> Table:
    """Returns the table that data are; a tree of arrays is one in memory."""
    return data if isinstance(data, Table) else InMemory(data)


def table_of(data: Any, *, num_records: int) -> Table:
    """Returns the table that data are, or raises unless it has as many rows as configured."""
    table = as_table(data)
    try:
        found = table.num_records
    except ValueError as error:
        raise InvalidArgumentError(f"data must have one row for each record: {error}") from None
    if found != num_records:
        raise InvalidArgumentError(
            f"data has {found} records but the sampling was configured with"
            f" num_records={num_records}. The rate, and so the cost, would be wrong."
        )
    return table


@dataclass(frozen=True, kw_only=True)
class Slice:
    """A device's slice of a sum: all of it where one works alone, else on each device another.

    Attributes:
      own: the slice, ``(num_limbs, 2, length)``: some columns of the sum's numbers, which are laid
        out row after row and filled up to a multiple of the number of devices.
      size: how many numbers the whole sum has.
      is_shared: whether the devices of the axis "records" have a slice each.
    """

    own: Array
    size: int
    is_shared: bool

    @property
    def num_columns(self) -> int:
        """Of the whole sum."""
        return -(-self.size // _NUM_ROWS)

    @property
    def first_column(self) -> Array | int:
        """Of this device's slice."""
        return lax.axis_index(RECORDS) * self.own.shape[-1] if self.is_shared else 0

    def with_own(self, own: Array) -> "Slice":
        """Returns the sum with this slice for its own."""
        return replace(self, own=own)

    def gathered(self) -> Array:
        """Returns the sum, ``(num_limbs, size)``, whole on every device."""
        rows = self.own
        if self.is_shared:
            rows = lax.all_gather(rows, RECORDS, axis=-1, tiled=True)
        return rows[..., : self.num_columns].reshape(len(rows), -1)[:, : self.size]


def sum_over_devices(part: Array, mesh: Mesh | None) -> Slice:
    """Returns the sum of the parts of all devices that share a table.

    Args:
      part: what this device has summed, ``(num_limbs, size)``.
      mesh: of the table; None where this device works alone, and its part is the sum.
    """
    num_limbs, size = part.shape
    padded = jnp.pad(part, ((0, 0), (0, -size % _NUM_ROWS)))
    rows = padded.reshape(num_limbs, _NUM_ROWS, -1)
    if mesh is not None:
        rows = jnp.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[-1] % lax.axis_size(RECORDS))))
        rows = lax.psum_scatter(rows, RECORDS, scatter_dimension=2, tiled=True)
    return Slice(own=rows, size=size, is_shared=mesh is not None)


_TOO_SMALL = 2.0**-64
"""The chance that a batch is drawn again: what the sampler's own 64 bits resolve."""


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


def drawn_batch(sampling: _Sampling, key: Key, division: Division | None) -> Batch:
    """Draws a batch of which every shard of a table has room for its own.

    Guarantee:
      A batch that does not fit is drawn again, as a whole, which happens once in 2**64 draws (or
      less often, where the size of a batch is bounded as well). The draw ignores what records hold.
      Given the other records of a batch, a record is either drawn with the odds that it has without
      shards, or, where its shard is full, not at all: sharding only takes from what a batch tells.

    Args:
      sampling: what draws.
      key: used up by this call.
      division: how the table is cut into shards.
    """
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


def own_batch(
    batch: Batch, slots_key: Key, *, division: Division, num_records: int, rate: float
) -> Batch:
    """Returns what this device's shard owns of a batch; to be called inside of `on_table`.

    Guarantee:
      Each record of a batch is in the own batch of one shard: `drawn_batch` draws no batch of which
      a shard owns more than it has room for. What a shard owns lies in a uniformly random injection
      into the slots of its room, so a record moves nobody else, and one record moves the sum as
      little as in a table that is not shared. A full batch is all records of the shard, in order,
      without a look at what was drawn: that is all of them.

    Args:
      batch: what was drawn, by `drawn_batch`.
      slots_key: decides the slots; secret.
      division: how the table is cut into shards.
      num_records: how many records there are in the whole table.
      rate: the chance that a given record is drawn.
    """
    shard, length = lax.axis_index(RECORDS), division.rows_in_shard
    if rate >= 1:
        indices = shard * length + jnp.arange(length)
        return Batch(indices, indices < num_records)
    capacity = len(batch.indices)
    room = min(room_in_shard(length, rate), capacity)
    is_own = batch.mask & (batch.indices // length == shard)
    # Places in the batch, in its order; at the end the batch's length, which is nobody's.
    places = jnp.nonzero(is_own, size=room, fill_value=capacity)[0]
    places = places[in_random_slots(slots_key, room)]
    return Batch(batch.indices.at[places].get(mode="clip"), places < capacity)


def in_random_slots(key: Key, num_slots: int) -> Array:
    """Returns a random order of a shard's slots; each shard has its own.

    What a shard owns of a batch is listed one after the other. In this order it lies in a uniformly
    random injection into the slots; in order, a record that is drawn would move those behind it.
    """
    own = jax.random.fold_in(key, lax.axis_index(RECORDS))
    return jax.random.permutation(own, num_slots)
