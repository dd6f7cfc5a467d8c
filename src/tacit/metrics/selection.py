"""Selection: whether uncertainty tells bad predictions, and inputs of another kind, from others.

A score is larger for inputs that look more foreign. It is ranked as it is: no threshold is chosen
and nothing is rescaled, so that scores in any unit can be compared.

scikit-learn computes the ROC curve's area; it has no risk-coverage curve.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, numbers
from tacit.metrics.uncertainty import ClassificationUncertainty

__all__ = [
    "OODScores",
    "RiskCoverage",
    "accuracy_at_coverage",
    "aurc",
    "excess_aurc",
    "fpr95",
    "fpr_at",
    "ood_auroc",
    "ood_scores",
    "risk_coverage",
]


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
      >>> round(ood_auroc([0.1, 0.2, 0.3], [0.3, 0.4]), 3)
      0.917
    """
    from sklearn.metrics import roc_auc_score  # noqa: PLC0415 (slow to import)

    own, foreign = _scores("inside", inside), _scores("outside", outside)
    is_foreign = np.repeat([False, True], [len(own), len(foreign)])
    return float(roc_auc_score(is_foreign, np.concatenate([own, foreign])))


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


class RiskCoverage(NamedTuple):
    """The mean loss of the most certain records, for every number of them.

    Attributes:
      coverage: the share that is predicted, ``1/n, 2/n, ..., 1``.
      risk: their mean loss.
    """

    coverage: Floats
    risk: Floats


def risk_coverage(uncertainty: ArrayLike, losses: ArrayLike) -> RiskCoverage:
    """Returns the risk-coverage curve.

    Records of equal uncertainty come in random order, and the curve is the mean over all such
    orders: the order in which records are given never matters.

    Args:
      uncertainty: of each record, in any unit; the smallest is predicted first.
      losses: of each record: 0 or 1 for a right or wrong class, or any other loss.

    Example:
      >>> risk_coverage([0.1, 0.2, 0.9, 0.9], [0.0, 0.0, 1.0, 0.0]).risk.round(3)
      array([0.   , 0.   , 0.167, 0.25 ])

    Reference:
      El-Yaniv and Wiener, On the foundations of noise-free selective classification, 2010.
    """
    doubts, costs = numbers("uncertainty", uncertainty), numbers("losses", losses)
    if doubts.ndim != 1 or doubts.shape != costs.shape:
        raise InvalidArgumentError(
            "uncertainty and losses must both have shape (num_records,); got "
            f"{doubts.shape} and {costs.shape}."
        )
    _, group = np.unique(doubts, return_inverse=True)
    mean = np.bincount(group, weights=costs) / np.bincount(group)
    number = np.arange(1, len(costs) + 1)
    return RiskCoverage(number / len(costs), np.cumsum(mean[np.sort(group)]) / number)


def aurc(uncertainty: ArrayLike, losses: ArrayLike) -> float:
    """Returns the area under the risk-coverage curve: the mean risk over all coverages.

    Example:
      >>> aurc([0.1, 0.2], [0.0, 1.0])
      0.25
    """
    return float(risk_coverage(uncertainty, losses).risk.mean())


def excess_aurc(uncertainty: ArrayLike, losses: ArrayLike) -> float:
    """Returns how far the area is above that of the best order, which is by the losses themselves.

    Zero means that no order does better; unlike `aurc` it does not mix in how accurate the
    predictions are.

    Example:
      >>> excess_aurc([0.1, 0.2], [0.0, 1.0]), excess_aurc([0.2, 0.1], [0.0, 1.0])
      (0.0, 0.5)

    Reference:
      Geifman, Uziel and El-Yaniv, Bias-reduced uncertainty estimation for deep neural
      classifiers, ICLR 2019.
    """
    return aurc(uncertainty, losses) - aurc(losses, losses)


def accuracy_at_coverage(uncertainty: ArrayLike, correct: ArrayLike, *, coverage: float) -> float:
    """Returns the accuracy on the most certain share of the records, at least one of them.

    Args:
      uncertainty: of each record.
      correct: of each record, whether its prediction is right.
      coverage: the share that is predicted, rounded up to whole records.

    Example:
      >>> accuracy_at_coverage([0.1, 0.2, 0.9, 0.8], [True, True, False, True], coverage=0.75)
      1.0
    """
    _check.fraction(coverage=coverage)
    right = numbers("correct", correct)
    if not np.isin(right, (0, 1)).all():
        raise InvalidArgumentError("correct must be true or false for each record.")
    curve = risk_coverage(uncertainty, 1 - right)
    at = max(1, int(np.ceil(coverage * len(right) - 1e-9)))
    return float(1 - curve.risk[at - 1])
