"""A NumPy file that grows: rows are appended, and the header learns their number at the end."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.stored.leaves import Leaf

__all__ = ["GrowingArray"]


class GrowingArray:
    """Writes an ``.npy`` file row by row in constant memory.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp()) / "y.npy"
      >>> y = GrowingArray(path, Leaf((), np.int32))
      >>> y.append(np.array([1, 2], np.int32))
      >>> y.append(np.array([3], np.int32))
      >>> y.finish()
      >>> np.load(path)
      array([1, 2, 3], dtype=int32)
    """

    def __init__(self, path: Path, leaf: Leaf) -> None:
        self._leaf = leaf
        self._num_rows = 0
        self._file = path.open("xb")
        self._write_header()

    def append(self, rows: NDArray[Any]) -> None:
        """Writes more rows."""
        values = np.ascontiguousarray(rows, self._leaf.dtype)
        self._file.write(values.reshape(-1).view(np.uint8).data)
        self._num_rows += len(rows)

    def finish(self) -> None:
        """Makes the file complete, and safe against loss of power."""
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Gives the file back as it is."""
        self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room in a header for any number of rows, so that it can be written again.
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self._leaf.dtype)),
            "fortran_order": False,
            "shape": (self._num_rows, *self._leaf.shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)
