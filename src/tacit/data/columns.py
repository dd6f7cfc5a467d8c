"""Columns with public ranges, categories and classes, and the features they become."""

from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = [
    "CategoricalColumn",
    "Column",
    "Features",
    "Level",
    "NumericColumn",
    "NumericTarget",
    "Scale",
    "Target",
]

Features: TypeAlias = NDArray[np.float32]
"""One row of features per row of a table."""

Level: TypeAlias = str | int
"""One of the values that a categorical column or a target may take."""


_LARGEST_CODE = 2**53  # as far as columns of numbers tell whole ones apart


class Scale(Enum):
    """How the values of a numeric column are spread before they are mapped to features."""

    LINEAR = "linear"
    LOG1P = "log1p"

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Returns the values on this scale."""
        return values if self is Scale.LINEAR else np.log1p(values)


@dataclass(frozen=True, kw_only=True)
class NumericColumn:
    """A column of numbers with a public range.

    A value is clipped to ``[low, high]`` and becomes one feature in ``[-1, 1]``, or, with
    ``knots``, one weight per knot: the two knots around the value share a weight of one, so that
    a linear model of the features is a piecewise linear function of the value. A last feature is
    1 where the value is missing (NaN), and all the others are then 0.

    Guarantee:
      The features of a row depend on that row alone and have Euclidean norm at most 1.

    Args:
      name: the column's name in the table.
      low: the smallest value that is told apart; public knowledge, not the minimum of the data.
      high: the largest value that is told apart.
      scale: ``Scale.LOG1P`` for heavy tails such as money.
      knots: increasing public values between ``low`` and ``high``, which are knots themselves.

    Example:
      >>> age = NumericColumn(name="age", low=0, high=100)
      >>> age.encode(pd.Series([0.0, 75.0, 130.0, float("nan")])).tolist()
      [[-1.0, 0.0], [0.5, 0.0], [1.0, 0.0], [0.0, 1.0]]
      >>> hours = NumericColumn(name="hours", low=0, high=80, knots=(40,))
      >>> hours.feature_names
      ('hours@0', 'hours@40', 'hours@80', 'hours=(missing)')
      >>> hours.encode(pd.Series([40.0, 50.0])).tolist()
      [[0.0, 1.0, 0.0, 0.0], [0.0, 0.75, 0.25, 0.0]]
    """

    name: str
    low: float
    high: float
    scale: Scale = Scale.LINEAR
    knots: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        _require_name(self.name)
        _check.finite(low=self.low, high=self.high)
        if not isinstance(self.knots, tuple):
            raise InvalidArgumentError(
                f"column {self.name!r}: knots must be a tuple; got {self.knots!r}."
            )
        _check.finite(**{f"knots[{i}]": knot for i, knot in enumerate(self.knots)})
        if list(self._grid) != sorted(set(self._grid)):
            raise InvalidArgumentError(
                f"column {self.name!r}: low, knots and high must increase; got {self._grid}."
            )
        if self.scale is Scale.LOG1P and self.low <= -1:
            raise InvalidArgumentError(
                f"column {self.name!r}: the log1p scale needs low > -1; got {self.low!r}. "
                "Use Scale.LINEAR for values of both signs."
            )

    @property
    def _grid(self) -> tuple[float, ...]:
        return (self.low, *self.knots, self.high)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature, in order."""
        values = (
            tuple(f"{self.name}@{knot:.12g}" for knot in self._grid) if self.knots else (self.name,)
        )
        return (*values, f"{self.name}=(missing)")

    def encode(self, values: "pd.Series[Any]") -> Features:
        """Returns the features of a column, one row per value."""
        if not _holds_numbers(values.dtype) and not values.isna().all():
            raise InvalidArgumentError(
                f"column {self.name!r} must hold numbers; got dtype {values.dtype}. Convert it "
                "with pandas.to_numeric (errors='coerce' turns marks such as '?' into missing "
                "values), or declare it a CategoricalColumn."
            )
        numbers = _floats(values)
        missing = np.isnan(numbers)
        clipped = np.clip(np.where(missing, self.low, numbers), self.low, self.high)
        grid = self.scale(np.asarray(self._grid, dtype=np.float64))
        # Positions 0, 1, 2, ... stand for the knots: there every hat function has width one.
        position = np.interp(self.scale(clipped), grid, np.arange(grid.size))[:, None]
        if self.knots:
            features = np.maximum(1.0 - np.abs(position - np.arange(grid.size)), 0.0)
        else:
            features = 2.0 * position - 1.0
        features[missing] = 0.0
        return np.hstack([features, missing[:, None]]).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class CategoricalColumn:
    """A column whose values come from a public list, as one feature per category.

    A last feature is 1 for every other value: unseen, misspelt or missing. Values are compared
    exactly, blanks included. A list shorter than what occurs is a way to merge rare categories.

    Guarantee:
      The features of a row depend on that row alone and have Euclidean norm 1.

    Args:
      name: the column's name in the table.
      categories: distinct strings, or distinct whole numbers for columns of codes.

    Example:
      >>> blood = CategoricalColumn(name="rh", categories=("negative", "positive"))
      >>> blood.feature_names
      ('rh=negative', 'rh=positive', 'rh=(other)')
      >>> blood.encode(pd.Series(["positive", "?", None])).tolist()
      [[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """

    name: str
    categories: tuple[Level, ...]

    def __post_init__(self) -> None:
        _require_name(self.name)
        _require_levels(f"column {self.name!r}: categories", self.categories)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature, in order."""
        return tuple(f"{self.name}={level}" for level in (*self.categories, "(other)"))

    def encode(self, values: "pd.Series[Any]") -> Features:
        """Returns the features of a column, one row per value."""
        # The index -1 of an unknown value picks the last row, which is the slot for others.
        one_hot = np.eye(len(self.categories) + 1, dtype=np.float32)
        return one_hot[_positions(self.name, self.categories, values)]


Column: TypeAlias = NumericColumn | CategoricalColumn


@dataclass(frozen=True, kw_only=True)
class Target:
    """The column to predict and its public list of classes, numbered in order.

    Example:
      >>> Target(name="income", classes=("<=50K", ">50K")).encode(pd.Series([">50K"]))
      array([1], dtype=int32)
    """

    name: str
    classes: tuple[Level, ...]

    def __post_init__(self) -> None:
        _require_name(self.name)
        _require_levels(f"target {self.name!r}: classes", self.classes)
        if len(self.classes) < 2:
            raise InvalidArgumentError(
                f"target {self.name!r}: classes must list at least two; got {self.classes!r}."
            )

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.int32]:
        """Returns class numbers; raises if a label is not in the list.

        The error tells how many labels are unknown, which depends on the records: do not publish
        it.
        """
        labels = _positions(self.name, self.classes, values)
        unknown = int(np.sum(labels < 0))
        if unknown:
            raise InvalidArgumentError(
                f"column {self.name!r}: {unknown} of {labels.size} labels are not among the "
                f"classes {self.classes!r}, which are compared exactly (blanks and full stops "
                "included). Correct the class list or the labels, or leave these rows out."
            )
        return labels.astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class NumericTarget:
    """The column of numbers to predict, and its public range.

    A value is clipped to ``[low, high]`` and scaled to ``[-1, 1]``, where models predict it.

    Guarantee:
      The target of a row depends on that row alone and lies in ``[-1, 1]``.

    Args:
      name: the column's name in the table.
      low: the smallest value that is told apart; public knowledge, not the minimum of the data.
      high: the largest value that is told apart.

    Example:
      >>> weeks = NumericTarget(name="weeks", low=20, high=45)
      >>> weeks.encode(pd.Series([32.5, 50.0])).tolist()
      [0.0, 1.0]
      >>> weeks.decode(np.array([0.0, 1.0])).tolist()
      [32.5, 45.0]
    """

    name: str
    low: float
    high: float

    def __post_init__(self) -> None:
        _require_name(self.name)
        _check.finite(low=self.low, high=self.high)
        # The centre, too, must be a number of the user's that float64 holds.
        if not 0 < self.high - self.low < float("inf"):
            raise InvalidArgumentError(
                f"target {self.name!r}: low must be below high; got {self.low!r} and {self.high!r}."
            )

    @property
    def half_range(self) -> float:
        """How many of the user's units one unit of the model is."""
        return 0.5 * self.high - 0.5 * self.low

    def encode(self, values: "pd.Series[Any]") -> NDArray[np.float32]:
        """Returns targets in ``[-1, 1]``; raises if one is missing.

        The error tells how many are missing, which depends on the records: do not publish it.
        """
        if not _holds_numbers(values.dtype):
            raise InvalidArgumentError(
                f"target {self.name!r} must hold numbers; got dtype {values.dtype}. Convert it "
                "with pandas.to_numeric, or declare its classes."
            )
        numbers = _floats(values)
        missing = int(np.sum(np.isnan(numbers)))
        if missing:
            raise InvalidArgumentError(
                f"column {self.name!r}: {missing} of {numbers.size} targets are missing. "
                "Leave these rows out."
            )
        clipped = np.clip(numbers, self.low, self.high)
        return ((clipped - self._centre) / self.half_range).astype(np.float32)

    def decode(self, scaled: NDArray[Any]) -> NDArray[np.float64]:
        """Returns what scaled targets, or predictions of them, are in the user's units."""
        return np.asarray(scaled, np.float64) * self.half_range + self._centre

    @property
    def _centre(self) -> float:
        return 0.5 * self.low + 0.5 * self.high


def _holds_numbers(dtype: Any) -> bool:
    return pd.api.types.is_any_real_numeric_dtype(dtype) or pd.api.types.is_bool_dtype(dtype)


def _floats(values: "pd.Series[Any]") -> NDArray[np.float64]:
    nullable = values.astype("Float64")
    return np.asarray(nullable.to_numpy(dtype=np.float64, na_value=np.nan), np.float64)


def _positions(name: str, levels: tuple[Level, ...], values: "pd.Series[Any]") -> NDArray[np.intp]:
    """Returns where each value stands in the list of levels, -1 for those that do not."""
    if values.isna().all():  # such a column has lost its type, for instance on its way through CSV
        return np.full(len(values), -1, dtype=np.intp)
    dtype = values.dtype
    if isinstance(dtype, pd.CategoricalDtype):
        dtype = dtype.categories.dtype
    wanted = "text" if isinstance(levels[0], str) else "whole numbers"
    if _holds_numbers(dtype) == (wanted == "text"):
        raise InvalidArgumentError(
            f"column {name!r} is declared with {wanted}; got dtype {dtype}. Declare the values "
            "as they are in the table, or convert it with astype(str) or pandas.to_numeric."
        )
    if wanted == "text":
        known, given = pd.Index(levels, dtype=object), pd.Index(values.astype(object))
    else:
        known, given = pd.Index(levels, dtype=np.float64), pd.Index(_floats(values))
    return known.get_indexer(given)


def _require_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(f"name must be a column's name; got {name!r}.")


def _require_levels(what: str, levels: tuple[Level, ...]) -> None:
    kinds = {type(level) for level in levels}
    if (
        not isinstance(levels, tuple)
        or kinds not in ({str}, {int})
        or len(set(levels)) != len(levels)
        or any(isinstance(level, int) and abs(level) > _LARGEST_CODE for level in levels)
    ):
        raise InvalidArgumentError(
            f"{what} must be a tuple of distinct strings or distinct whole numbers; got {levels!r}."
        )
