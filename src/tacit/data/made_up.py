"""Made-up rows of a table, drawn evenly from its schema: no record is read."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit.data.columns import CategoricalColumn, Column, Scale
from tacit.data.schema import Schema

__all__ = ["made_up_features"]


def made_up_features(schema: Schema, *, num_rows: int, seed: int = 0) -> NDArray[np.float32]:
    """Returns encoded rows whose columns are spread evenly over the schema, independently.

    Args:
      schema: the public description of the table.
      num_rows: how many.
      seed: of the rows.
    """
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({column.name: _values(rng, column, num_rows) for column in schema.columns})
    return schema.encode(frame)


def _values(rng: np.random.Generator, column: Column, num_rows: int) -> "pd.Series[Any]":
    if isinstance(column, CategoricalColumn):
        positions = rng.integers(len(column.categories), size=num_rows)
        return pd.Series([column.categories[at] for at in positions])
    if column.scale is Scale.LOG1P:
        low, high = np.log1p(column.low), np.log1p(column.high)
        return pd.Series(np.expm1(rng.uniform(low, high, num_rows)))
    return pd.Series(rng.uniform(column.low, column.high, num_rows))
