"""Calibration: whether a stated confidence is the frequency of being right.

Bins are right-closed and of equal width on [0, 1]; zero belongs to the first. A bin is
represented by the mean confidence of its records, not by its midpoint, and empty bins do not
count. Then ``|accuracy - mean confidence| <= ECE <= MCE`` up to rounding.

All of these are biased upwards when bins hold few records: compare models on the same records,
and read a small value as "no miscalibration found", with an interval beside it.

scikit-learn has a calibration curve of two classes only, and torchmetrics needs PyTorch.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from tacit import _check
from tacit.metrics.scores import Floats, Ints, classified

__all__ = [
    "ReliabilityTable",
    "ace",
    "ece",
    "mce",
    "reliability",
    "sce",
]


class ReliabilityTable(NamedTuple):
    """How often records of similar confidence were predicted right.

    Attributes:
      edges: the ends of the bins, of shape ``(num_bins + 1,)``.
      counts: how many records fell into each bin.
      confidence: mean confidence in each bin, NaN in an empty one.
      accuracy: fraction predicted right in each bin, NaN in an empty one.
    """

    edges: Floats
    counts: Ints
    confidence: Floats
    accuracy: Floats

    @property
    def gap(self) -> Floats:
        """Accuracy minus confidence in each bin: negative where overconfident."""
        return self.accuracy - self.confidence

    @property
    def ece(self) -> float:
        """The expected calibration error: the mean absolute gap over records."""
        filled = self.counts > 0
        return float(np.average(np.abs(self.gap[filled]), weights=self.counts[filled]))

    @property
    def mce(self) -> float:
        """The maximum calibration error: the largest absolute gap of a non-empty bin."""
        return float(np.nanmax(np.abs(self.gap)))


def reliability(
    probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15
) -> ReliabilityTable:
    """Returns the table behind a reliability diagram, for the most probable class.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.
      num_bins: how many equal bins divide [0, 1].

    Example:
      >>> table = reliability([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], num_bins=2)
      >>> table.counts
      array([0, 3])
      >>> table.accuracy.round(3)
      array([  nan, 0.667])
      >>> round(table.ece, 3)
      0.1

    Reference:
      Guo et al., On calibration of modern neural networks, ICML 2017, section 2.
    """
    _check.positive_integer(num_bins=num_bins)
    confidence, correct = _top(*classified(probabilities, labels))
    return _table(confidence, correct, num_bins)


def ece(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Returns the expected calibration error of the most probable class.

    Example:
      >>> round(ece([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]), 3)
      0.433

    Reference:
      Naeini et al., Obtaining well calibrated probabilities using Bayesian binning, AAAI 2015.
    """
    return reliability(probabilities, labels, num_bins=num_bins).ece


def mce(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Returns the maximum calibration error of the most probable class.

    One record alone in a bin can decide it: look at the counts before quoting it.

    Example:
      >>> round(mce([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]), 3)
      0.8
    """
    return reliability(probabilities, labels, num_bins=num_bins).mce


def sce(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Returns the static, or class-wise, calibration error.

    It is the mean over classes of the ECE of that class's probability, so it also sees the
    probabilities of the classes that were not predicted.

    Example:
      >>> round(sce([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1]), 3)
      0.433

    Reference:
      Nixon et al., Measuring calibration in deep learning, CVPR workshops 2019.
    """
    _check.positive_integer(num_bins=num_bins)
    predictive, classes = classified(probabilities, labels)
    return float(
        np.mean(
            [_table(column, classes == k, num_bins).ece for k, column in enumerate(predictive.T)]
        )
    )


def ace(probabilities: ArrayLike, labels: ArrayLike, *, num_bins: int = 15) -> float:
    """Returns the adaptive calibration error: as ``sce``, with bins of equal mass.

    The bins of a class hold equally many records. Records of equal probability share a bin, so
    that the order of records cannot matter; bins then weigh as much as they hold.

    Example:
      >>> round(ace([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1], num_bins=3), 3)
      0.433

    Reference:
      Nixon et al., Measuring calibration in deep learning, CVPR workshops 2019.
    """
    _check.positive_integer(num_bins=num_bins)
    predictive, classes = classified(probabilities, labels)
    errors = []
    for k, column in enumerate(predictive.T):
        middle = rankdata(column, method="average") - 0.5
        index = (middle * num_bins / len(column)).astype(np.int64)
        excess = np.bincount(index, weights=(classes == k) - column)
        errors.append(np.sum(np.abs(excess)) / len(column))
    return float(np.mean(errors))


def _top(predictive: Floats, classes: Ints) -> tuple[Floats, NDArray[np.bool_]]:
    return predictive.max(axis=1), predictive.argmax(axis=1) == classes


def _table(confidence: Floats, happened: NDArray[np.bool_], num_bins: int) -> ReliabilityTable:
    edges = np.linspace(0.0, 1.0, num_bins + 1)
    # Searching the inner edges from the left closes bins on the right and keeps 0 in the first.
    index = np.searchsorted(edges[1:-1], confidence, side="left")
    counts = np.bincount(index, minlength=num_bins)
    weight = np.where(counts > 0, counts, np.nan)
    return ReliabilityTable(
        edges=edges,
        counts=counts,
        confidence=np.bincount(index, weights=confidence, minlength=num_bins) / weight,
        accuracy=np.bincount(index, weights=happened, minlength=num_bins) / weight,
    )
