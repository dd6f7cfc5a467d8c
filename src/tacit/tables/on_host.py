"""Tables that stay on the host, and batches that are fetched before the steps that draw them."""

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeAlias, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import get_opaque_trace_state
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from tacit import _tree
from tacit.tables.base import (
    RECORDS,
    Batch,
    Division,
    Gathered,
    in_random_slots,
    own_batch,
    room_in_shard,
)
from tacit.tables.distributed import Distributed, device_mesh, everywhere, for_records
from tacit.typing import Array, Key, Record

__all__ = [
    "DrawnInLoopError",
    "Fetched",
    "FetchedStep",
    "OnHost",
    "Recorder",
    "RowSource",
    "distribute",
    "fetch",
]


class RowSource(Protocol):
    """Rows on the host, read by number."""

    @property
    def num_records(self) -> int:
        """How many records there are."""
        ...

    @property
    def record(self) -> Record:
        """The shapes and dtypes of one record."""
        ...

    def read(self, indices: NDArray[np.integer[Any]]) -> Record:
        """Returns the records of these numbers, in this order, as arrays of NumPy.

        It costs what these records cost, however many there are, and may be called by several
        threads.
        """
        ...


_Static: TypeAlias = tuple["weakref.ref[RowSource]", Mesh | None, bool]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class OnHost:
    """A table of which only drawn records ever come to a device.

    `fit` reads the records of many steps ahead (`Fetched`). Elsewhere, and for methods that
    draw inside of a loop, rows are read when they are asked for, while the device waits.

    Guarantee:
      A sum over a batch is that of the whole table in memory, up to the order of summation. Which
      rows are read tells who was drawn, and a cost that counts on sampling counts on nobody knowing
      that: whoever serves the rows (a file server, a data base) must be trusted like the process.

    Attributes:
      source: where the rows are; two tables are the same where their sources are. It is of a class
        whose objects can be referenced weakly, as those of most can.
      mesh: devices with an axis "records" among which the work is shared; None for one device. With
        several processes each reads what its own devices own.
      is_part: whether it is seen by one of them, which then reads what it owns.
    """

    source: RowSource
    mesh: Mesh | None = field(default=None, repr=False)
    is_part: bool = field(default=False, repr=False)

    def tree_flatten(self) -> tuple[tuple[()], _Static]:
        """Tells JAX that a table has no leaves, and which one it is."""
        # JAX keeps what programs were traced for. It should not keep tables and their files.
        return (), (weakref.ref(self.source), self.mesh, self.is_part)

    @classmethod
    def tree_unflatten(cls, static: _Static, leaves: tuple[()]) -> "OnHost":
        """Returns the table again, which somebody else must still hold."""
        del leaves
        reference, mesh, is_part = static
        source = reference()
        assert source is not None
        return cls(source, mesh, is_part)

    @property
    def num_records(self) -> int:
        """How many records there are."""
        return self.source.num_records

    @property
    def record(self) -> Record:
        """The shapes of one record."""
        return self.source.record

    @property
    def division(self) -> Division | None:
        """How devices share the work; None for one device."""
        return Division.among(self.mesh, self.num_records)

    @property
    def specs(self) -> "OnHost":
        """Nothing of it is on a device."""
        return self

    def part(self) -> "OnHost":
        """Returns the table as a device sees it inside of `on_table`."""
        return replace(self, is_part=True)

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Reads the rows of the batch, or those that this device owns of it; see `Table`."""
        division = self.division
        if division is None:
            return Gathered(self._read(batch.indices), batch)
        assert self.is_part
        own = own_batch(
            batch, slots_key, division=division, num_records=self.num_records, rate=rate
        )
        # In the place of no record stands the shard's first, or the last of the table.
        first = lax.axis_index(RECORDS) * division.rows_in_shard
        numbers = jnp.minimum(jnp.where(own.mask, own.indices, first), self.num_records - 1)
        return Gathered(self._read(numbers), own)

    def _read(self, indices: Array) -> Record:
        def several(leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((len(indices), *leaf.shape), leaf.dtype)

        reference = weakref.ref(self.source)  # as in `tree_flatten`

        def read(numbers: Array) -> Record:
            source = reference()
            assert source is not None
            return source.read(np.asarray(numbers))

        found: Record = jax.pure_callback(
            read,
            jax.tree.map(several, self.record),
            indices,
            vmap_method="sequential",
        )
        return found


class DrawnInLoopError(Exception):
    """A step draws inside of a loop or a branch, so what it draws cannot be told beforehand."""


class Recorder:
    """A table that notes which batches it is asked for, and has rows of zeros only.

    Batches are drawn from keys and never from states or records, so a step that runs on this table
    tells what it would draw; the compiler leaves out all else.
    """

    def __init__(self, table: OnHost) -> None:
        self.num_records, self.record = table.num_records, table.record
        self.mesh, self.division = None, table.division
        self.batches: list[Batch] = []
        self.rates: list[float] = []
        self._trace = get_opaque_trace_state()

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Notes the batch."""
        del slots_key
        if get_opaque_trace_state() != self._trace:
            raise DrawnInLoopError
        self.batches.append(batch)
        self.rates.append(rate)
        num_rows = len(batch.indices)
        rows = jax.tree.map(
            lambda leaf: jnp.zeros((num_rows, *leaf.shape), leaf.dtype), self.record
        )
        return Gathered(rows, batch)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "places", "rows"],
    meta_fields=["num_records", "mesh"],
)
@dataclass(frozen=True, kw_only=True)
class FetchedStep:
    """The batches of one step, which looks them up by what it draws itself.

    Guarantee:
      A sum over a batch that was fetched is that of the whole table in memory, up to the order of
      summation. Of any other batch it says so, and the release is NaN: no record is ever taken for
      another.

    Attributes:
      indices: of each batch, ``(num_batches, capacity)``.
      places: where in its batch each row belongs, ``(num_batches, num_rows)``; ``capacity`` for a
        row that belongs nowhere.
      rows: the records, ``(num_batches, num_rows, ...)``.
      num_records: how many records there are in the table.
      mesh: whose devices hold the rows, each its own; None for one device.
    """

    indices: Array = field(repr=False)  # never shown: who was drawn is secret, and rows are private
    places: Array = field(repr=False)
    rows: Record = field(repr=False)
    num_records: int
    mesh: Mesh | None = field(repr=False)

    @property
    def record(self) -> Record:
        """The shapes of one record."""
        found: Record = _tree.row_shapes(_tree.row_shapes(self.rows))
        return found

    @property
    def division(self) -> Division | None:
        """How devices share the table; None for one device."""
        return Division.among(self.mesh, self.num_records)

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Finds the batch and returns its rows."""
        is_it = jnp.all(self.indices == batch.indices, axis=1)
        rows, places = jax.tree.map(lambda leaf: leaf[jnp.argmax(is_it)], (self.rows, self.places))
        if self.mesh is not None and rate < 1:
            # The host lists what a shard owns one after the other.
            slots = in_random_slots(slots_key, places.shape[0])
            rows, places = _tree.take(rows, slots), places[slots]
        own = Batch(
            batch.indices.at[places].get(mode="clip"),
            batch.mask.at[places].get(mode="fill", fill_value=False),
        )
        return Gathered(rows, own, jnp.any(is_it))


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["batches", "first_step"],
    meta_fields=["is_part"],
)
@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The batches of a chunk of steps of all chains.

    Attributes:
      batches: with two axes before all others, chains and steps.
      first_step: the number of the first of these steps.
      is_part: whether they are seen by a device, which then holds its own rows.
    """

    batches: FetchedStep
    first_step: Array
    is_part: bool = False

    @property
    def mesh(self) -> Mesh | None:
        """Whose devices hold the rows."""
        return self.batches.mesh

    @property
    def specs(self) -> "Fetched":
        """How the leaves are cut among the devices of the mesh."""
        rows: Any = P(None, None, None, RECORDS)
        batches = replace(self.batches, indices=P(), places=rows, rows=rows)  # type: ignore[arg-type]
        return replace(self, batches=batches, first_step=P())  # type: ignore[arg-type]

    def part(self) -> "Fetched":
        """Returns the batches as a device sees them inside of `on_table`."""
        return replace(self, is_part=True)

    def at(self, chain: Array, step: Array) -> FetchedStep:
        """Returns the batches of one step of one chain."""
        found: FetchedStep = jax.tree.map(
            lambda leaf: leaf[chain, step - self.first_step], self.batches
        )
        return found


def fetch(table: OnHost, batches: Batch, *, first_step: int, rate: float) -> Fetched:
    """Reads batches from a table.

    Args:
      table: where the records are.
      batches: on the host, ``(num_chains, num_steps, num_batches, capacity)``.
      first_step: the number of the first step.
      rate: the chance that a given record is drawn.
    """
    division = table.division
    if table.mesh is None or division is None:
        shape = batches.indices.shape
        order = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
        rows = _read(table, np.asarray(batches.indices))
        indices, places, rows = jax.device_put((batches.indices, order, rows))
    else:
        indices = everywhere(batches.indices, table.mesh)
        places, rows = _read_for_shards(table, batches, rate, division, table.mesh)
    found = FetchedStep(
        indices=indices, places=places, rows=rows, num_records=table.num_records, mesh=table.mesh
    )
    return Fetched(batches=found, first_step=jnp.asarray(first_step))


def _read(table: OnHost, indices: NDArray[np.integer]) -> Record:
    rows = table.source.read(indices.reshape(-1))
    found: Record = jax.tree.map(lambda leaf: leaf.reshape(*indices.shape, *leaf.shape[1:]), rows)
    return found


def _read_for_shards(
    table: OnHost, batches: Batch, rate: float, division: Division, mesh: Mesh
) -> tuple[Array, Record]:
    """Reads what the devices of this process own; all processes agree on the shapes."""
    indices, mask = np.asarray(batches.indices), np.asarray(batches.mask)
    *lead, capacity = indices.shape
    owner = np.where(mask, indices // division.rows_in_shard, -1)
    room = min(room_in_shard(division.rows_in_shard, rate), capacity)  # batches are drawn to fit

    @functools.cache
    def own(shard: int) -> tuple[NDArray[np.integer], Record]:
        is_other = owner != shard
        order = np.argsort(is_other, axis=-1, kind="stable")[..., :room]
        places = np.where(np.take_along_axis(is_other, order, axis=-1), capacity, order)
        # Rows that belong nowhere are some row of the shard itself.
        numbers = np.where(
            places < capacity,
            np.take_along_axis(indices, order, axis=-1),
            min(shard * division.rows_in_shard, table.num_records - 1),
        )
        return places.astype(np.int32), _read(table, numbers)

    cut = NamedSharding(mesh, P(*(None for _ in lead), RECORDS))

    def spread(shape: tuple[int, ...], of_shard: Callable[[int], NDArray[Any]]) -> Array:
        whole = (*lead, room * division.num_shards, *shape)

        def own_part(index: Any) -> NDArray[Any]:
            return of_shard((index[len(lead)].start or 0) // room)

        return jax.make_array_from_callback(whole, cut, own_part)

    places = spread((), lambda shard: own(shard)[0])
    leaves, treedef = jax.tree.flatten(table.record)
    rows = [
        spread(leaf.shape, functools.partial(_leaf_of, own, at)) for at, leaf in enumerate(leaves)
    ]
    return places, jax.tree.unflatten(treedef, rows)


def _leaf_of(own: Callable[[int], tuple[Any, Record]], at: int, shard: int) -> NDArray[Any]:
    found: NDArray[Any] = jax.tree.leaves(own(shard)[1])[at]
    return found


@overload
def distribute(records: Record, mesh: Mesh | None = None) -> Distributed: ...
@overload
def distribute(records: OnHost, mesh: Mesh | None = None) -> OnHost: ...
def distribute(records: Record | OnHost, mesh: Mesh | None = None) -> Distributed | OnHost:
    """Spreads a table over devices, each of which keeps, or reads, its own rows.

    With several processes every process calls this with the same table. It may be memory-mapped:
    only the rows that the process's own devices keep are read.

    Args:
      records: the table: arrays of JAX or NumPy, one row for each record; or one on the host.
      mesh: devices with an axis "records", some of each process; all that there are by default.

    Example:
      >>> from tacit.data import as_records
      >>> table = distribute(as_records(np.ones((5, 2)), np.zeros(5)))
      >>> table
      Distributed(num_records=5)
      >>> table.division
      Division(rows_in_shard=5, num_shards=1)
    """
    mesh = for_records(device_mesh() if mesh is None else mesh)
    if isinstance(records, OnHost):
        return replace(records, mesh=mesh)
    num_records = _tree.num_records(records)
    length = -(-num_records // mesh.shape[RECORDS])
    sharding = NamedSharding(mesh, P(RECORDS))

    def spread(leaf: Any) -> Array:
        shape = (length * mesh.shape[RECORDS], *leaf.shape[1:])

        def rows_of(index: Any) -> NDArray[Any]:
            own = np.asarray(leaf[index[0]])
            missing = len(range(*index[0].indices(shape[0]))) - len(own)
            return np.pad(own, [(0, missing), *((0, 0) for _ in own.shape[1:])])

        return jax.make_array_from_callback(shape, sharding, rows_of)

    rows: Record = jax.tree.map(spread, records)
    return Distributed(rows=rows, mesh=mesh, num_records=num_records)
