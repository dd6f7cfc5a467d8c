"""Opening a folder of records: files are mapped, their sizes checked, and no row is read."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.data.stored.leaves import Leaf
from tacit.data.stored.manifest import part_name, read_manifest
from tacit.data.stored.source import StoredRecords
from tacit.errors import TacitError

__all__ = ["open_records"]


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


def _part(folder: Path, leaves: Mapping[str, Leaf], num_records: int) -> dict[str, NDArray[Any]]:
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
