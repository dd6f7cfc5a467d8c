"""Tables that are spread over the devices of a mesh, on one host or on many."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from tacit import _tree
from tacit.tables.base import RECORDS, Batch, Division, Gathered, own_batch
from tacit.tables.mesh import device_mesh, for_records
from tacit.tables.on_host import OnHost
from tacit.typing import Array, Key, Record, Tree

__all__ = ["Distributed", "distribute"]


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["rows"],
    meta_fields=["mesh", "num_records", "is_part"],
)
@dataclass(frozen=True, kw_only=True)
class Distributed:
    """A table cut into equal runs of rows, one for each device along the axis "records".

    Guarantee:
      A sum over a batch is that of the whole table in memory, up to the order of summation, and no
      record is left out; see `own_batch`. So a release costs what it costs without shards.

    Attributes:
      rows: the records and, behind them, rows of zeros that are never drawn.
      mesh: the devices.
      num_records: how many records there are.
      is_part: whether ``rows`` are those of one device, as that device sees the table.
    """

    rows: Tree = field(repr=False)  # never shown: they are private
    mesh: Mesh = field(repr=False)
    num_records: int
    is_part: bool = field(default=False, repr=False)

    @property
    def record(self) -> Tree:
        """The shapes of one record."""
        return _tree.row_shapes(self.rows)

    @property
    def division(self) -> Division:
        """How the devices share it."""
        found = Division.among(self.mesh, self.num_records)
        assert found is not None
        return found

    @property
    def specs(self) -> "Distributed":
        """How the leaves are cut among the devices of the mesh."""
        return replace(self, rows=P(RECORDS))

    def part(self) -> "Distributed":
        """Returns the table as a device sees it inside of `on_table`, where rows are its own."""
        return replace(self, is_part=True)

    def gather(self, batch: Batch, slots_key: Key, *, rate: float) -> Gathered:
        """Takes the rows that this device owns of the batch; see `Table`."""
        assert self.is_part
        division = self.division
        own = own_batch(
            batch, slots_key, division=division, num_records=self.num_records, rate=rate
        )
        if rate >= 1:
            return Gathered(self.rows, own)
        first = lax.axis_index(RECORDS) * division.rows_in_shard
        return Gathered(_tree.take(self.rows, jnp.where(own.mask, own.indices - first, 0)), own)


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
