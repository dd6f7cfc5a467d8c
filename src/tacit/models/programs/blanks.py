"""Blanks: records that stand in for private ones wherever only their shape matters."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tacit.typing import Array

__all__ = ["blank_records", "row_shapes"]


def row_shapes(records: Sequence[Any], num_rows: int) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes of ``records`` with another number of rows; no value is read."""
    return [jax.ShapeDtypeStruct((num_rows, *leaf.shape[1:]), leaf.dtype) for leaf in records]


def blank_records(shapes: Sequence[jax.ShapeDtypeStruct]) -> list[Array]:
    """Returns records of zeros."""
    return [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]
