"""Private Bayesian classification and regression with scikit-learn's interface."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtri
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from tacit import _check
from tacit.data import NumericTarget, Schema, Target
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.estimators.inputs import as_limits
from tacit.estimators.table_estimator import TableEstimator, Uncertainty
from tacit.metrics.calibration import Band
from tacit.metrics.uncertainty import ClassificationUncertainty, RegressionUncertainty

__all__ = ["PrivateBayesClassifier", "PrivateBayesRegressor"]

_Floats = NDArray[np.float64]


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateBayesClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """A Bayesian network for classes whose posterior may be published.

    Guarantee:
      (epsilon, delta)-differential privacy for one row, or one person where ``fit`` gets groups,
      as ``privacy_`` states it from what was executed. Taken as public: the number of records,
      the schema or bounds, the classes, and every parameter here. Choosing parameters by
      looking at several fits costs extra, which `tacit.estimators.tune` counts.

    Args:
      classes: the public list of labels. Without it (and without schema) the labels that occur
        are taken as public, with a `PrivacyWarning`.

    All other arguments are those of `TableEstimator`, which the regressor shares: ``epsilon``,
    ``delta``, ``method``, ``schema``, ``bounds``, ``hidden`` and so on.

    Attributes:
      privacy_: the privacy statement of the fit.
      table_: the posterior with its schema; ``table_.save(directory)`` writes a run directory.
      classes_: the labels, sorted.

    Example:
      >>> rng = np.random.default_rng(0)
      >>> X = rng.uniform(-1, 1, size=(500, 3))
      >>> y = np.where(X[:, 0] > 0, "up", "down")
      >>> model = PrivateBayesClassifier(
      ...     epsilon=2.0, bounds=(-1, 1), classes=("down", "up"), random_state=0
      ... )
      >>> bool(model.fit(X, y).score(X, y) > 0.8)
      True
      >>> model.privacy_.epsilon_text
      '2.000 INSECURE'
    """

    classes: Sequence[Any] | None = None

    classes_: NDArray[Any] = field(init=False)

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> _Floats:
        """Returns the posterior predictive probability of each class, in the order of classes_."""
        found = self._uncertainty(X).probabilities
        # In float32 they add up to one to six digits only.
        return found[:, self._order] / found.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> _Floats:
        """Returns the logarithm of the same."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    def predict_uncertainty(self, X: Any) -> Uncertainty:
        """Returns the entropy of each prediction in nats, taken apart."""
        found = self._uncertainty(X)
        return Uncertainty(found.aleatoric_entropy, found.mutual_information, found.total_entropy)

    def predict_set(self, X: Any, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Returns the fewest classes of each row that have this probability together.

        How often such a set holds the truth rests on the model; `tacit.recalibration` makes sets
        whose coverage rests on calibration records instead.

        Returns:
          Of shape ``(num_rows, num_classes)``: whether a class is in the set.
        """
        _check.fraction(coverage=coverage, one=False)
        probabilities = self.predict_proba(X)
        order = np.argsort(-probabilities, axis=1, kind="stable")
        ordered = np.take_along_axis(probabilities, order, axis=1)
        needed = np.cumsum(ordered, axis=1) - ordered < coverage
        sets = np.zeros_like(needed)
        np.put_along_axis(sets, order, needed, axis=1)
        return sets

    def _with_labels(self, table: pd.DataFrame) -> pd.DataFrame:
        if self.schema is not None or table.index.nlevels == 1:
            return table
        given = self.table_.schema.class_target.classes
        names = dict(zip(given, self.classes_.tolist(), strict=True))
        return table.rename(index=names, level="class")

    def _uncertainty(self, X: Any) -> ClassificationUncertainty[_Floats]:
        found = self._predicted(X)
        assert isinstance(found, ClassificationUncertainty)
        return found

    def _labels(self, y: Any, num_rows: int) -> NDArray[Any]:
        check_classification_targets(y)
        labels = column_or_1d(y, warn=True)
        if len(labels) != num_rows:
            raise InvalidArgumentError(
                f"y must have as many entries as X has rows, {num_rows}; got {len(labels)}."
            )
        given = self.classes if self.schema is None else self.schema.class_target.classes
        if given is None:
            warnings.warn(
                "classes was not given, so the labels that occur in y are taken as public. If"
                " the presence of a label could tell about someone, pass classes=.",
                PrivacyWarning,
                stacklevel=4,
            )
            given = labels
        self.classes_ = np.unique(np.asarray(given))
        if len(self.classes_) < 2:
            raise InvalidArgumentError(
                f"classes must be at least two; got one class, {self.classes_[0]!r}. Pass classes="
                " with all labels that could occur."
            )
        self._order = np.arange(len(self.classes_))
        if self.schema is not None:
            self._order = np.argsort(np.asarray(given), kind="stable")
        return labels

    def _encode_labels(self, schema: Schema, labels: NDArray[Any]) -> NDArray[Any]:
        if self.schema is not None:
            return schema.class_target.encode(pd.Series(labels))
        places = np.minimum(np.searchsorted(self.classes_, labels), len(self.classes_) - 1)
        unknown = int(np.sum(self.classes_[places] != labels))
        if unknown:
            raise InvalidArgumentError(
                f"y holds {unknown} labels (of {len(labels)}) that are not in classes; add them or"
                " leave these rows out. (Not for publication: the number depends on the records.)"
            )
        return places.astype(np.int32)

    def _public_target(self) -> Target:
        classes = self.classes_.tolist()
        kinds = {type(label) for label in classes}
        is_plain = kinds in ({str}, {int})
        return Target(
            name=self._target_name(),
            classes=tuple(classes) if is_plain else tuple(range(len(classes))),
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on a few dozen records, as any private fit
        return tags


@dataclass(kw_only=True, eq=False, repr=False)
class PrivateBayesRegressor(RegressorMixin, TableEstimator):  # type: ignore[misc]
    """A Bayesian network for numbers whose posterior may be published.

    Targets are clipped to a range and predicted with a learnt noise.

    Guarantee:
      (epsilon, delta)-differential privacy for one row, or one person where ``fit`` gets groups,
      as ``privacy_`` states it from what was executed. Taken as public: the number of records,
      the schema or bounds, and every parameter here. Choosing parameters by looking at several
      fits costs extra, which `tacit.estimators.tune` counts.

    Args:
      target_bounds: the public range of the target, ``(low, high)``; like ``bounds``, it is found
        privately where neither it nor a schema is given.

    All other arguments are those of `TableEstimator`, which the classifier shares: ``epsilon``,
    ``delta``, ``method``, ``schema``, ``bounds``, ``hidden`` and so on.

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

    target_bounds: Any = None

    def predict(self, X: Any) -> _Floats:
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

    def _uncertainty(self, X: Any) -> RegressionUncertainty[_Floats]:
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
