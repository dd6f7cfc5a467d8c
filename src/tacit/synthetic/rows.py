"""Rows of a table as vectors of fixed length, and back, under a public code."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tacit.data import CategoricalColumn, NumericColumn, Schema, Target
from tacit.data.columns import Level, Scale
from tacit.errors import InvalidArgumentError

__all__ = ["CONTINUOUS", "MISSING", "RowCode", "typed_table"]


def typed_table(
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
      ...         NumericColumn(name="age", low=17, high=90),
      ...         CategoricalColumn(name="sex", categories=("Female", "Male")),
      ...     ),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> typed_table(schema, {"age": [30.4, 99.0], "sex": [1, 2], "ill": [0, 1]}, whole=("age",))
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
    part: NumericColumn | CategoricalColumn | Target, values: NDArray[Any], whole: Collection[str]
) -> "pd.Series[Any]":
    match part:
        case NumericColumn(name=name, low=low, high=high):
            numbers = np.asarray(values, np.float64)
            if name not in whole:
                return pd.Series(np.clip(numbers, low, high))
            # Whole numbers of the range, also where its ends are not whole.
            rounded = np.clip(np.round(numbers), np.ceil(low), np.floor(high))
            return pd.Series(pd.array(rounded, dtype="Float64")).astype("Int64")
        case CategoricalColumn(categories=levels):
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


CONTINUOUS = 0
"""The slot of a numeric column whose value is a position in the range."""

MISSING = 1
"""The slot of a numeric column without a value; the atoms follow it."""


@dataclass(frozen=True, kw_only=True)
class RowCode:
    """A public code for the rows of a table: a slot for each column, a position for each number.

    The slots of a categorical column are its categories and one for everything else; those of the
    target its classes; those of a numeric column ``CONTINUOUS``, ``MISSING`` and its atoms. The
    position of a number is where it stands in the public range, from 0 to 1 on the column's scale.

    Guarantee:
      ``encode`` treats every row on its own and uses nothing but the row and this public code, so
      it costs no privacy. Its errors may depend on the records and are not for publication.

    Args:
      schema: the public description of the table.
      whole: numeric columns that hold whole numbers; public knowledge, as the ranges are.
      atoms: pairs of a numeric column and a value that many rows share exactly, such as no capital
        gain or a week of 40 hours; public knowledge too.

    Example:
      >>> code = RowCode(
      ...     schema=Schema(
      ...         columns=(
      ...             NumericColumn(name="hours", low=0, high=100),
      ...             CategoricalColumn(name="sex", categories=("Female", "Male")),
      ...         ),
      ...         target=Target(name="ill", classes=("no", "yes")),
      ...     ),
      ...     atoms=(("hours", 40),),
      ... )
      >>> frame = pd.DataFrame({"hours": [75.0, 40.0], "sex": ["Male", "?"], "ill": ["no", "yes"]})
      >>> code.encode(frame).tolist()
      [[0.0, 1.0, 0.0, 0.75], [2.0, 2.0, 1.0, 0.0]]
      >>> code.decode(code.encode(frame))
         hours   sex  ill
      0   75.0  Male   no
      1   40.0   NaN  yes
    """

    schema: Schema
    whole: tuple[str, ...] = ()
    atoms: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        numeric = {column.name: column for column in self.numeric}
        for name in (*self.whole, *(name for name, _ in self.atoms)):
            if name not in numeric:
                raise InvalidArgumentError(
                    f"whole and atoms must name numeric columns of the schema; got {name!r}. "
                    f"The numeric ones are: {', '.join(numeric) or 'none'}."
                )
        for name, value in self.atoms:
            low, high = numeric[name].low, numeric[name].high
            if not low <= value <= high:
                raise InvalidArgumentError(
                    f"atoms must lie in the range of their column; got {value!r} for {name!r}, "
                    f"whose range is [{low}, {high}]."
                )

    @property
    def parts(self) -> tuple[NumericColumn | CategoricalColumn | Target, ...]:
        """The columns in order, the target last."""
        return (*self.schema.columns, self.schema.class_target)

    @property
    def numeric(self) -> tuple[NumericColumn, ...]:
        """The columns that have a position, in order."""
        return tuple(column for column in self.schema.columns if isinstance(column, NumericColumn))

    @property
    def num_slots(self) -> tuple[int, ...]:
        """How many slots each column has, the target last."""
        return tuple(map(self._count, self.parts))

    def encode(self, frame: pd.DataFrame) -> NDArray[np.float32]:
        """Returns one vector per row: all slots, then all positions (0 where there is none)."""
        self.schema.encode(frame[:0])  # complains about columns before any row is read
        slots = [self._slots(column, frame[column.name]) for column in self.schema.columns]
        positions = [
            np.where(slot == CONTINUOUS, self._positions(column, frame[column.name]), 0.0)
            for column, slot in zip(self.schema.columns, slots, strict=True)
            if isinstance(column, NumericColumn)
        ]
        labels = self.schema.encode_target(frame)
        return np.stack([*slots, labels, *positions], axis=1).astype(np.float32)

    def decode(self, rows: NDArray[np.float32]) -> pd.DataFrame:
        """Returns the table of some vectors; what is missing or of no category becomes NaN."""
        slots = np.asarray(rows[:, : len(self.parts)]).astype(np.int64)
        values: dict[str, NDArray[Any]] = dict(
            zip((p.name for p in self.parts), slots.T, strict=True)
        )
        for column, position in zip(self.numeric, rows[:, len(self.parts) :].T, strict=True):
            low, high = self._ends(column)
            number = _unscaled(column.scale, low + (high - low) * position.astype(np.float64))
            fixed = np.array([np.nan, *self._atoms(column)])
            slot = values[column.name]
            values[column.name] = np.where(
                slot == CONTINUOUS, number, fixed[np.clip(slot - MISSING, 0, len(fixed) - 1)]
            )
        return typed_table(self.schema, values, whole=self.whole)

    def _count(self, part: NumericColumn | CategoricalColumn | Target) -> int:
        match part:
            case NumericColumn():
                return 2 + len(self._atoms(part))
            case CategoricalColumn(categories=levels):
                return len(levels) + 1
            case Target(classes=levels):
                return len(levels)

    def _atoms(self, column: NumericColumn) -> tuple[float, ...]:
        return tuple(value for name, value in self.atoms if name == column.name)

    def _ends(self, column: NumericColumn) -> tuple[float, float]:
        """Returns the range on the column's scale; a whole number owns half a unit on each side."""
        margin = 0.5 if column.name in self.whole else 0.0
        low, high = column.scale(np.array([column.low - margin, column.high + margin]))
        return float(low), float(high)

    def _slots(
        self, column: NumericColumn | CategoricalColumn, values: "pd.Series[Any]"
    ) -> NDArray[np.int64]:
        features = column.encode(values)
        if isinstance(column, CategoricalColumn):
            return np.argmax(features, axis=1)
        slots = np.where(features[:, -1] == 1, MISSING, CONTINUOUS)
        for slot, atom in enumerate(self._atoms(column), start=MISSING + 1):
            slots[_clipped(column, values) == atom] = slot
        return slots

    def _positions(self, column: NumericColumn, values: "pd.Series[Any]") -> NDArray[np.float64]:
        low, high = self._ends(column)
        return (column.scale(_clipped(column, values)) - low) / (high - low)


def _clipped(column: NumericColumn, values: "pd.Series[Any]") -> NDArray[np.float64]:
    numbers = values.astype("Float64").to_numpy(dtype=np.float64, na_value=np.nan)
    return np.clip(numbers, column.low, column.high)


def _unscaled(scale: Scale, values: NDArray[np.float64]) -> NDArray[np.float64]:
    return values if scale is Scale.LINEAR else np.expm1(values)
