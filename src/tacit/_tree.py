"""Small algebra on trees of arrays that JAX and optax do not have."""

import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit.typing import Array, Tree

__all__ = ["at_least_float32", "column_blocks", "num_records", "row_shapes", "size", "take"]


def size(tree: Tree) -> int:
    """Returns the number of scalars in a tree of arrays."""
    return sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(tree))


def num_records(data: Tree) -> int:
    """Returns the length of the leading axis that all leaves share."""
    lengths = {jnp.shape(leaf)[0] if jnp.ndim(leaf) else -1 for leaf in jax.tree.leaves(data)}
    if len(lengths) != 1 or -1 in lengths:
        raise ValueError(f"leaves disagree on the number of records: {sorted(lengths)}")
    return int(lengths.pop())


def row_shapes(data: Tree) -> Tree:
    """Returns the shapes and dtypes of one row of every leaf."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), data)


def take(data: Tree, indices: Array) -> Tree:
    """Gathers rows of every leaf; out-of-range indices are a bug, not a record, and give NaN."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, indices, axis=0), data)


def at_least_float32(tree: Tree) -> Tree:
    """Promotes low-precision floating leaves, so that sums and noise keep their precision."""
    return jax.tree.map(lambda x: x.astype(jnp.promote_types(x.dtype, jnp.float32)), tree)


def column_blocks(leaf: Any, *, num_axes: int, most: int) -> Iterator[NDArray[Any]]:
    """Yields an array in blocks of its coordinates, which are its axes but the first, as one axis.

    Args:
      leaf: in memory or on disk.
      num_axes: how many axes come before those of the coordinates.
      most: how many numbers a block has, unless one coordinate has more.
    """
    leading = leaf.shape[:num_axes]
    flat = leaf.reshape(*leading, -1)
    width = max(1, most // max(1, math.prod(leading)))
    for start in range(0, flat.shape[-1], width):
        yield np.asarray(flat[..., start : start + width])
