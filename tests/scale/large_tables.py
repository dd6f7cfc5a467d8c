"""Tables that are larger than one would like to have in memory, made in a moment or in full."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tacit.data import write_records
from tacit.data.record_source import StoredRecords, map_arrays
from tacit.typing import Record

_BLOCK = 2**16


def sparse_table(
    folder: Path, *, num_records: int, num_columns: int, every: int = 100, seed: int = 0
) -> StoredRecords:
    """Maps files with holes: one block of rows in ``every`` has values, the others are zeros.

    The files have their full size for whoever reads them and take little room on the disk, so that
    ten million rows are there within a second. A row of zeros is of class 0; of the others the
    first column tells the class.
    """
    x = np.lib.format.open_memmap(
        folder / "x.npy", mode="w+", dtype=np.float32, shape=(num_records, num_columns)
    )
    y = np.lib.format.open_memmap(folder / "y.npy", mode="w+", dtype=np.int32, shape=(num_records,))
    for start in range(0, num_records, every * _BLOCK // 64):
        rows = slice(start, min(start + _BLOCK // 64, num_records))
        x[rows], y[rows] = _values(rows.stop - rows.start, num_columns, seed, start)
    del x, y  # written, and no longer mapped for writing
    return map_arrays(
        np.load(folder / "x.npy", mmap_mode="r"), np.load(folder / "y.npy", mmap_mode="r")
    )


def dense_table(
    folder: Path, *, num_records: int, num_columns: int, seed: int = 0
) -> StoredRecords:
    """Writes a folder of records in which every row has values of its own."""

    def chunks() -> Iterator[Record]:
        for start in range(0, num_records, _BLOCK):
            size = min(_BLOCK, num_records - start)
            x, y = _values(size, num_columns, seed, start)
            yield Record(x, y, np.ones(size, np.float32))

    return write_records(chunks(), folder)


def _values(
    size: int, num_columns: int, seed: int, start: int
) -> tuple["np.ndarray", "np.ndarray"]:
    rng = np.random.default_rng([seed, start])
    x = rng.standard_normal((size, num_columns), dtype=np.float32)
    return x, (x[:, 0] > 0).astype(np.int32)
