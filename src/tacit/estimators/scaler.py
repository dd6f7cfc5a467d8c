"""A scaler whose range is found privately."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from tacit.estimators.inputs import UnknownColumns
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.statement import Statement, make_statement

__all__ = ["PrivateScaler"]


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
