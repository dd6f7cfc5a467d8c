"""Inputs of an estimator: arrays and frames, their public columns, and the records they make.

A search or a cross-validation fits many times, on parts of one table that overlap, and each fit has
a statement of its own. Where a ledger is charged, that is counted; where none is, all that can be
done is to notice, within one process, and to say so.
"""

import secrets
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from dp_accounting import DpEvent
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit import _check
from tacit.data import NumericColumn, Schema, as_records
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.privacy.accounting import RDP
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.cost import Cost, composed
from tacit.privacy.private_bounds import BoundsSearch, PrivateBounds, bounds_noise, private_bounds
from tacit.privacy.statement import Statement
from tacit.privacy.statement.construction import make_statement

__all__ = [
    "BOUNDS_SHARE",
    "Limits",
    "PrivateScaler",
    "UnknownColumns",
    "as_frame",
    "as_limits",
    "forget_fits",
    "numeric_columns",
    "warn_of_refits",
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


def numeric_columns(names: Sequence[str], limits: Limits) -> tuple[NumericColumn, ...]:
    """Returns one numeric column for each name."""
    return tuple(
        NumericColumn(name=name, low=float(low), high=float(high))
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


_SKETCH = 2048
_OVERLAP = 0.1
_SALT = secrets.token_hex(8)


@dataclass(frozen=True)
class _Seen:
    """A fit: its smallest row hashes, below a limit that depends on how many rows there were."""

    hashes: NDArray[np.uint64]
    limit: np.uint64
    cost: DpEvent


_seen: list[_Seen] = []


def forget_fits() -> None:
    """Forgets all fits of this process; for tests, and for data that are public."""
    _seen.clear()


def warn_of_refits(frame: pd.DataFrame, cost: DpEvent, *, delta: float) -> None:
    """Remembers a fit, and warns when earlier ones shared a tenth of its rows.

    Guarantee:
      None: it reads rows to warn their owner, keeps hashes under a secret salt in memory, and
      notices nothing across processes. The warning is not for publication. Epsilon is that of all
      fits which share rows, by Rényi divergences, which permit choosing a fit after seeing others.

    Args:
      frame: inputs and target.
      cost: what the fit is about to spend.
      delta: at which epsilon is reported.
    """
    now = _sketch(frame, cost)
    earlier = [fit for fit in _seen if _overlap(now, fit) >= _OVERLAP]
    _seen.append(now)
    if not earlier:
        return
    total = RDP().epsilon(composed(*(fit.cost for fit in earlier), cost), delta=delta)
    warnings.warn(
        f"this is fit number {len(earlier) + 1} on many of the same records in this process, and"
        f" every fit costs: together epsilon {round_up(total)} at delta {delta:g} for a record that"
        " is in all of them. What `privacy_` says is for this fit alone. Pass ledger= to count"
        " and limit them, or use tacit.estimators.tune instead of a search.",
        PrivacyWarning,
        stacklevel=4,
    )


def _sketch(frame: pd.DataFrame, cost: DpEvent) -> _Seen:
    rows = pd.util.hash_pandas_object(frame, index=False, hash_key=_SALT)
    hashes: NDArray[np.uint64] = np.unique(np.asarray(rows, np.uint64))
    if len(hashes) <= _SKETCH:
        return _Seen(hashes, np.uint64(2**64 - 1), cost)
    return _Seen(hashes[:_SKETCH], hashes[_SKETCH - 1], cost)


def _overlap(now: _Seen, before: _Seen) -> float:
    """Returns which part of the rows was there before, estimated from hashes both would keep."""
    limit = min(now.limit, before.limit)
    comparable = now.hashes[now.hashes <= limit]
    return float(np.isin(comparable, before.hashes).mean()) if len(comparable) else 0.0


class PrivateScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scales numbers to [-1, 1] by bounds that are found privately, and clips the rest.

    A scaler that computes means or quantiles of private records is an unpaid release, and voids
    the statement of what is fitted behind it. This one pays, on its own account: its epsilon and
    that of the estimator add up. Public bounds are better where there are any, and the estimators
    of this package find bounds within their own budget where there are none.

    Guarantee:
      As private bounds: two noisy histograms, for all of epsilon and delta; ``privacy_`` states it.
      Bounds may be published. Transformed records are as private as the records were.

    Args:
      epsilon: the budget of the bounds.
      delta: the same.
      ledger: is charged.
      random_state: None draws secret noise; a number is for tests, INSECURE.

    Attributes:
      low_: where -1 is, for each column.
      high_: where +1 is.
      privacy_: the privacy statement of the bounds.

    Example:
      >>> ages = np.random.default_rng(0).uniform(20, 60, size=(5000, 1))
      >>> scaler = PrivateScaler(epsilon=0.5, random_state=0).fit(ages)
      >>> bool(np.abs(scaler.transform(ages)).max() <= 1)
      True
    """

    low_: NDArray[np.float64]
    high_: NDArray[np.float64]
    privacy_: Statement

    def __init__(
        self,
        *,
        epsilon: float = 0.1,
        delta: float = 1e-6,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.ledger = ledger
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Finds bounds, for all of the budget."""
        del y
        budget = Budget(epsilon=self.epsilon, delta=self.delta)
        values = validate_data(self, X, dtype=np.float64, ensure_all_finite="allow-nan")
        unknown = UnknownColumns.of_rows(values, budget=budget, share=1.0)
        found, cost = unknown.find(budget=budget, seed=self.random_state, ledger=self.ledger)
        self.low_, self.high_ = found.low, found.high
        self.privacy_ = make_statement(
            cost=cost,
            budget=budget,
            unit="one record (one row)",
            num_units=len(values),
            is_charged=self.ledger is not None,
        )
        return self

    def transform(self, X: ArrayLike) -> NDArray[np.float64]:
        """Returns the inputs between -1 and 1; missing values stay missing."""
        check_is_fitted(self)
        values = validate_data(
            self, X, reset=False, dtype=np.float64, ensure_all_finite="allow-nan"
        )
        position = (np.clip(values, self.low_, self.high_) - self.low_) / (self.high_ - self.low_)
        return np.asarray(2 * position - 1, np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.non_deterministic = True
        return tags
