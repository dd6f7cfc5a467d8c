"""Inputs of an estimator: arrays and frames, their public columns, and the records they make."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.data import Numeric, Schema, as_records
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.cost import Cost
from tacit.privacy.private_bounds import (
    BoundsSearch,
    PrivateBounds,
    bounds_noise,
    private_bounds,
)

__all__ = [
    "BOUNDS_SHARE",
    "Limits",
    "UnknownColumns",
    "as_frame",
    "as_limits",
    "numeric_columns",
]

BOUNDS_SHARE = 0.1
"""How much of the budget private bounds take; the fit then has 5 percent more noise."""


class Limits(NamedTuple):
    """Lower and upper ends of some columns."""

    low: NDArray[np.float64]
    high: NDArray[np.float64]


def as_limits(name: str, bounds: Any, num_columns: int) -> Limits:
    """Returns public bounds, given as a pair of numbers or of one number for each column.

    Example:
      >>> as_limits("bounds", (0, [16, 99]), 2)
      Limits(low=array([0., 0.]), high=array([16., 99.]))
    """
    if not isinstance(bounds, Sequence | np.ndarray) or len(bounds) != 2:
        raise InvalidArgumentError(
            f"{name} must be a pair (low, high) of numbers or of one number for each column; got"
            f" {bounds!r}."
        )
    low, high = (np.asarray(end, np.float64) for end in bounds)
    for end in (low, high):
        if end.shape not in ((), (num_columns,)):
            raise InvalidArgumentError(
                f"{name} must be numbers, or arrays of length {num_columns}; got shape {end.shape}."
            )
    low, high = (np.broadcast_to(end, (num_columns,)).copy() for end in (low, high))
    if not np.all(np.isfinite(low) & np.isfinite(high) & (low < high)):
        raise InvalidArgumentError(f"{name} must be finite, with low below high; got {bounds!r}.")
    return Limits(low, high)


def as_frame(x: Any, schema: Schema) -> pd.DataFrame:
    """Returns the columns of the schema, found by name in a frame, by place in an array."""
    names = [column.name for column in schema.columns]
    if isinstance(x, pd.DataFrame):
        require_columns(x, names)
        return x[names].reset_index(drop=True)
    array = np.asarray(x)
    if array.ndim != 2 or array.shape[1] != len(names):
        raise InvalidArgumentError(
            f"X must have the {len(names)} columns of the schema; got shape {array.shape}. Pass a"
            " pandas DataFrame, whose columns are found by name."
        )
    return pd.DataFrame(array, columns=names).infer_objects()


def numeric_columns(names: Sequence[str], limits: Limits) -> tuple[Numeric, ...]:
    """Returns one numeric column for each name."""
    return tuple(
        Numeric(name=name, low=float(low), high=float(high))
        for name, low, high in zip(names, limits.low, limits.high, strict=True)
    )


@dataclass(frozen=True, kw_only=True)
class UnknownColumns:
    """Columns whose bounds are not public, and what it costs to find them.

    Attributes:
      values: one row for each unit of privacy, or several with a mask.
      mask: tells rows from padding.
      search: what is released; made of public facts only.
    """

    values: NDArray[np.float64]
    mask: NDArray[np.bool_] | None
    search: BoundsSearch

    @classmethod
    def of_rows(
        cls,
        values: NDArray[np.float64],
        *,
        budget: Budget,
        groups: ArrayLike | None = None,
        max_rows: int | None = None,
        share: float = BOUNDS_SHARE,
    ) -> Self:
        """Takes rows together to units, and a share of the budget for their bounds."""
        _check.fraction(share=share)
        mask = None
        if groups is not None:
            units = as_records(
                values,
                np.zeros(len(values), np.int32),
                groups=groups,
                max_rows=max_rows,
                allow_non_finite=True,
            )
            values, mask = np.asarray(units.x, np.float64), np.asarray(units.mask)
        search = BoundsSearch(
            num_records=values.shape[0],
            num_columns=values.shape[-1],
            noise_multiplier=bounds_noise(budget, share=share),
        )
        return cls(values=values, mask=mask, search=search)

    def find(
        self, *, budget: Budget, seed: int | None, ledger: Ledger | None
    ) -> tuple[PrivateBounds, Cost]:
        """Pays, and returns private bounds and what they cost.

        Guarantee:
          As `private_bounds`.
        """
        return private_bounds(
            self.values,
            mask=self.mask,
            budget=budget,
            noise_multiplier=self.search.noise_multiplier,
            seed=seed,
            ledger=ledger,
        )
