"""Records that stay on disk: rows are read when they are drawn, and only those."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit.data.stored.leaves import (
    Leaves,
    from_leaves,
    leaves_of,
    record_of,
    require_leaves,
)
from tacit.data.stored.rows import Rows, rows_of
from tacit.errors import InvalidArgumentError
from tacit.typing import Input, Record

__all__ = ["StoredRecords", "map_arrays"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StoredRecords:
    """A table of private records in mapped files, in one part or several; a `RowSource`.

    Made by `open_records` or `map_arrays`. Give it to a fit as ``OnHost(records)``. The files must
    not change while it is in use.

    Attributes:
      parts: the arrays of each part by name, with one row for each record.
      schema_digest: tells under which schema the records were encoded, if under any.
    """

    parts: tuple[Mapping[str, NDArray[Any]], ...]
    schema_digest: str | None = None
    _rows: list[dict[str, Rows]] = field(init=False)

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidArgumentError("parts must hold at least one; got none.")
        first = record_of(self.parts[0])
        for part in self.parts:
            require_leaves(part)
            if record_of(part) != first:
                raise InvalidArgumentError(
                    f"all parts must have records of one shape; got {record_of(part)} beside"
                    f" {first}."
                )
        # Files are opened now, while they are those that were mapped.
        object.__setattr__(self, "_rows", [_rows_of(part) for part in self.parts])

    def __repr__(self) -> str:
        # Never what the arrays hold.
        return f"StoredRecords({self.num_records} records, {len(self.parts)} parts)"

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        return np.cumsum([0, *(len(part["y"]) for part in self.parts)], dtype=np.int64)

    @property
    def num_records(self) -> int:
        """How many records there are in all parts."""
        return int(self._starts[-1])

    @property
    def record(self) -> Record:
        """The shapes and dtypes of one record, with no value of any."""
        return from_leaves(record_of(self.parts[0]))

    def read(self, indices: ArrayLike) -> Record:
        """Returns the records with these numbers as NumPy arrays, in the order asked for.

        Takes memory and time for these records only, and may be called from several threads.

        Args:
          indices: whole numbers from 0 to ``num_records - 1``; a number may be asked for twice.
        """
        wanted = np.asarray(indices)
        self._require_indices(wanted)
        # In the order of the files, neighbours share pages and a disk reads forwards.
        order = np.argsort(wanted, kind="stable")
        rows = wanted[order].astype(np.int64)
        bounds = np.searchsorted(rows, self._starts)
        found: Leaves = {
            name: np.empty((len(rows), *leaf.shape[1:]), leaf.dtype)
            for name, leaf in self.parts[0].items()
        }
        for number in np.flatnonzero(np.diff(bounds)):
            here = slice(bounds[number], bounds[number + 1])
            local = rows[here] - self._starts[number]
            for name, leaf in self._rows[number].items():
                found[name][order[here]] = leaf.take(local)
        return from_leaves(found)

    def _require_indices(self, wanted: NDArray[Any]) -> None:
        if wanted.ndim != 1 or (wanted.size and wanted.dtype.kind not in "iu"):
            raise InvalidArgumentError(
                f"indices must be a vector of whole numbers; got {wanted.dtype} of shape"
                f" {wanted.shape}."
            )
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < self.num_records:
            raise InvalidArgumentError(
                f"indices must lie in 0..{self.num_records - 1}; got {wanted.min()} to"
                f" {wanted.max()}."
            )


def map_arrays(
    x: Input,
    y: NDArray[Any],
    *,
    weight: NDArray[Any] | None = None,
    mask: NDArray[Any] | None = None,
) -> StoredRecords:
    """Returns arrays that you have as stored records, without copying or reading them.

    For `numpy.memmap`, and for what ``numpy.load(file, mmap_mode="r")`` gives: only drawn rows are
    ever read. Other arrays are taken, too.

    No value is looked at, so none is checked. In training a record with NaN or infinity
    contributes nothing. Use `write_records` to have values checked once.

    Args:
      x: float32 or int32, an array or a dictionary of arrays with one row for each record.
      y: targets, float32 or int32.
      weight: float32; 1 for each row by default.
      mask: which rows of a unit are no padding, where a unit has several.

    Example:
      >>> x = np.arange(6, dtype=np.float32).reshape(3, 2)
      >>> records = map_arrays(x, np.array([0, 1, 1], np.int32))
      >>> records
      StoredRecords(3 records, 1 parts)
      >>> records.read([2, 0]).x
      array([[4., 5.],
             [0., 1.]], dtype=float32)
    """
    if weight is None:
        # One number that looks like many takes no memory.
        shape = np.shape(y)[:1] if mask is None else mask.shape
        weight = np.broadcast_to(np.float32(1), shape)
    records = Record(x, y, weight, mask)  # type: ignore[arg-type]  # on the host
    leaves = {name: _array(name, leaf) for name, leaf in leaves_of(records).items()}
    return StoredRecords(parts=(leaves,))


def _rows_of(part: Mapping[str, NDArray[Any]]) -> dict[str, Rows]:
    return {name: rows_of(leaf) for name, leaf in part.items()}


def _array(name: str, leaf: Any) -> NDArray[Any]:
    if not isinstance(leaf, np.ndarray):
        raise InvalidArgumentError(
            f"{name} must be a NumPy array or memmap; got {type(leaf).__name__}. Records that are"
            " in memory anyway go to as_records."
        )
    return leaf
