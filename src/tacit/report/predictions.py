"""Predictions as a table for people: what is predicted, and how sure that is."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.data import NumericTarget, Target
from tacit.metrics import ClassificationUncertainty, RegressionUncertainty, gaussian_interval

__all__ = ["prediction_table"]

Floats = NDArray[np.float64]


def prediction_table(
    found: ClassificationUncertainty[Floats] | RegressionUncertainty[Floats],
    target: Target | NumericTarget,
    *,
    level: float = 0.9,
) -> pd.DataFrame:
    """Returns one row for each input.

    For classes: the most probable one, its probability as ``confidence``, the probability of each,
    and the entropy in nats, ``aleatoric`` (noise that more records would not remove) and
    ``epistemic`` (what the posterior does not know). For numbers: mean, standard deviation, the
    interval that holds the truth with probability ``level`` if the model is right, and the standard
    deviations of both kinds.

    Args:
      found: what a posterior predicts.
      target: names the classes.
      level: of intervals.

    Example:
      >>> from tacit.metrics import classification_uncertainty
      >>> draws = [[[0.9, 0.1]], [[0.7, 0.3]]]
      >>> table = prediction_table(
      ...     classification_uncertainty(draws), Target(name="ill", classes=("no", "yes"))
      ... )
      >>> table.round(2).to_dict("records")[0]
      {'prediction': 'no', 'confidence': 0.8, 'probability(no)': 0.8, 'probability(yes)': 0.2, ...}
    """
    _check.fraction(one=False, level=level)
    if isinstance(found, RegressionUncertainty):
        low, high = gaussian_interval(found.mean, found.total_variance, level=level)
        return pd.DataFrame(
            {
                "prediction": found.mean,
                "std": np.sqrt(found.total_variance),
                "low": low,
                "high": high,
                "aleatoric": np.sqrt(found.aleatoric_variance),
                "epistemic": np.sqrt(found.epistemic_variance),
            }
        )
    assert isinstance(target, Target)
    classes = np.asarray(target.classes, object)
    columns = {f"probability({name})": found.probabilities[:, i] for i, name in enumerate(classes)}
    return pd.DataFrame(
        {
            "prediction": classes[found.probabilities.argmax(axis=1)],
            "confidence": found.probabilities.max(axis=1),
            **columns,
            "aleatoric": found.aleatoric_entropy,
            "epistemic": found.mutual_information,
        }
    )
