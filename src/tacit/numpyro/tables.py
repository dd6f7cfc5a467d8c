"""Arrays of drawn values as a table with the types, categories and ranges of a schema."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tacit.data import Categorical, Numeric, Schema, Target
from tacit.data.columns import Level
from tacit.errors import InvalidArgumentError

__all__ = ["as_table"]


def as_table(
    schema: Schema, values: Mapping[str, ArrayLike], *, whole: Collection[str] = ()
) -> pd.DataFrame:
    """Returns a table that keeps to the schema, whatever the values are.

    Args:
      schema: the public description of the table.
      values: one array per column and one for the target. Numbers of numeric columns are clipped to
        the range, and NaN is missing. Of other columns it is the number of the level; a number
        beyond the last stands for no level and becomes missing (the target has no such number).
      whole: numeric columns to round; their type is pandas' ``Int64``, which knows missing values.

    Example:
      >>> schema = Schema(
      ...     columns=(
      ...         Numeric(name="age", low=17, high=90),
      ...         Categorical(name="sex", categories=("Female", "Male")),
      ...     ),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> as_table(schema, {"age": [30.4, 99.0], "sex": [1, 2], "ill": [0, 1]}, whole=("age",))
         age   sex  ill
      0   30  Male   no
      1   90   NaN  yes
    """
    parts = (*schema.columns, schema.class_target)
    missing = sorted({part.name for part in parts} - set(values))
    if missing:
        raise InvalidArgumentError(
            f"values must have an array for every column of the schema; missing: "
            f"{', '.join(missing)}. A synthetic table comes from a program over all columns."
        )
    return pd.DataFrame(
        {part.name: _typed(part, np.asarray(values[part.name]), whole) for part in parts}
    )


def _typed(
    part: Numeric | Categorical | Target, values: NDArray[Any], whole: Collection[str]
) -> "pd.Series[Any]":
    match part:
        case Numeric(name=name, low=low, high=high):
            numbers = np.asarray(values, np.float64)
            if name not in whole:
                return pd.Series(np.clip(numbers, low, high))
            # Whole numbers of the range, also where its ends are not whole.
            rounded = np.clip(np.round(numbers), np.ceil(low), np.floor(high))
            return pd.Series(pd.array(rounded, dtype="Float64")).astype("Int64")
        case Categorical(categories=levels):
            return _levels(levels, np.where(values < len(levels), values, -1))
        case Target(name=name, classes=levels):
            if np.any((values < 0) | (values >= len(levels))):
                raise InvalidArgumentError(
                    f"values of the target {name!r} must be class numbers from 0 to "
                    f"{len(levels) - 1}."
                )
            return _levels(levels, values)


def _levels(levels: tuple[Level, ...], numbers: NDArray[Any]) -> "pd.Series[Any]":
    dtype = pd.CategoricalDtype(list(levels))
    return pd.Series(pd.Categorical.from_codes(np.asarray(numbers, np.int64).tolist(), dtype=dtype))
