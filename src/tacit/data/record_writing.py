"""Writing records to a folder, chunk by chunk: the whole table is never in memory."""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.data.csv import odd_values, remarks
from tacit.data.frames import read_frames, whole_units
from tacit.data.record_files import (
    MANIFEST,
    GrowingArray,
    LeafShape,
    Leaves,
    Manifest,
    digest_of,
    leaves_of,
    part_name,
    record_of,
    require_leaves,
)
from tacit.data.record_source import StoredRecords, open_records
from tacit.data.records import encode_table, require_finite
from tacit.data.schema import Schema
from tacit.errors import InvalidArgumentError, TacitError
from tacit.typing import Record

__all__ = [
    "Encoded",
    "encode_to_folder",
    "new_folder",
    "require_room",
    "write_records",
    "writes_to",
]


def require_room(folder: Path, *, overwrite: bool) -> None:
    """Raises unless a folder of records may be made there."""
    if not os.path.lexists(folder):
        return
    if not (folder / MANIFEST).is_file():
        raise InvalidArgumentError(
            f"{str(folder)!r} exists and holds no records, so it is never replaced. Choose another"
            " folder."
        )
    if not overwrite:
        raise InvalidArgumentError(
            f"{str(folder)!r} holds records already. Choose another folder, or say overwrite."
        )


@contextlib.contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a temporary folder beside the wanted one, and renames it at the end.

    If the block raises, or is interrupted, the temporary folder is removed. Only its owner may
    read it.

    Raises:
      InvalidArgumentError: where something is there that may not be replaced.
      TacitError: where the file system refuses; the message names the folder.
    """
    require_room(folder, overwrite=overwrite)
    target = Path(os.path.abspath(folder))
    with writes_to(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent)
        )
    try:
        yield temporary
        with writes_to(folder):
            _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def writes_to(folder: Path) -> Iterator[None]:
    """Turns an error of the file system into one that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        raise TacitError(
            f"{folder} cannot be written ({error.strerror}), and nothing was. Choose a place that"
            " can be written and has space left."
        ) from None


def _replace(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = temporary.with_suffix(".old")
    target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)


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
    kind: dict[str, LeafShape] = field(default_factory=dict)
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


class Encoded(NamedTuple):
    """What became of a table.

    Attributes:
      records: on disk.
      num_rows: how many rows were read; as many as there are records, unless a unit has several.
      remarks: what its owner should know; depends on the records and is not for publication.
    """

    records: StoredRecords
    num_rows: int
    remarks: tuple[str, ...]


def encode_to_folder(
    tables: Sequence[str | os.PathLike[str]],
    schema: Schema,
    folder: str | os.PathLike[str],
    *,
    weight: str | None = None,
    max_weight: float = 1.0,
    groups: str | None = None,
    max_rows: int | None = None,
    chunk_rows: int = 2**16,
    overwrite: bool = False,
    on_rows: Callable[[int], None] | None = None,
) -> Encoded:
    """Encodes CSV or Parquet files, one after the other, into a folder of records.

    Memory is for one chunk of rows, however long the files are. The records are those that
    `encode_table` makes of all rows at once.

    With ``groups``, the rows of a unit must stand together (in a table sorted by that column they
    do), also where they are in two files.

    Guarantee:
      As `encode_table`: a record depends on its own row (or on its unit's rows) and on public
      arguments only. The folder holds private records and is not for publication.

    Args:
      tables: the files, all with the columns of the schema.
      schema: the public description of the table; the folder remembers which one it was.
      folder: where to; appears when all is written.
      weight: the column that holds weights between 0 and ``max_weight``, if any.
      max_weight: public upper end for weights.
      groups: the column that says whose each row is, if a unit of privacy has several rows.
      max_rows: public number of rows kept per unit; required with ``groups``.
      chunk_rows: how many rows are in memory at a time.
      overwrite: replace a folder of records that is there.
      on_rows: is told after each chunk how many rows were read so far.
    """
    if isinstance(tables, str | os.PathLike) or not tables:
        raise InvalidArgumentError(f"tables must be a list of files; got {tables!r}.")
    if (groups is None) != (max_rows is None):
        raise InvalidArgumentError(
            "groups and max_rows go together: whose each row is, and how many rows of one unit are"
            " kept, from public knowledge."
        )
    require_room(Path(folder), overwrite=overwrite)
    odd: Counter[str] = Counter()
    num_rows = 0
    place = ""

    def frames() -> Iterator[pd.DataFrame]:
        nonlocal num_rows, place
        for table in tables:
            for frame in read_frames(
                table, schema, weight=weight, groups=groups, chunk_rows=chunk_rows
            ):
                odd.update(odd_values(frame, schema))
                num_rows += len(frame)
                place = f"{str(table)!r}, up to row {frame.index[-1] + 1}"
                yield frame
                if on_rows is not None:
                    on_rows(num_rows)

    def chunks() -> Iterator[Record]:
        rows = frames()
        if groups is not None and max_rows is not None:
            rows = whole_units(rows, groups, max_rows=max_rows)
        for frame in rows:
            try:
                yield encode_table(
                    frame,
                    schema,
                    weight=weight,
                    max_weight=max_weight,
                    groups=groups,
                    max_rows=max_rows,
                )
            except InvalidArgumentError as error:
                raise InvalidArgumentError(f"{place}: {error}") from None

    records = write_records(
        chunks(), folder, schema=schema, max_weight=max_weight, overwrite=overwrite
    )
    return Encoded(records, num_rows, tuple(remarks(odd, schema, num_rows=num_rows)))
