"""A private Bayesian regressor with scikit-learn's interface."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import RegressorMixin
from sklearn.utils.validation import column_or_1d

from tacit import _check
from tacit.data import NumericTarget, Schema
from tacit.errors import InvalidArgumentError
from tacit.estimators.inputs import as_limits
from tacit.estimators.table_estimator import TableEstimator, Uncertainty
from tacit.metrics import RegressionUncertainty
from tacit.metrics.intervals import Band
from tacit.privacy.budget import Ledger

__all__ = ["PrivateBayesRegressor"]

Floats = NDArray[np.float64]


class PrivateBayesRegressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """A Bayesian network for numbers whose posterior may be published.

    Targets are clipped to a range and predicted with a learnt noise.

    Guarantee:
      (epsilon, delta)-differential privacy for one row, or one person where ``fit`` gets groups,
      as ``privacy_`` states it from what was executed. Taken as public: the number of records,
      the schema or bounds, and every parameter here. Choosing parameters by looking at several
      fits costs extra, which `tacit.estimators.tune` counts.

    Args:
      epsilon: the budget; ``math.inf`` runs the same fit without privacy.
      delta: the chance that the promise of epsilon fails; well below 1 / (number of records).
      method: the name of an inference method, as in `tacit.studies.Recipe`.
      schema: the public description of a table with numeric and categorical columns; X is then
        a frame, whose columns are found by name.
      bounds: the public range of numeric inputs, ``(low, high)``, each a number or one for each
        column. Without schema and bounds, a tenth of the budget finds them privately.
      target_bounds: the public range of the target, ``(low, high)``; like ``bounds``, it is found
        privately where neither it nor a schema is given.
      hidden: widths of hidden layers; ``()`` is a linear model. This and what follows is chosen
        from public facts where it is None: records, features, classes and epsilon.
      num_steps: updates; the noise is such that all of them together spend the budget.
      batch_size: expected number of records in an update.
      clip_norm: the largest gradient norm that one record contributes.
      learning_rate: on the gradient of the mean loss.
      max_rows: how many rows of one person count, where ``fit`` is given groups.
      max_weight: the largest sample weight; public.
      ledger: is charged for all that is released.
      random_state: None draws secret noise. A number is for tests and marks the statement
        INSECURE.
      verbose: shows a bar with steps and epsilon.

    Attributes:
      privacy_: the privacy statement of the fit.
      table_: the posterior with its schema; ``table_.save(directory)`` writes a run directory.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> X = rng.uniform(-1, 1, size=(500, 3))
      >>> model = PrivateBayesRegressor(
      ...     epsilon=2.0, bounds=(-1, 1), target_bounds=(-100, 100), random_state=0
      ... )
      >>> bool(model.fit(X, 50 * X[:, 0]).score(X, 50 * X[:, 0]) > 0.7)
      True
      >>> low, high = model.predict_interval([[0.5, 0.0, 0.0]], coverage=0.9)
      >>> bool(low[0] < 25 < high[0])
      True
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str = "sgld",
        schema: Schema | None = None,
        bounds: Any = None,
        target_bounds: Any = None,
        hidden: Sequence[int] | None = None,
        num_steps: int | None = None,
        batch_size: int | None = None,
        clip_norm: float | None = None,
        learning_rate: float | None = None,
        max_rows: int | None = None,
        max_weight: float = 1.0,
        ledger: Ledger | None = None,
        random_state: Any = None,
        verbose: bool = False,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.method = method
        self.schema = schema
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.hidden = hidden
        self.num_steps = num_steps
        self.batch_size = batch_size
        self.clip_norm = clip_norm
        self.learning_rate = learning_rate
        self.max_rows = max_rows
        self.max_weight = max_weight
        self.ledger = ledger
        self.random_state = random_state
        self.verbose = verbose

    def predict(self, X: Any) -> Floats:
        """Returns the posterior predictive mean of each row, in the units of y."""
        return self._uncertainty(X).mean

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Returns the variance of each prediction, taken apart, in squared units of y."""
        found = self._uncertainty(X)
        return Uncertainty(found.aleatoric_variance, found.epistemic_variance, found.total_variance)

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Band:
        """Returns for each row an interval that holds a new target with this probability.

        The predictive distribution is taken as normal, and targets outside their range as being at
        its ends. How often such an interval holds the truth rests on the model; intervals from
        `tacit.recalibration` rest on calibration records instead.

        Returns:
          A pair ``(low, high)`` of arrays.
        """
        _check.fraction(coverage=coverage, one=False)
        found = self._uncertainty(X)
        half = float(ndtri(0.5 + coverage / 2)) * np.sqrt(found.total_variance)
        return Band(found.mean - half, found.mean + half)

    def _uncertainty(self, X: Any) -> RegressionUncertainty[Floats]:
        found = self._predicted(X)
        assert isinstance(found, RegressionUncertainty)
        return found

    def _labels(self, y: Any, num_rows: int) -> NDArray[Any]:
        numbers = column_or_1d(y, dtype=np.float64, warn=True)
        if len(numbers) != num_rows:
            raise InvalidArgumentError(
                f"y must have as many entries as X has rows, {num_rows}; got {len(numbers)}."
            )
        if not np.isfinite(numbers).all():
            raise InvalidArgumentError("y must be finite; it contains NaN or infinity.")
        return numbers

    def _encode_labels(self, schema: Schema, labels: NDArray[Any]) -> NDArray[Any]:
        if not isinstance(schema.target, NumericTarget):
            raise InvalidArgumentError(
                f"schema must have a numeric target, with low and high; got {schema.target!r}. For"
                " classes use PrivateBayesClassifier."
            )
        return schema.target.encode(pd.Series(labels))

    def _public_target(self) -> NumericTarget | None:
        if self.target_bounds is None:
            return None
        low, high = as_limits("target_bounds", self.target_bounds, 1)
        return NumericTarget(name=self._target_name(), low=float(low[0]), high=float(high[0]))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # on a few dozen records, as any private fit
        return tags
