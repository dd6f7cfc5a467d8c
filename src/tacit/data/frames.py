"""Tables in files, read a chunk at a time with the types that a schema declares."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from tacit import _check
from tacit.data.csv import is_of_numbers, read_csv_in_chunks, to_numbers, typed
from tacit.data.parquet import is_parquet, read_parquet_in_chunks
from tacit.data.schema import Schema, require_columns
from tacit.errors import InvalidArgumentError

__all__ = ["read_frames"]


def read_frames(
    path: str | os.PathLike[str],
    schema: Schema,
    *,
    weight: str | None = None,
    groups: str | None = None,
    chunk_rows: int = 2**16,
) -> Iterator[pd.DataFrame]:
    """Yields the rows of a CSV or Parquet file in typed chunks; one chunk is in memory at a time.

    Guarantee:
      A value depends on its own cell and on public arguments, not on the chunk that it is in.

    Args:
      path: a CSV file with a first line of names, or a Parquet file.
      schema: the table's public description, target included.
      weight: the column of weights, if any.
      groups: the column that says whose each row is, if any.
      chunk_rows: how many rows a chunk has at most.
    """
    _check.positive_integer(chunk_rows=chunk_rows)
    weights = [] if weight is None else [weight]
    ids = [] if groups is None else [groups]
    file = Path(path)
    if is_parquet(file):
        declared = (*schema.columns, schema.target)
        numbers = {part.name for part in declared if is_of_numbers(part)} | set(weights)
        text = {part.name for part in declared} | set(ids)
        with _errors_of(file):
            yield from read_parquet_in_chunks(
                file, numbers=sorted(numbers), text=sorted(text - numbers), chunk_rows=chunk_rows
            )
        return
    for cells in read_csv_in_chunks(file, chunk_rows=chunk_rows):
        with _errors_of(file):
            frame = typed(cells, schema)
            require_columns(frame, [*weights, *ids])
            for name in weights:
                frame[name] = to_numbers(frame[name])
        yield frame


@contextlib.contextmanager
def _errors_of(file: Path) -> Iterator[None]:
    try:
        yield
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{str(file)!r}: {error}") from None
