"""Selective prediction: how the risk falls when the least certain records are left to a person."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import Floats, numbers

__all__ = ["RiskCoverage", "accuracy_at_coverage", "aurc", "excess_aurc", "risk_coverage"]


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
