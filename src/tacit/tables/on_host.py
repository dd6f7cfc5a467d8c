"""Tables that stay on the host, such as memory-mapped files, and give out rows by number."""

import weakref
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from numpy.typing import NDArray

from tacit.tables.base import Batch, ClippedSum, Keys, sum_of_rows
from tacit.tables.room import Division
from tacit.tables.scattered import RECORDS
from tacit.tables.shard import Shard
from tacit.typing import Array, Record

__all__ = ["OnHost", "RowSource"]


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


_Static: TypeAlias = tuple["weakref.ref[RowSource]", Mesh | None]


@jax.tree_util.register_pytree_node_class
@dataclass(frozen=True)
class OnHost:
    """A table of which only drawn records ever come to a device.

    `fit` reads the records of many steps ahead (`tables.fetched`). Elsewhere, and for methods that
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
    """

    source: RowSource
    mesh: Mesh | None = field(default=None, repr=False)

    def tree_flatten(self) -> tuple[tuple[()], _Static]:
        """Tells JAX that a table has no leaves, and which one it is."""
        # JAX keeps what programs were traced for. It should not keep tables and their files.
        return (), (weakref.ref(self.source), self.mesh)

    @classmethod
    def tree_unflatten(cls, static: _Static, leaves: tuple[()]) -> "OnHost":
        """Returns the table again, which somebody else must still hold."""
        del leaves
        reference, mesh = static
        source = reference()
        assert source is not None
        return cls(source, mesh)

    @property
    def num_records(self) -> int:
        """How many records there are."""
        return self.source.num_records

    @property
    def record(self) -> Record:
        """The shapes of one record."""
        return self.source.record

    @property
    def num_shards(self) -> int:
        """How many devices share the work."""
        return 1 if self.mesh is None else int(self.mesh.shape[RECORDS])

    @property
    def rows_in_shard(self) -> int:
        """How many records each device owns, in order; the last one perhaps fewer."""
        return -(-self.num_records // self.num_shards)

    @property
    def specs(self) -> "OnHost":
        """Nothing of it is on a device."""
        return self

    def shard(self) -> Shard:
        """Returns the table as a device sees it inside of `over_shards`."""
        length = self.rows_in_shard
        first = lax.axis_index(RECORDS) * length
        return Shard(
            # Where the table ends before the shard does, the last record stands in for no record.
            fetch=lambda places: self._read(jnp.minimum(first + places, self.num_records - 1)),
            rows=None,
            length=length,
            record=self.record,
            num_records=self.num_records,
        )

    @property
    def division(self) -> Division | None:
        """How devices share the work; None for one device."""
        return None if self.mesh is None else Division(self.rows_in_shard, self.num_shards)

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Array, Array]:
        """Reads the batch and sums it, for a table that one device works on."""
        del rate
        rows = self._read(batch.indices)
        return sum_of_rows(rows, batch, keys, clipped_sum), jnp.ones((), bool)

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
