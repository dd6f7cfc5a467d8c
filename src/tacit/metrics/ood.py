"""Out of distribution: does uncertainty tell inputs of another kind from those of this one?

A score is larger for inputs that look more foreign. It is ranked as it is: no threshold is chosen
and nothing is rescaled, so that scores in any unit can be compared.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import rankdata

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import Floats, numbers
from tacit.metrics.uncertainty import ClassificationUncertainty

__all__ = ["OODScores", "fpr95", "fpr_at", "ood_auroc", "ood_scores"]


class OODScores(NamedTuple):
    """Three scores of each input, larger for more foreign ones.

    Attributes:
      max_probability: minus the probability of the most probable class.
      entropy: of the predictive, in nats.
      mutual_information: between the label and the parameters: what the draws disagree on.
    """

    max_probability: Floats
    entropy: Floats
    mutual_information: Floats


def ood_scores(predictions: ClassificationUncertainty[Any]) -> OODScores:
    """Returns the scores of what ``predict`` or ``classification_uncertainty`` returned.

    Example:
      >>> from tacit.metrics import classification_uncertainty
      >>> parts = classification_uncertainty([[[1.0, 0.0], [0.5, 0.5]], [[0.0, 1.0], [0.5, 0.5]]])
      >>> ood_scores(parts).mutual_information.round(2)
      array([0.69, 0.  ])
    """
    # Minus p rather than 1 - p, which would merge small differences near one into ties.
    return OODScores(
        max_probability=-numbers("probabilities", predictions.probabilities).max(axis=-1),
        entropy=numbers("total_entropy", predictions.total_entropy),
        mutual_information=numbers("mutual_information", predictions.mutual_information),
    )


def ood_auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Returns the chance that a foreign input has the larger score; ties count one half.

    Args:
      inside: scores of inputs like those trained on, ``(num_inside,)``.
      outside: scores of foreign inputs, ``(num_outside,)``.

    Example:
      >>> ood_auroc([0.1, 0.2, 0.3], [0.3, 0.4])
      0.9166666666666666
    """
    own, foreign = _scores("inside", inside), _scores("outside", outside)
    ranks = rankdata(np.concatenate([own, foreign]))[len(own) :]
    wins = ranks.sum() - len(foreign) * (len(foreign) + 1) / 2
    return float(wins / (len(own) * len(foreign)))


def fpr95(inside: ArrayLike, outside: ArrayLike) -> float:
    """Returns the share of foreign inputs that pass where 95 % of one's own inputs do.

    Example:
      >>> fpr95([0.1] * 19 + [0.9], [0.1, 0.5, 0.6, 0.7])
      0.25

    Reference:
      Liang, Li and Srikant, Enhancing the reliability of out-of-distribution image detection in
      neural networks, ICLR 2018, section 4.
    """
    return fpr_at(inside, outside, share=0.95)


def fpr_at(inside: ArrayLike, outside: ArrayLike, *, share: float) -> float:
    """Returns the share of foreign inputs accepted at the least threshold that accepts a share.

    Inputs whose scores tie with the threshold are accepted, own and foreign alike.

    Args:
      inside: scores of inputs like those trained on.
      outside: scores of foreign inputs.
      share: of one's own inputs that must be accepted at least.
    """
    _check.fraction(share=share)
    own, foreign = _scores("inside", inside), _scores("outside", outside)
    # A product such as .95 * 20 may come out a hair above the whole number that it is.
    needed = max(1, int(np.ceil(share * len(own) - 1e-9)))
    return float(np.mean(foreign <= np.sort(own)[needed - 1]))


def _scores(name: str, values: ArrayLike) -> Floats:
    scores = numbers(name, values)
    if scores.ndim != 1:
        raise InvalidArgumentError(
            f"{name} must be one score for each input; got shape {scores.shape}. Use ood_scores."
        )
    return scores
