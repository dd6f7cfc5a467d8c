"""Tables in files, read a chunk at a time with the types that a schema declares."""

import contextlib
import io
import lzma
import os
from collections.abc import Collection, Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.data.csv import is_of_numbers, read_csv_in_chunks, to_numbers, typed
from tacit.data.schema import Schema, require_columns
from tacit.errors import InvalidArgumentError

__all__ = [
    "ADULT_SCHEMA",
    "is_parquet",
    "load_adult",
    "read_frames",
    "read_parquet_in_chunks",
    "whole_units",
]

_MAGIC = b"PAR1"


def is_parquet(path: str | os.PathLike[str]) -> bool:
    """Whether a file is named or begins like a Parquet file; False where it cannot be read."""
    file = Path(path)
    if file.suffix in (".parquet", ".pq"):
        return True
    try:
        with file.open("rb") as opened:
            return opened.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def read_parquet_in_chunks(
    path: str | os.PathLike[str],
    *,
    numbers: Collection[str],
    text: Collection[str],
    chunk_rows: int,
) -> Iterator[pd.DataFrame]:
    """Yields the rows of a Parquet file a chunk at a time, typed as a CSV file with them would be.

    Guarantee:
      A value depends on its own cell and on the type that the file declares for its column.

    Args:
      path: the file; needs pyarrow.
      numbers: columns that hold numbers; text in them is read as numbers.
      text: columns that hold text; whole numbers in them are written as text.
      chunk_rows: at most so many rows in one chunk.

    Raises:
      InvalidArgumentError: where the file cannot be read or lacks a column; does not name it.
    """
    arrow, parquet = _pyarrow()
    start = 0
    try:
        # What is buffered ahead would be kept until the file is closed.
        with parquet.ParquetFile(path, pre_buffer=False) as opened:
            names = opened.schema_arrow.names
            require_columns(pd.DataFrame(columns=names), [*numbers, *text])
            if not opened.metadata.num_rows:
                raise InvalidArgumentError("it has no rows.")
            for batch in opened.iter_batches(chunk_rows, columns=[*numbers, *text]):
                rows = pd.RangeIndex(start, start + len(batch))
                cells = {name: _decoded(arrow, batch.column(name)) for name in batch.schema.names}
                frame = pd.DataFrame(index=rows)
                for name in numbers:
                    frame[name] = _numbers(arrow, cells[name], name, rows)
                for name in text:
                    frame[name] = _text(arrow, cells[name], name)
                yield frame
                start = rows.stop
    except OSError as error:
        raise _unreadable(error.strerror or "it is damaged or cannot be opened") from None
    except arrow.ArrowException as error:
        raise _unreadable(type(error).__name__) from None


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as arrow  # noqa: PLC0415 (optional, and slow to import)
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise InvalidArgumentError(
            "reading Parquet needs pyarrow. Install it with: pip install 'tacit[parquet]'. Or save"
            " the table as CSV."
        ) from None
    return arrow, parquet


def _numbers(arrow: Any, values: Any, name: str, rows: pd.RangeIndex) -> Any:
    if _is_text(arrow, values.type):
        return to_numbers(pd.Series(_objects(values), index=rows, name=name))
    types = arrow.types
    is_number = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal)
    if types.is_null(values.type) or any(test(values.type) for test in is_number):
        return values.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    raise _wrong_type(name, values.type, "numbers")


def _text(arrow: Any, values: Any, name: str) -> NDArray[Any]:
    types = arrow.types
    if types.is_integer(values.type) or types.is_null(values.type):
        values = values.cast(arrow.string())
    if not _is_text(arrow, values.type):
        raise _wrong_type(name, values.type, "text")
    return _objects(values)


def _decoded(arrow: Any, values: Any) -> Any:
    return values.dictionary_decode() if arrow.types.is_dictionary(values.type) else values


def _is_text(arrow: Any, kind: Any) -> bool:
    types = arrow.types
    return any(
        test(kind) for test in (types.is_string, types.is_large_string, types.is_string_view)
    )


def _objects(values: Any) -> NDArray[Any]:
    # An empty cell is missing, as in a CSV file.
    cells = np.array(values.to_numpy(zero_copy_only=False), dtype=object)
    cells[pd.isna(cells) | (cells == "")] = np.nan
    return cells


def _wrong_type(name: str, kind: Any, wanted: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"column {name!r} must hold {wanted}, as the schema says; the file declares {kind}."
        " Correct the schema, or convert the column."
    )


def _unreadable(reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(f"it must be a Parquet file; {reason}.")


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


def whole_units(
    frames: Iterable[pd.DataFrame], groups: str, *, max_rows: int
) -> Iterator[pd.DataFrame]:
    """Yields the same rows in chunks that end where a unit ends.

    The rows of a unit must stand together. Of a unit that goes on in the next chunk the first
    ``max_rows`` rows are carried over; the others would be dropped in any case.

    Guarantee:
      All rows of a unit that count are in one chunk, or the last step raises. To know this, eight
      bytes are kept for each unit.

    Args:
      frames: chunks of a table.
      groups: the column that says whose each row is.
      max_rows: public number of rows kept per unit.

    Example:
      >>> first = pd.DataFrame({"who": ["ann", "bob"], "dose": [1, 2]})
      >>> second = pd.DataFrame({"who": ["bob", "cy"], "dose": [3, 4]})
      >>> [list(frame.dose) for frame in whole_units([first, second], "who", max_rows=2)]
      [[1], [2, 3], [4]]
    """
    _check.positive_integer(max_rows=max_rows)
    carried: pd.DataFrame | None = None
    closed: list[NDArray[np.uint64]] = []
    for frame in frames:
        rows = frame if carried is None else pd.concat([carried, frame])
        begins = _beginnings(rows, groups)
        whole, carried = rows.iloc[: begins[-1]], rows.iloc[begins[-1] :].iloc[:max_rows]
        closed.append(_hashes(rows, groups, begins[:-1]))
        if len(whole):
            yield whole
    if carried is not None:
        closed.append(_hashes(carried, groups, np.zeros(1, np.intp)))
        yield carried
        _require_once(groups, np.concatenate(closed))


def _beginnings(rows: pd.DataFrame, groups: str) -> NDArray[np.intp]:
    """Returns where units begin; the first is 0."""
    ids = rows[groups]
    nobody = int(ids.isna().sum())
    if nobody:
        raise InvalidArgumentError(
            f"groups must say whose each row is; {nobody} of {len(ids)} ids are missing. Leave"
            " these rows out, or give each an id of its own."
        )
    return np.flatnonzero((ids != ids.shift()).to_numpy())


def _hashes(rows: pd.DataFrame, groups: str, places: NDArray[np.intp]) -> NDArray[np.uint64]:
    ids = rows[groups].to_numpy()[places]
    return np.asarray(pd.util.hash_array(ids, categorize=False), np.uint64)


def _require_once(groups: str, closed: NDArray[np.uint64]) -> None:
    closed.sort()
    again = int(np.sum(closed[1:] == closed[:-1]))
    if again:
        raise InvalidArgumentError(
            f"the rows of a unit must stand together in a table that is read in chunks; {again}"
            f" units of column {groups!r} occur again after their rows ended. Sort the table by"
            f" {groups!r}."
        )


_FOLDER = files("tacit.data") / "adult"

ADULT_SCHEMA: Schema = Schema.from_toml((_FOLDER / "schema.toml").read_text(encoding="utf-8"))
"""Ranges and categories of Adult, from its documentation; the file says why each was chosen."""


def load_adult() -> tuple[pd.DataFrame, pd.DataFrame]:
    """Returns the official training (32561 rows) and test (16281 rows) parts of UCI Adult.

    Each row is a person questioned for the 1994 census; ``income`` is ``<=50K`` or ``>50K``. A
    missing category is written ``?``, as in the original.

    Example:
      >>> from tacit.data import ADULT_SCHEMA, encode_table
      >>> train, test = load_adult()
      >>> encode_table(train, ADULT_SCHEMA).x.shape
      (32561, 87)

    Reference:
      B. Becker and R. Kohavi, Adult, UCI Machine Learning Repository, 1996,
      https://doi.org/10.24432/C5XW20, licence CC BY 4.0.
    """
    return _read("train"), _read("test")


def _read(part: str) -> pd.DataFrame:
    text = lzma.decompress((_FOLDER / f"adult_{part}.csv.xz").read_bytes())
    return pd.read_csv(io.BytesIO(text), keep_default_na=False)
