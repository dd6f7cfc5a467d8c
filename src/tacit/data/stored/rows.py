"""Reading rows of mapped files by number, without keeping what lies around them in memory."""

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["copy_rows", "expect_random_reads"]

_BLOCK = 256


def copy_rows(
    source: NDArray[Any],
    rows: NDArray[np.integer[Any]],
    *,
    into: NDArray[Any],
    at: NDArray[np.integer[Any]],
) -> None:
    """Copies rows of an array, which may be mapped from a file, to places in another.

    A page of a mapped file that was once touched counts as memory of the process until it is given
    back, and the system maps hundreds of pages around each. So pages are given back after every
    few hundred rows; they stay in the system's cache while nobody else needs the room. A reader in
    another thread that loses a page finds it again in the file.

    Args:
      source: one row for each record.
      rows: which; in increasing order neighbours share pages.
      into: has room for them.
      at: where each goes.
    """
    mapping = _mapping_of(source)
    plain = np.asarray(source)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        into[at[block]] = plain[rows[block]]
        _advise(mapping, "MADV_DONTNEED")


def expect_random_reads(source: NDArray[Any]) -> None:
    """Tells the system that neighbours of a row will not be wanted: it reads ahead of no row."""
    _advise(_mapping_of(source), "MADV_RANDOM")


def _mapping_of(array: NDArray[Any]) -> mmap.mmap | None:
    """Returns the mapping of a file that an array looks into, if it is one that can be dropped."""
    node: Any = array
    is_shared = False
    while isinstance(node, np.ndarray):
        if isinstance(node, np.memmap):
            # A copy-on-write mapping may hold values that are in no file.
            is_shared = node.mode != "c"
        node = node.base
    return node if is_shared and isinstance(node, mmap.mmap) else None


def _advise(mapping: mmap.mmap | None, advice: str) -> None:
    if mapping is not None and hasattr(mmap, advice):  # not every system takes advice
        mapping.madvise(getattr(mmap, advice))
