"""Units with several rows in a table that is read in chunks: none is ever cut in two."""

from collections.abc import Iterable, Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = ["whole_units"]


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
