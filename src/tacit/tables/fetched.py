"""Batches that were fetched before the steps that draw them."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from tacit import _tree
from tacit.tables.base import Batch, ClippedSum, Keys, sum_of_rows
from tacit.tables.on_host import OnHost
from tacit.tables.placing import everywhere
from tacit.tables.room import Division, in_random_slots, room_in_shard
from tacit.tables.scattered import RECORDS, Scattered, scattered_sum
from tacit.typing import Array, Record

__all__ = ["Fetched", "FetchedStep", "fetch"]


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
        if self.mesh is None:
            return None
        num_shards = int(self.mesh.shape[RECORDS])
        return Division(-(-self.num_records // num_shards), num_shards)

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Array | Scattered, Array]:
        """Finds the batch and sums its rows."""
        is_it = jnp.all(self.indices == batch.indices, axis=1)
        rows, places = jax.tree.map(lambda leaf: leaf[jnp.argmax(is_it)], (self.rows, self.places))
        if self.mesh is not None and rate < 1:
            # The host lists what a shard owns one after the other.
            slots = in_random_slots(keys.slots, places.shape[0])
            rows, places = _tree.take(rows, slots), places[slots]
        owned = Batch(
            batch.indices.at[places].get(mode="clip"),
            batch.mask.at[places].get(mode="fill", fill_value=False),
        )
        total = sum_of_rows(rows, owned, keys, clipped_sum)
        return total if self.mesh is None else scattered_sum(total), jnp.any(is_it)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["batches", "first_step"],
    meta_fields=[],
)
@dataclass(frozen=True, kw_only=True)
class Fetched:
    """The batches of a chunk of steps of all chains.

    Attributes:
      batches: with two axes before all others, chains and steps.
      first_step: the number of the first of these steps.
    """

    batches: FetchedStep
    first_step: Array

    @property
    def mesh(self) -> Mesh | None:
        """Whose devices hold the rows."""
        return self.batches.mesh

    @property
    def specs(self) -> "Fetched":
        """How the leaves are cut among the devices of the mesh."""
        rows: Any = P(None, None, None, RECORDS)
        batches = replace(self.batches, indices=P(), places=rows, rows=rows)  # type: ignore[arg-type]
        return Fetched(batches=batches, first_step=P())  # type: ignore[arg-type]

    def shard(self) -> "Fetched":
        """Returns the batches as a device sees them inside of `over_shards`."""
        return self

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
    if table.mesh is None:
        shape = batches.indices.shape
        order = np.broadcast_to(np.arange(shape[-1], dtype=np.int32), shape)
        rows = _read(table, np.asarray(batches.indices))
        indices, places, rows = jax.device_put((batches.indices, order, rows))
    else:
        indices = everywhere(batches.indices, table.mesh)
        places, rows = _read_for_shards(table, batches, rate, table.mesh)
    found = FetchedStep(
        indices=indices, places=places, rows=rows, num_records=table.num_records, mesh=table.mesh
    )
    return Fetched(batches=found, first_step=jnp.asarray(first_step))


def _read(table: OnHost, indices: NDArray[np.integer]) -> Record:
    rows = table.source.read(indices.reshape(-1))
    found: Record = jax.tree.map(lambda leaf: leaf.reshape(*indices.shape, *leaf.shape[1:]), rows)
    return found


def _read_for_shards(
    table: OnHost, batches: Batch, rate: float, mesh: Mesh
) -> tuple[Array, Record]:
    """Reads what the devices of this process own; all processes agree on the shapes."""
    indices, mask = np.asarray(batches.indices), np.asarray(batches.mask)
    *lead, capacity = indices.shape
    owner = np.where(mask, indices // table.rows_in_shard, -1)
    room = min(room_in_shard(table.rows_in_shard, rate), capacity)  # batches are drawn to fit

    @functools.cache
    def own(shard: int) -> tuple[NDArray[np.integer], Record]:
        is_other = owner != shard
        order = np.argsort(is_other, axis=-1, kind="stable")[..., :room]
        places = np.where(np.take_along_axis(is_other, order, axis=-1), capacity, order)
        # Rows that belong nowhere are some row of the shard itself.
        numbers = np.where(
            places < capacity,
            np.take_along_axis(indices, order, axis=-1),
            min(shard * table.rows_in_shard, table.num_records - 1),
        )
        return places.astype(np.int32), _read(table, numbers)

    cut = NamedSharding(mesh, P(*(None for _ in lead), RECORDS))

    def spread(shape: tuple[int, ...], of_shard: Callable[[int], NDArray[Any]]) -> Array:
        whole = (*lead, room * table.num_shards, *shape)

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
