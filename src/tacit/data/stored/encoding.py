"""Encoding tables that are larger than memory: files in, a folder of records out."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from tacit.data.csv import odd_values, remarks
from tacit.data.frames import read_frames
from tacit.data.schema import Schema
from tacit.data.stored.replacing import require_room
from tacit.data.stored.source import StoredRecords
from tacit.data.stored.units import whole_units
from tacit.data.stored.writing import write_records
from tacit.data.tables import encode_table
from tacit.errors import InvalidArgumentError
from tacit.typing import Record

__all__ = ["Encoded", "encode_to_folder"]


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
