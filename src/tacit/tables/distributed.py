"""Tables that are spread over the devices of a mesh, on one host or on many."""

import functools
from dataclasses import dataclass, field, replace
from typing import Any, overload

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import NDArray

from tacit import _tree
from tacit.tables.base import (
    RECORDS,
    Shard,
)
from tacit.tables.mesh import (
    device_mesh,
    for_records,
)
from tacit.tables.on_host import OnHost
from tacit.typing import Array, Record

__all__ = ["Distributed", "distribute"]

"""The axis of a mesh among whose devices the chains of a run are shared."""

"""The axis of a mesh among whose devices parameters are cut; XLA shares out the work on them."""


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["rows"], meta_fields=["mesh", "num_records"]
)
@dataclass(frozen=True, kw_only=True)
class Distributed:
    """A table cut into equal runs of rows, one for each device along the axis "records".

    Guarantee:
      A sum over a batch is that of the whole table in memory, up to the order of summation, and no
      record is left out; see `Shard`. So a release costs what it costs without shards.

    Attributes:
      rows: the records and, behind them, rows of zeros that are never drawn.
      mesh: the devices.
      num_records: how many records there are.
    """

    rows: Record = field(repr=False)  # never shown: they are private
    mesh: Mesh = field(repr=False)
    num_records: int

    @property
    def record(self) -> Record:
        """The shapes of one record."""
        found: Record = _tree.row_shapes(self.rows)
        return found

    @property
    def num_shards(self) -> int:
        """How many devices share the table."""
        return int(self.mesh.shape[RECORDS])

    @property
    def specs(self) -> "Distributed":
        """How the leaves are cut among the devices of the mesh."""
        return replace(self, rows=P(RECORDS))  # type: ignore[arg-type]

    def shard(self) -> Shard:
        """Returns the table as a device sees it inside of `over_shards`, where rows are its own."""
        return Shard(
            fetch=lambda places: _tree.take(self.rows, places),
            rows=self.rows,
            length=_tree.num_records(self.rows),
            record=self.record,
            num_records=self.num_records,
        )


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
      >>> table.num_shards
      1
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
