"""CSV files as text: read as they are, then given the types that a schema declares.

pandas would infer the type of a column from all of its values, so that one record could change
how the others are read.
"""

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tacit.data.columns import CategoricalColumn, Column, NumericColumn, NumericTarget, Target
from tacit.data.schema import Schema, require_columns
from tacit.errors import InvalidArgumentError

__all__ = [
    "MISSING_MARKS",
    "is_of_numbers",
    "odd_values",
    "read_csv",
    "read_csv_in_chunks",
    "remarks",
    "to_numbers",
    "typed",
]

MISSING_MARKS = frozenset(
    ("", "?", "-", ".", "na", "n/a", "#n/a", "nan", "null", "none", "missing", "unknown")
)
"""What stands for a missing number, in any case and between blanks."""


def read_csv(path: str | os.PathLike[str]) -> pd.DataFrame:
    r"""Returns a table of text: one row for each line after the first, which names the columns.

    No type is guessed, since a guess looks at all rows at once: `typed` gives each column the type
    that the schema declares. An empty cell is missing.

    Raises:
      InvalidArgumentError: where the file cannot be read, is empty or is not a table of UTF-8 text.
        It shows no value of the file.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp()) / "data.csv"
      >>> _ = path.write_text("age,zip\n31,01067\n,10115\n")
      >>> read_csv(path)
         age    zip
      0   31  01067
      1  NaN  10115
    """
    (frame,) = read_csv_in_chunks(path, chunk_rows=None)
    return frame


def read_csv_in_chunks(
    path: str | os.PathLike[str], *, chunk_rows: int | None
) -> Iterator[pd.DataFrame]:
    """Yields the rows of `read_csv` a chunk at a time, numbered through; None for one chunk."""
    file = Path(path)
    cells = _cells(file, None if chunk_rows is None else chunk_rows + 1)  # with the line of names
    with _errors_that_name(file):
        first = next(cells)
    names = first.iloc[0]
    if names.isna().any():
        raise _unreadable(file, "its first line must name every column")
    if len(first) == 1:
        raise _unreadable(file, "it has a first line of names but no rows")
    columns = pd.Index([str(name) for name in names])
    yield _named(first.iloc[1:], columns)
    while True:
        with _errors_that_name(file):
            chunk = next(cells, None)
        if chunk is None:
            return
        yield _named(chunk, columns)


def _cells(file: Path, chunk_rows: int | None) -> Iterator[pd.DataFrame]:
    """Yields all lines as text."""
    # As a row of its own, the header keeps names that occur twice; pandas would rename them.
    with pd.read_csv(
        file,
        header=None,
        dtype=object,
        keep_default_na=False,
        na_values=[""],
        encoding="utf-8-sig",
        iterator=True,
        chunksize=chunk_rows,
    ) as reader:
        yield from reader


def _named(cells: pd.DataFrame, columns: "pd.Index[str]") -> pd.DataFrame:
    cells.index = cells.index - 1  # the line of names is no row
    cells.columns = columns
    return cells


@contextlib.contextmanager
def _errors_that_name(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unreadable(file, error.strerror or "it cannot be opened") from None
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"{str(file)!r} is not UTF-8 text (at byte {error.start}). Save it as UTF-8, for"
            " example: iconv -f latin1 -t utf-8."
        ) from None
    except pd.errors.EmptyDataError:
        raise _unreadable(file, "it is empty") from None
    except pd.errors.ParserError as error:
        reason = str(error).splitlines()[0].removeprefix("Error tokenizing data. C error: ")
        raise _unreadable(file, reason.strip()) from None
    except (ValueError, OverflowError, MemoryError) as error:
        raise _unreadable(file, type(error).__name__) from None


def typed(frame: pd.DataFrame, schema: Schema, *, with_target: bool = True) -> pd.DataFrame:
    """Returns the schema's columns, and all others as text, with the declared types.

    Guarantee:
      A value depends on its own cell alone. Errors count values and show none; as they depend on
      the records they are not for publication.

    Args:
      frame: from `read_csv`.
      schema: declares what is a number and what is a category.
      with_target: whether the target must be there.

    Example:
      >>> from tacit.data import NumericColumn
      >>> schema = Schema(
      ...     columns=(NumericColumn(name="age", low=0, high=100),),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> typed(pd.DataFrame({"age": ["31", "?"], "ill": ["no", "yes"]}), schema).age.tolist()
      [31.0, nan]
    """
    declared: list[Column | Target | NumericTarget] = list(schema.columns)
    if with_target:
        declared.append(schema.target)
    require_columns(frame, [part.name for part in declared])
    result = frame.copy()
    for part in declared:
        if is_of_numbers(part):
            result[part.name] = to_numbers(frame[part.name])
        else:
            result[part.name] = frame[part.name].astype(object)
    return result


def to_numbers(cells: "pd.Series[Any]") -> "pd.Series[float]":
    """Returns a column of text as numbers; `MISSING_MARKS` become NaN.

    The index numbers the rows from 0 on.

    Raises:
      InvalidArgumentError: where a cell is something else, or infinite.
    """
    text = cells.astype("string").str.strip()
    is_missing = text.isna() | text.str.lower().isin(MISSING_MARKS)
    numbers = pd.to_numeric(text.mask(is_missing), errors="coerce").astype("Float64")
    values = np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan), np.float64)
    wrong = ~is_missing.to_numpy(dtype=bool) & ~np.isfinite(values)
    if wrong.any():
        row = cells.index[int(np.argmax(wrong))] + 1
        raise InvalidArgumentError(
            f"column {cells.name!r} must hold finite numbers; {int(wrong.sum())} of {len(cells)}"
            f" values are not, the first in row {row}. Correct them, write ? for"
            " a missing one, or declare the column with categories."
        )
    return pd.Series(values, index=cells.index, name=cells.name)


def odd_values(frame: pd.DataFrame, schema: Schema) -> Counter[str]:
    """Returns how many values of each column of a typed table its schema does not foresee."""
    found: Counter[str] = Counter()
    for column in schema.columns:
        values = frame[column.name]
        if isinstance(column, NumericColumn):
            found[column.name] = int(((values < column.low) | (values > column.high)).sum())
        else:
            found[column.name] = int((~values.isin(column.categories) & values.notna()).sum())
    return found


def remarks(odd: Counter[str], schema: Schema, *, num_rows: int) -> list[str]:
    """Returns what an owner should know of a table before it is used; not for publication.

    Values beyond a range are clipped and unknown categories are counted as others, so neither is
    an error; but many of them tell that the schema is of another table.

    Args:
      odd: from `odd_values`, of all rows.
      schema: the table's.
      num_rows: how many there are.
    """
    found = []
    for column in schema.columns:
        if isinstance(column, NumericColumn):
            what = f"lie outside [{column.low:g}, {column.high:g}] and are clipped"
        else:
            what = "are not among its categories and count as (other)"
        if odd[column.name]:
            found.append(f"column {column.name!r}: {odd[column.name]} of {num_rows} values {what}")
    return found


def is_of_numbers(part: Column | Target | NumericTarget) -> bool:
    """Whether a column is declared to hold numbers, be they codes."""
    match part:
        case CategoricalColumn(categories=levels) | Target(classes=levels):
            return isinstance(levels[0], int)
        case NumericColumn() | NumericTarget():
            return True


def _unreadable(file: Path, reason: str) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{str(file)!r} must be a CSV file with a first line of column names; {reason}."
    )
