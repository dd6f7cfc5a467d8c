"""Retained states on disk in half precision: a file that grows row by row and is read in pieces.

It begins with a reference, the first state that each chain retained. Then comes a row for each time
that states were retained: by how much each chain's state differs from its reference, as 16-bit
floats times a power of two for each array. So the spread of the draws is rounded, not their values,
and the error stays small beside what a posterior says, however large the weights are.

Rows that were written never change: a run that goes on begins with a copy. A document that seals
the first rows by their checksum therefore stays true while more are added.
"""

import hashlib
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tacit.errors import TacitError
from tacit.rounding import Rounding, restored
from tacit.typing import Tree

__all__ = [
    "FILE_NAME",
    "StateFile",
    "StateLayout",
    "StoredArray",
    "partial_of",
    "state_file_of",
    "unwritable",
]

FILE_NAME = "retained.states"

_PIECE = 2**22

_Numbers = NDArray[Any]


class _Block(NamedTuple):
    """Where one array lies: in the reference or in every row."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def stop(self) -> int:
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class StateLayout:
    """What the bytes of a file mean.

    Floating numbers of 32 bits and more are rounded; whatever is smaller or counts is kept.

    Attributes:
      template: shapes and types of one chain's retained state.
      num_chains: how many chains.
    """

    def __init__(self, template: Tree, num_chains: int) -> None:
        self.template, self.num_chains = template, num_chains
        paths, self.treedef = jax.tree_util.tree_flatten_with_path(template)
        self.names = [jax.tree_util.keystr(path) for path, _ in paths]
        self.leaves = [leaf for _, leaf in paths]
        self.references: list[_Block | None] = []
        self.scales: list[_Block | None] = []
        self.values: list[_Block] = []
        reference_bytes = row_bytes = 0
        for leaf in self.leaves:
            dtype, shape = np.dtype(leaf.dtype), (num_chains, *leaf.shape)
            scale = reference = None
            is_rounded = jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 4
            if is_rounded:
                reference = _Block(reference_bytes, dtype, shape)
                reference_bytes = reference.stop
                scale = _Block(row_bytes, dtype, (num_chains,))
                row_bytes = scale.stop
            kind = np.dtype(np.float16) if is_rounded else np.dtype((np.void, dtype.itemsize))
            values = _Block(row_bytes, kind, shape)
            row_bytes = values.stop
            self.references.append(reference)
            self.scales.append(scale)
            self.values.append(values)
        self.reference_bytes, self.row_bytes = reference_bytes, row_bytes

    @property
    def description(self) -> list[list[Any]]:
        """Names, types and shapes of a state's arrays, for a document."""
        return [
            [name, str(leaf.dtype), list(leaf.shape)]
            for name, leaf in zip(self.names, self.leaves, strict=True)
        ]

    def num_bytes(self, num_kept: int) -> int:
        """Returns how long a file of so many rows is."""
        return self.reference_bytes + num_kept * self.row_bytes


class StoredArray:
    """One array of the retained states of all chains, which is on disk.

    It is indexed and converted like an array of NumPy, ``(num_chains, num_kept, ...)``, and reads
    what is asked for.
    """

    def __init__(self, file: "StateFile", number: int, shape: tuple[int, ...]) -> None:
        self.file, self._number, self.shape = file, number, shape
        self.dtype = np.dtype(file.layout.leaves[number].dtype)

    @property
    def ndim(self) -> int:
        """How many axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many numbers."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """How many bytes they would have in memory."""
        return self.size * self.dtype.itemsize

    def reshape(self, *shape: int) -> "StoredArray":
        """Returns the array with other axes after the first two; reads nothing."""
        rest = math.prod(self.shape[2:]) // abs(math.prod(shape[2:]))
        shape = tuple(rest if axis == -1 else axis for axis in shape)
        if shape[:2] != self.shape[:2] or math.prod(shape) != self.size:
            raise ValueError(f"cannot reshape {self.shape} on disk into {shape}")
        return StoredArray(self.file, self._number, shape)

    def __getitem__(self, index: Any) -> _Numbers:
        return self.file.read(self._number, self.shape, index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> _Numbers:
        if copy is False:
            raise ValueError("what is on disk cannot be an array without a copy")
        return self[...].astype(self.dtype if dtype is None else dtype, copy=False)

    def __repr__(self) -> str:
        return f"StoredArray(shape={self.shape}, dtype={self.dtype}, in {self.file.path})"


class StateFile:
    """The first rows of a file, open for reading.

    Opening reads nothing. The first reading compares all rows with their checksum.

    Attributes:
      path: the file.
      layout: what its bytes mean.
      num_kept: how many rows count.
      digest: the SHA-256 of reference and rows.
      rounding: what the rounding changed; None where it was not measured.
    """

    def __init__(
        self,
        path: Path,
        layout: StateLayout,
        *,
        num_kept: int,
        digest: str,
        rounding: Rounding | None = None,
        is_checked: bool = False,
    ) -> None:
        self.path, self.layout, self.num_kept = path, layout, num_kept
        self.digest, self.rounding, self._is_checked = digest, rounding, is_checked
        length = layout.num_bytes(num_kept)
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                if status.st_size < length:
                    raise _damaged(path, "is cut short")
                self._map = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise TacitError(f"{path.parent} holds no {path.name}. Restore a copy.") from None
        except OSError as error:
            raise TacitError(f"{path} cannot be read ({error.strerror}).") from None
        self._inode = (status.st_dev, status.st_ino)

    @classmethod
    def open(
        cls,
        directory: str | os.PathLike[str],
        document: Mapping[str, Any],
        template: Tree,
        arrays: Mapping[str, _Numbers],
    ) -> Self:
        """Returns the file that a document speaks of; raises unless it fits the template.

        Args:
          directory: where both are.
          document: from `to_json`.
          template: shapes and types of one retained state.
          arrays: those that were saved with the document.
        """
        layout = StateLayout(template, document["num_chains"])
        if layout.description != document["arrays"]:
            raise TacitError(
                "the retained states do not fit the model: their arrays are"
                f" {document['arrays']}, where {layout.description} are wanted. Load them with the"
                " model and the plan that made them."
            )
        return cls(
            Path(directory) / FILE_NAME,
            layout,
            num_kept=document["num_kept"],
            digest=document["sha256"],
            rounding=Rounding.of_arrays(arrays),
        )

    def to_json(self) -> dict[str, Any]:
        """Returns what `open` needs to know."""
        return {
            "num_chains": self.layout.num_chains,
            "num_kept": self.num_kept,
            "sha256": self.digest,
            "arrays": self.layout.description,
        }

    def arrays(self) -> dict[str, _Numbers]:
        """Returns what is saved beside `to_json`."""
        return {} if self.rounding is None else self.rounding.arrays()

    @property
    def states(self) -> Tree:
        """The states, as a tree of arrays on disk."""
        leaves = [
            StoredArray(self, number, (self.layout.num_chains, self.num_kept, *leaf.shape))
            for number, leaf in enumerate(self.layout.leaves)
        ]
        return jax.tree.unflatten(self.layout.treedef, leaves)

    def read(self, number: int, shape: tuple[int, ...], index: Any) -> _Numbers:
        """Returns part of one array, in its own type.

        Args:
          number: of the array.
          shape: of it as a whole: chains, rows, and the rest.
          index: as of NumPy.
        """
        self._check()
        layout, rest = self.layout, shape[2:]
        dtype = np.dtype(layout.leaves[number].dtype)
        values = self._rows(layout.values[number], rest)
        block = layout.scales[number]
        if block is None:
            found = np.array(values[index]).view(dtype)
        else:
            ones = tuple(1 for _ in rest)
            scales = np.broadcast_to(self._rows(block, ()).reshape(*shape[:2], *ones), shape)
            first = self.reference(number).reshape(shape[0], 1, *rest)
            first = np.broadcast_to(first, shape)
            if _is_of_states(index):
                # One by one, so that what is needed beside the result is a state and no more.
                found = np.empty((len(index[0]), *rest), dtype)
                for own, at in enumerate(zip(*index, strict=True)):
                    found[own] = restored(values[at], scales[at], first[at])
            else:
                found = restored(np.asarray(values[index]), scales[index], first[index])
        self._let_go()
        return found

    def reference(self, number: int) -> _Numbers:
        """Returns what one array's rows differ from, as a view of the file."""
        block = self.layout.references[number]
        assert block is not None
        return np.ndarray(block.shape, block.dtype, buffer=self._map, offset=block.offset)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Copies the file into a folder, unless these rows are there already."""
        path = Path(directory) / FILE_NAME
        length = self.layout.num_bytes(self.num_kept)
        try:
            if path.exists():
                status = path.stat()
                if (status.st_dev, status.st_ino) == self._inode:
                    return
                if status.st_size >= length and _digest(_pieces_of(path, length)) == self.digest:
                    return
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial_of(path).open("wb") as file:
                for piece in self._pieces():
                    file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            partial_of(path).replace(path)
        except OSError as error:
            raise unwritable(path, error) from None

    def pieces(self) -> Iterator[bytes]:
        """Yields the bytes of all rows, which were compared with their checksum."""
        self._check()
        return self._pieces()

    def _rows(self, block: _Block, rest: tuple[int, ...]) -> _Numbers:
        """One array of all rows, as a view of the file: chains, rows and the rest."""
        shape = (self.num_kept, self.layout.num_chains, *rest)
        strides = [block.dtype.itemsize]
        for length in shape[:1:-1]:
            strides.insert(0, strides[0] * length)
        rows: _Numbers = np.ndarray(
            shape,
            block.dtype,
            buffer=self._map,
            offset=self.layout.reference_bytes + block.offset,
            strides=(self.layout.row_bytes, *strides),
        )
        return rows.swapaxes(0, 1)

    def _check(self) -> None:
        if self._is_checked:
            return
        if _digest(self._pieces()) != self.digest:
            raise _damaged(self.path, "does not match its checksum: it was altered")
        self._is_checked = True

    def _pieces(self) -> Iterator[bytes]:
        for start in range(0, len(self._map), _PIECE):
            yield self._map[start : start + _PIECE]
            self._let_go()

    def _let_go(self) -> None:
        """Gives back the pages that were read: they are the system's cache, not ours."""
        if hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)


def _is_of_states(index: Any) -> bool:
    """Whether an index has a chain and a row for each of several states."""
    return isinstance(index, tuple) and [np.ndim(axis) for axis in index] == [1, 1]


def state_file_of(states: Tree) -> StateFile | None:
    """Returns the file that states are in; None where they are in memory."""
    first = jax.tree.leaves(states)[0]
    return first.file if isinstance(first, StoredArray) else None


def _pieces_of(path: Path, length: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        while length > 0:
            piece = file.read(min(_PIECE, length))
            length -= len(piece)
            yield piece


def _digest(pieces: Iterator[bytes]) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def partial_of(path: Path) -> Path:
    """Returns where a file is written before it is put in place."""
    return path.with_name(path.name + ".partial")


def _damaged(path: Path, what: str) -> TacitError:
    return TacitError(f"{path} {what}. Restore a copy, or make it again.")


def unwritable(path: Path, error: OSError) -> TacitError:
    """Returns what is raised where a file cannot be written."""
    return TacitError(
        f"{path} cannot be written ({error.strerror}). Choose a folder that can be written and has"
        " space left; what was there before is still there."
    )
