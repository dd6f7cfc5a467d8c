"""Records that stay on disk: rows are read when they are drawn, and only those."""

import functools
import os
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import repeat
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import native
from tacit.data.record_files import (
    LeafShape,
    Leaves,
    from_leaves,
    leaves_of,
    part_name,
    read_manifest,
    record_of,
    require_leaves,
)
from tacit.errors import InvalidArgumentError, TacitError
from tacit.typing import Input, Record

__all__ = ["FileRows", "Rows", "StoredRecords", "map_arrays", "open_records", "rows_of"]


_NUM_READERS, _ROWS_OF_READER = 8, 256


@functools.cache
def _readers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_NUM_READERS, thread_name_prefix="tacit-reader")


class Rows(Protocol):
    """Rows that can be taken by number, by several threads at once."""

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the rows with these numbers."""
        ...


class FileRows:
    """The rows of a mapped array, each read from the file where it stands.

    A row that is touched in a map costs a fault, and the pages around it count as memory of the
    process from then on, until a table of any size is all there. A read of the file costs less, and
    leaves nothing behind. Nor does it end the process where somebody cut the file.
    """

    def __init__(self, array: NDArray[Any], mapped: "np.memmap[Any, Any]") -> None:
        """Use `rows_of`."""
        self._path = str(mapped.filename)
        self._shape, self._dtype = array.shape[1:], array.dtype
        self._num_bytes = array[:1].nbytes
        self._stride = array.strides[0]
        self._start = mapped.offset + _address(array) - _address(mapped)
        self._file = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._file)
        if hasattr(os, "posix_fadvise"):  # neighbours of a row will not be wanted
            os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_RANDOM)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the rows with these numbers."""
        places = self._start + numbers * self._stride
        found = np.empty((len(places), *self._shape), self._dtype)
        # Each reader has rows that follow each other. Several keep a disk busy, and all cores.
        count = min(_NUM_READERS, -(-len(places) // _ROWS_OF_READER))
        parts = list(zip(*(np.array_split(x, max(1, count)) for x in (places, found)), strict=True))
        own, *others = parts
        waiting = [_readers().submit(self._read, *part) for part in others]
        is_whole = self._read(*own)
        if not all([is_whole, *(reading.result() for reading in waiting)]):
            raise TacitError(
                f"{self._path} became shorter while its records were in use. Leave the files alone"
                " until all is done."
            )
        return found

    def _read(self, places: NDArray[np.int64], out: NDArray[Any]) -> bool:
        if native.is_loaded():
            return native.read_rows(self._file, places, out)
        reads = map(os.pread, repeat(self._file), repeat(self._num_bytes), places.tolist())
        data = b"".join(reads)
        if len(data) != out.nbytes:
            return False
        out[...] = np.frombuffer(data, self._dtype).reshape(out.shape)
        return True


class _ArrayRows:
    """The rows of an array that is in memory, or of which no file is known."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = np.asarray(array)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._array[numbers]
        return found


def rows_of(array: NDArray[Any]) -> Rows:
    """Returns the rows of an array, from its file if it is mapped from one."""
    mapped = _memory_map_of(array)
    rows_are_whole = array[:1].nbytes > 0 and array[0:1].flags.c_contiguous
    if mapped is None or not rows_are_whole or not hasattr(os, "pread"):
        return _ArrayRows(array)
    return FileRows(array, mapped)


def _memory_map_of(array: NDArray[Any]) -> "np.memmap[Any, Any] | None":
    """Returns the map of a file that an array looks into, if it shows what is in the file."""
    found: np.memmap[Any, Any] | None = None
    node: Any = array
    while isinstance(node, np.ndarray):
        if isinstance(node, np.memmap):
            found = node
        node = node.base
    # A copy-on-write map may hold values that are in no file.
    if found is None or found.filename is None or found.mode == "c":
        return None
    return found


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


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

    @functools.cached_property
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


def open_records(folder: str | os.PathLike[str]) -> StoredRecords:
    """Returns the records of a folder that `write_records` or ``tacit encode`` made.

    The files are plain NumPy arrays and are mapped, not read: opening takes no time and no memory
    for any number of records. Nothing in them is executed (no pickles).

    Raises:
      TacitError: where a file is missing, truncated, of another size or kind than ``records.json``
        says, or of a version that cannot be read.
    """
    path = Path(folder)
    manifest = read_manifest(path)
    return StoredRecords(
        parts=tuple(
            _part(path / part_name(number), manifest.leaves, num_records)
            for number, num_records in enumerate(manifest.parts)
        ),
        schema_digest=manifest.schema_digest,
    )


def _part(
    folder: Path, leaves: Mapping[str, LeafShape], num_records: int
) -> dict[str, NDArray[Any]]:
    return {
        name: _mapped(folder / f"{name}.npy", (num_records, *leaf.shape), np.dtype(leaf.dtype))
        for name, leaf in leaves.items()
    }


def _mapped(path: Path, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise _wrong(path, "it is missing") from None
    except OSError as error:
        raise _wrong(path, error.strerror or "it cannot be opened") from None
    except (ValueError, EOFError):
        raise _wrong(path, "it is truncated, or no NumPy array") from None
    if not isinstance(array, np.memmap):
        raise _wrong(path, "it is no NumPy array")
    if array.shape != shape or array.dtype != dtype:
        raise _wrong(
            path, f"it holds {array.dtype} of shape {array.shape} instead of {dtype} of {shape}"
        )
    return array


def _wrong(path: Path, reason: str) -> TacitError:
    return TacitError(
        f"{path} is not as it was written: {reason}. Copy the folder again, or encode the table"
        " again."
    )
