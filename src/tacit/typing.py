"""The names of the shapes that flow through tacit."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

__all__ = ["Array", "Input", "Key", "Params", "Query", "Record", "RecordLoss", "Scalar", "Tree"]

Array: TypeAlias = jax.Array
Key: TypeAlias = jax.Array
Scalar: TypeAlias = jax.Array
Tree: TypeAlias = Any
Params: TypeAlias = Any
Input: TypeAlias = Any


class Record(NamedTuple):
    """One unit of privacy; with a leading axis on every leaf, a table of them.

    Attributes:
      x: the inputs, any tree of arrays.
      y: the target.
      weight: how much the likelihood of a row counts, inside the clip.
      mask: None when a unit is one row. When a unit is a person with several rows, every leaf
        of ``x``, ``y`` and ``weight`` has a row axis and ``mask`` tells rows from padding.
    """

    x: Input
    y: Array
    weight: Array
    mask: Array | None = None


Query: TypeAlias = Callable[[Tree, Key], Tree]
"""A function of one record and that record's own key."""

RecordLoss: TypeAlias = Callable[[Params, Tree, Key], Scalar]
"""A loss of one record at some parameters, with that record's own key."""
