"""The arrays that a table of records is made of, by name: one file for each of them."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.typing import Record, Tree

__all__ = ["Leaf", "Leaves", "from_leaves", "leaf_of", "leaves_of", "record_of", "require_leaves"]

Leaves: TypeAlias = dict[str, NDArray[Any]]
"""Arrays with one row for each record, by name."""

Leaf: TypeAlias = jax.ShapeDtypeStruct
"""What one record has of one array."""

_NUMBERS = (np.dtype(np.float32), np.dtype(np.int32))
_KEY = re.compile(r"[A-Za-z0-9_-]+")


def leaves_of(records: Record) -> dict[str, Any]:
    """Returns the leaves of a table by name: ``x`` or ``x.KEY``, ``y``, ``weight``, ``mask``.

    Raises:
      InvalidArgumentError: where ``x`` is neither an array nor made of dictionaries of arrays, for
        which there are no names.

    Example:
      >>> one = np.zeros(1)
      >>> list(leaves_of(Record({"dose": one, "scan": one}, one, one)))
      ['x.dose', 'x.scan', 'y', 'weight']
    """
    found = dict(_named("x", records.x))
    if not found:
        raise InvalidArgumentError("x must hold at least one array; got an empty tree.")
    found |= {"y": records.y, "weight": records.weight}
    return found if records.mask is None else found | {"mask": records.mask}


def from_leaves(leaves: Mapping[str, Any]) -> Record:
    """Returns the table whose leaves have these names."""
    x: Tree = {}
    for name, leaf in leaves.items():
        first, *keys = name.split(".")
        if first != "x":
            continue
        if not keys:
            x = leaf
            continue
        inner = x
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = leaf
    return Record(x, leaves["y"], leaves["weight"], leaves.get("mask"))


def require_leaves(leaves: Mapping[str, NDArray[Any]]) -> int:
    """Returns how many records the arrays hold, or raises unless they are one table of 32 bits."""
    for name, leaf in leaves.items():
        wanted = _dtypes(name)
        if leaf.dtype not in wanted:
            raise InvalidArgumentError(
                f"{name} must be of dtype {' or '.join(map(str, wanted))}; got {leaf.dtype}."
                " Convert it when the file is written, for example with as_records."
            )
    y = leaves["y"]
    if y.ndim == 0 or not len(y):
        raise InvalidArgumentError(f"y must have at least one record; got shape {y.shape}.")
    # A weight counts one row of a unit, and so has the shape of the mask.
    rows = leaves["mask"].shape if "mask" in leaves else y.shape[:1]
    if "mask" in leaves and len(rows) != 2:
        raise InvalidArgumentError(
            f"mask must have one entry for each row of each unit; got shape {rows}."
        )
    for name, leaf in leaves.items():
        fits = leaf.shape == rows if name in ("weight", "mask") else leaf.shape[: len(rows)] == rows
        if not fits:
            raise InvalidArgumentError(
                f"{name} must have one entry for each of {rows} rows, as y and mask; got shape"
                f" {leaf.shape}."
            )
    return len(y)


def record_of(leaves: Mapping[str, NDArray[Any]]) -> dict[str, Leaf]:
    """Returns the shapes and dtypes of one record."""
    return {name: leaf_of(leaf.shape[1:], leaf.dtype) for name, leaf in leaves.items()}


def leaf_of(shape: tuple[int, ...], dtype: Any) -> Leaf:
    """Returns the description of an array."""
    return Leaf(shape, np.dtype(dtype))


def _dtypes(name: str) -> tuple[np.dtype[Any], ...]:
    if name == "mask":
        return (np.dtype(np.bool_),)
    return _NUMBERS[:1] if name == "weight" else _NUMBERS


def _named(name: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        if not hasattr(tree, "shape"):
            raise InvalidArgumentError(
                f"{name} must be an array or a dictionary of arrays to be stored; got"
                f" {type(tree).__name__}. Give each array a name."
            )
        yield name, tree
        return
    for key in sorted(tree):
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidArgumentError(
                f"the keys of {name} name files and so must be letters, digits, - and _; got"
                f" {key!r}."
            )
        yield from _named(f"{name}.{key}", tree[key])
