"""How much of a real table a synthetic one keeps: models trained on it, and its marginals."""

from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats
from sklearn.base import clone
from sklearn.dummy import DummyClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from tacit.data import Categorical, Column, Numeric, Schema, Target
from tacit.data.schema import require_columns

__all__ = ["Classifier", "Scores", "Utility", "marginal_distances", "table_utility"]


class Classifier(Protocol):
    """A scikit-learn classifier with probabilities."""

    def fit(self, x: NDArray[Any], y: NDArray[Any]) -> Any:
        """Learns from features and class numbers."""

    def predict_proba(self, x: NDArray[Any]) -> NDArray[Any]:
        """Returns probabilities of the classes that were seen in ``fit``."""


class Scores(NamedTuple):
    """Of a classifier on the real test rows: the area under the ROC curve, and accuracy."""

    auc: float
    accuracy: float


class Utility(NamedTuple):
    """What a synthetic table is good for.

    Attributes:
      synthetic: of the classifier trained on the synthetic table.
      real: of the same classifier trained on real rows.
      marginals: the distance of each column to the real test rows, from 0 to 1.
    """

    synthetic: Scores
    real: Scores
    marginals: dict[str, float]


def table_utility(
    synthetic: pd.DataFrame,
    *,
    real: pd.DataFrame,
    test: pd.DataFrame,
    schema: Schema,
    classifier: Classifier | None = None,
) -> Utility:
    """Trains a classifier on synthetic and on real rows and tests both on real test rows.

    Guarantee:
      None. It reads ``real`` and ``test`` as they are, so both must be public or consented for
      this use; on private rows its results are releases that nobody has paid for.

    Args:
      synthetic: a table from ``synthetic_tables``.
      real: rows to train the competitor on.
      test: rows that neither has seen.
      schema: says what is a feature and what the target.
      classifier: any of scikit-learn with probabilities; by default logistic regression.

    Example:
      >>> from tacit.data import Numeric, Target
      >>> schema = Schema(
      ...     columns=(Numeric(name="dose", low=0, high=10),),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> table = pd.DataFrame({"dose": [1, 2, 8, 9], "ill": ["no", "no", "yes", "yes"]})
      >>> table_utility(table, real=table, test=table, schema=schema).synthetic
      Scores(auc=1.0, accuracy=1.0)
    """
    model = LogisticRegression(max_iter=1000) if classifier is None else classifier
    return Utility(
        synthetic=_scores(clone(model), synthetic, test, schema),
        real=_scores(clone(model), real, test, schema),
        marginals=marginal_distances(synthetic, test, schema),
    )


def marginal_distances(
    synthetic: pd.DataFrame, real: pd.DataFrame, schema: Schema
) -> dict[str, float]:
    """Returns how far each column is from the real one, from 0 (the same) to 1.

    For categories it is the total variation distance. For numbers it is the Wasserstein distance of
    their positions in the public range: how far, on average, values must move.

    Guarantee:
      None: ``real`` must be public or consented, as for ``table_utility``.
    """
    require_columns(synthetic, _names(schema))
    require_columns(real, _names(schema))
    return {
        part.name: _distance(part, synthetic[part.name], real[part.name])
        for part in (*schema.columns, schema.class_target)
    }


def _names(schema: Schema) -> list[str]:
    return [part.name for part in (*schema.columns, schema.class_target)]


def _distance(part: Column | Target, ours: "pd.Series[Any]", theirs: "pd.Series[Any]") -> float:
    match part:
        case Target(classes=classes):
            shares = [
                np.bincount(part.encode(v), minlength=len(classes)) / len(v) for v in (ours, theirs)
            ]
            return _total_variation(*shares)
        case Categorical():
            return _total_variation(
                part.encode(ours).mean(axis=0), part.encode(theirs).mean(axis=0)
            )
        case Numeric():
            # Without knots the features are a position in [-1, 1] and whether it is missing.
            plain = replace(part, knots=())
            (x, x_missing), (y, y_missing) = plain.encode(ours).T, plain.encode(theirs).T
            missing = abs(float(x_missing.mean() - y_missing.mean()))
            if x_missing.all() or y_missing.all():
                return missing
            moved = stats.wasserstein_distance(x[x_missing == 0], y[y_missing == 0]) / 2
            return max(missing, float(moved))


def _total_variation(p: NDArray[Any], q: NDArray[Any]) -> float:
    return float(np.abs(p - q).sum() / 2)


def _scores(classifier: Any, train: pd.DataFrame, test: pd.DataFrame, schema: Schema) -> Scores:
    """Returns scores; a class that never occurs in the training table has probability zero."""
    train_labels = schema.encode_target(train)
    if np.all(train_labels == train_labels[0]):  # a bad table, about which classifiers complain
        classifier = DummyClassifier()
    classifier.fit(schema.encode(train), train_labels)
    probabilities = np.zeros((len(test), len(schema.class_target.classes)))
    probabilities[:, classifier.classes_] = classifier.predict_proba(schema.encode(test))
    labels = schema.encode_target(test)
    is_binary = probabilities.shape[1] == 2
    return Scores(
        auc=float(
            roc_auc_score(
                labels, probabilities[:, 1] if is_binary else probabilities, multi_class="ovr"
            )
        ),
        accuracy=float(np.mean(probabilities.argmax(axis=1) == labels)),
    )
