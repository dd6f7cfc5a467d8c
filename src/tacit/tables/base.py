"""What a release asks of a table: the clipped sum over a drawn batch, wherever the records are.

Drawn indices are global, and the batch is the same whoever holds the records. So is the cost: a
table decides where a record is read and summed, never whether.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax
import jax.numpy as jnp

from tacit import _tree
from tacit.tables.scattered import Scattered
from tacit.typing import Array, Key, Tree

__all__ = [
    "Batch",
    "ClippedSum",
    "InMemory",
    "Keys",
    "Summing",
    "Table",
    "as_summing",
    "as_table",
    "shape_of_sum",
    "sum_of_rows",
]

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
