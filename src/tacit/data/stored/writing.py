"""Writing records to a folder, chunk by chunk: the whole table is never in memory."""

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _check
from tacit.data.records import require_finite
from tacit.data.schema import Schema
from tacit.data.stored.growing import GrowingArray
from tacit.data.stored.leaves import Leaf, Leaves, leaves_of, record_of, require_leaves
from tacit.data.stored.manifest import MANIFEST, Manifest, digest_of, part_name
from tacit.data.stored.opening import open_records
from tacit.data.stored.replacing import new_folder, writes_to
from tacit.data.stored.source import StoredRecords
from tacit.errors import InvalidArgumentError
from tacit.typing import Record

__all__ = ["write_records"]

# Few parts need few open files, and a part of some gigabytes is still easy to move.
_PART_SIZE = 2**24


def write_records(
    chunks: Iterable[Record],
    folder: str | os.PathLike[str],
    *,
    schema: Schema | None = None,
    max_weight: float = 1.0,
    allow_non_finite: bool = False,
    part_size: int = _PART_SIZE,
    overwrite: bool = False,
) -> StoredRecords:
    """Writes records, a chunk at a time, to a folder from which drawn rows can be read.

    One chunk is in memory at a time. The folder appears when all of it is written; if anything goes
    wrong before, or somebody presses Ctrl-C, there is nothing. Only you may read it: it holds the
    private records themselves.

    Guarantee:
      None of privacy. What a record is written as depends on that record only.

    Args:
      chunks: tables of records from `as_records` or `encode_table`, all of one kind. A chunk may
        also hold NumPy arrays; ``x`` is an array or a dictionary of arrays.
      folder: where to.
      schema: under which the chunks were encoded, if under any; ``tacit fit`` wants it.
      max_weight: public upper end for weights.
      allow_non_finite: as in `as_records`.
      part_size: how many records one file holds at most.
      overwrite: replace a folder of records that is there; nothing else is ever replaced.

    Example:
      >>> import tempfile
      >>> from tacit.data import as_records
      >>> folder = Path(tempfile.mkdtemp()) / "records"
      >>> chunks = (as_records(np.full((4, 1), float(i)), np.zeros(4, int)) for i in range(3))
      >>> records = write_records(chunks, folder)
      >>> records.num_records, records.read([11, 0]).x.tolist()
      (12, [[2.0], [0.0]])
    """
    _check.positive(max_weight=max_weight)
    _check.positive_integer(part_size=part_size)
    target = Path(folder)
    with new_folder(target, overwrite=overwrite) as temporary:
        with contextlib.closing(_Parts(temporary, part_size)) as parts:
            for chunk in chunks:
                leaves = {name: np.asarray(leaf) for name, leaf in leaves_of(chunk).items()}
                _require_values(leaves, max_weight, allow_non_finite=allow_non_finite)
                with writes_to(target):
                    parts.append(leaves)
            with writes_to(target):
                parts.finish()
        manifest = Manifest(
            leaves=parts.kind,
            parts=tuple(parts.sizes),
            schema_digest=None if schema is None else digest_of(schema),
        )
        with writes_to(target):
            (temporary / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return open_records(target)


@dataclass
class _Parts:
    """The parts of a folder while it is made; the last of them grows."""

    folder: Path
    part_size: int
    kind: dict[str, Leaf] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)
    growing: dict[str, GrowingArray] = field(default_factory=dict)

    def append(self, leaves: Leaves) -> None:
        """Writes a chunk, to a new part where the last one is full."""
        num_records = require_leaves(leaves)
        found = record_of(leaves)
        if self.kind and found != self.kind:
            raise InvalidArgumentError(
                f"all chunks must have records of one kind; got {found} after {self.kind}."
            )
        self.kind = found
        start = 0
        while start < num_records:
            if not self.growing or self.sizes[-1] == self.part_size:
                self._begin_part()
            stop = min(num_records, start + self.part_size - self.sizes[-1])
            for name, leaf in leaves.items():
                self.growing[name].append(leaf[start:stop])
            self.sizes[-1] += stop - start
            start = stop

    def finish(self) -> None:
        """Completes the files of the last part."""
        if not self.sizes:
            raise InvalidArgumentError("chunks must hold at least one record; got none.")
        self._finish_part()

    def close(self) -> None:
        """Closes what is open, complete or not."""
        for array in self.growing.values():
            array.close()

    def _begin_part(self) -> None:
        self._finish_part()
        folder = self.folder / part_name(len(self.sizes))
        folder.mkdir()
        for name, leaf in self.kind.items():
            self.growing[name] = GrowingArray(folder / f"{name}.npy", leaf)
        self.sizes.append(0)

    def _finish_part(self) -> None:
        for array in self.growing.values():
            array.finish()
        self.growing = {}


def _require_values(leaves: Leaves, max_weight: float, *, allow_non_finite: bool) -> None:
    weight = leaves["weight"]
    outside = int(np.sum(~((weight >= 0) & (weight <= np.float32(max_weight)))))
    if outside:
        raise InvalidArgumentError(
            f"weight must lie in [0, max_weight={max_weight!r}]; {outside} of {weight.size} do not."
            " Clip them, or raise max_weight, which is public."
        )
    if not allow_non_finite:
        for name in leaves.keys() - {"weight", "mask"}:
            values: NDArray[Any] = leaves[name]
            require_finite(name, [values])
