"""A private Bayesian classifier with scikit-learn's interface."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from tacit import _check
from tacit.data import Schema, Target
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.estimators.table_estimator import TableEstimator, Uncertainty
from tacit.metrics import ClassificationUncertainty
from tacit.privacy.budget import Ledger

__all__ = ["PrivateBayesClassifier"]

Floats = NDArray[np.float64]


class PrivateBayesClassifier(ClassifierMixin, TableEstimator):  # type: ignore[misc]
    """A Bayesian network for classes whose posterior may be published.

    Guarantee:
      (epsilon, delta)-differential privacy for one row, or one person where ``fit`` gets groups,
      as ``privacy_`` states it from what was executed. Taken as public: the number of records,
      the schema or bounds, the classes, and every parameter here. Choosing parameters by
      looking at several fits costs extra, which `tacit.estimators.tune` counts.

    Args:
      epsilon: the budget; ``math.inf`` runs the same fit without privacy.
      delta: the chance that the promise of epsilon fails; well below 1 / (number of records).
      method: the name of an inference method, as in `tacit.studies.Recipe`.
      schema: the public description of a table with numeric and categorical columns; X is then
        a frame, whose columns are found by name.
      bounds: the public range of numeric inputs, ``(low, high)``, each a number or one for each
        column. Without schema and bounds, a tenth of the budget finds them privately.
      classes: the public list of labels. Without it (and without schema) the labels that occur
        are taken as public, with a `PrivacyWarning`.
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

    classes_: NDArray[Any]

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float = 1e-5,
        method: str = "sgld",
        schema: Schema | None = None,
        bounds: Any = None,
        classes: Sequence[Any] | None = None,
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
        self.classes = classes
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

    def predict(self, X: Any) -> NDArray[Any]:
        """Returns the most probable class of each row."""
        probabilities = self.predict_proba(X)
        return self.classes_[probabilities.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Floats:
        """Returns the posterior predictive probability of each class, in the order of classes_."""
        found = self._uncertainty(X).probabilities
        # In float32 they add up to one to six digits only.
        return found[:, self._order] / found.sum(axis=1, keepdims=True)

    def predict_log_proba(self, X: Any) -> Floats:
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

    def _uncertainty(self, X: Any) -> ClassificationUncertainty[Floats]:
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
