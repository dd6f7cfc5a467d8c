"""Reading rows of an array by number, from its file where it has one."""

import os
import weakref
from itertools import repeat
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError

__all__ = ["FileRows", "Rows", "rows_of"]


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
        places = (self._start + numbers * self._stride).tolist()
        data = b"".join(map(os.pread, repeat(self._file), repeat(self._num_bytes), places))
        if len(data) != len(places) * self._num_bytes:
            raise TacitError(
                f"{self._path} became shorter while its records were in use. Leave the files alone"
                " until all is done."
            )
        return np.frombuffer(data, self._dtype).reshape(len(places), *self._shape)


class _ArrayRows:
    """The rows of an array that is in memory, or of which no file is known."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = np.asarray(array)

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        found: NDArray[Any] = self._array[numbers]
        return found


def rows_of(array: NDArray[Any]) -> Rows:
    """Returns the rows of an array, from its file if it is mapped from one."""
    mapped = _mapped(array)
    rows_are_whole = array[:1].nbytes > 0 and array[0:1].flags.c_contiguous
    if mapped is None or not rows_are_whole or not hasattr(os, "pread"):
        return _ArrayRows(array)
    return FileRows(array, mapped)


def _mapped(array: NDArray[Any]) -> "np.memmap[Any, Any] | None":
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
