"""Calibration: whether stated confidence, of classes or of intervals, is how often one is right.

Bins are right-closed and of equal width on [0, 1]; zero belongs to the first. A bin is
represented by the mean confidence of its records, not by its midpoint, and empty bins do not
count. Then ``|accuracy - mean confidence| <= ECE <= MCE`` up to rounding.

All of these are biased upwards when bins hold few records: compare models on the same records,
and read a small value as "no miscalibration found", with an interval beside it.

scikit-learn has a calibration curve of two classes only, and torchmetrics needs PyTorch.

An interval of the draws of a mean is *credible*: it says where the mean is. One that has the
observation noise in it is *predictive*: it says where the next target is, and only that can be
checked against targets.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, Ints, classified, numbers

__all__ = [
    "Band",
    "ReliabilityTable",
    "ace",
    "ece",
    "gaussian_interval",
    "interval_coverage",
    "interval_score",
    "mce",
    "mixture_interval",
    "quantile_interval",
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


_NUM_HALVINGS = 60


class Band(NamedTuple):
    """The ends of one interval for each input."""

    low: Floats
    high: Floats


def quantile_interval(draws: ArrayLike, *, level: float) -> Band:
    """Returns the equal-tailed interval of draws.

    Draws of a mean give a credible interval, draws of a target a predictive one.

    Args:
      draws: of shape ``(num_draws, num_inputs)``, or with further axes.
      level: the probability inside.

    Example:
      >>> quantile_interval(np.arange(101.0)[:, None], level=0.9)
      Band(low=array([5.]), high=array([95.]))
    """
    _check.fraction(one=False, level=level)
    values = numbers("draws", draws)
    if values.ndim < 2:
        raise InvalidArgumentError(
            f"draws must have shape (num_draws, num_inputs); got {values.shape}."
        )
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return Band(low, high)


def gaussian_interval(mean: ArrayLike, variance: ArrayLike, *, level: float) -> Band:
    """Returns the interval of a normal distribution with these moments.

    Args:
      mean: of each input.
      variance: the epistemic one for a credible, the total one for a predictive interval.
      level: the probability inside.

    Example:
      >>> gaussian_interval([0.0], [4.0], level=0.95).high.round(2)
      array([3.92])
    """
    _check.fraction(one=False, level=level)
    centre, spread = _moments(mean, variance)
    half = ndtri((1 + level) / 2) * np.sqrt(spread)
    return Band(centre - half, centre + half)


def mixture_interval(mean: ArrayLike, variance: ArrayLike, *, level: float) -> Band:
    """Returns the equal-tailed interval of the mixture of all draws' normal distributions.

    That is the posterior predictive itself, where ``gaussian_interval`` of its moments is an
    approximation.

    Args:
      mean: of each draw and input, ``(num_draws, num_inputs)``.
      variance: of the target given the draw, positive, of the same shape.
      level: the probability inside.

    Example:
      Two draws that agree on nothing; a Gaussian of their moments would be wider:

      >>> mixture_interval([[-10.0], [10.0]], [[1.0], [1.0]], level=0.9).high.round(2)
      array([11.28])
    """
    _check.fraction(one=False, level=level)
    centres, spreads = _moments(mean, variance)
    if centres.ndim < 2 or spreads.min() <= 0:
        raise InvalidArgumentError(
            "mean and variance must have shape (num_draws, num_inputs), variance positive; got "
            f"shape {centres.shape}, least variance {spreads.min():.6g}. Add the observation noise."
        )
    std = np.sqrt(spreads)

    def quantile(share: float) -> Floats:
        ends = centres + ndtri(share) * std
        # The quantile of a mixture lies between those of its parts.
        low, high = ends.min(axis=0), ends.max(axis=0)
        for _ in range(_NUM_HALVINGS):
            middle = (low + high) / 2
            below = ndtr((middle - centres) / std).mean(axis=0) < share
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    return Band(quantile((1 - level) / 2), quantile((1 + level) / 2))


def interval_coverage(low: ArrayLike, high: ArrayLike, targets: ArrayLike) -> float:
    """Returns the share of targets inside their interval, ends included.

    ``wilson_interval`` says how far that may be from the true coverage.

    Example:
      >>> interval_coverage([0.0, 0.0], [1.0, 1.0], [0.5, 2.0])
      0.5
    """
    lows, highs, observed = _ordered(low, high, targets)
    return float(np.mean((lows <= observed) & (observed <= highs)))


def interval_score(low: ArrayLike, high: ArrayLike, targets: ArrayLike, *, level: float) -> float:
    """Returns the mean width plus a fine for targets outside; smaller is better.

    It is proper: the true quantiles at ``(1 - level) / 2`` on either side have the least
    expected score, so it cannot be improved by intervals that are too wide or too narrow.

    Example:
      >>> round(interval_score([0.0, 0.0], [1.0, 1.0], [0.5, 1.5], level=0.9), 3)
      6.0

    Reference:
      Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation, 2007,
      equation 43.
    """
    _check.fraction(one=False, level=level)
    lows, highs, observed = _ordered(low, high, targets)
    outside = np.maximum(lows - observed, 0) + np.maximum(observed - highs, 0)
    return float(np.mean(highs - lows + 2 / (1 - level) * outside))


def _moments(mean: ArrayLike, variance: ArrayLike) -> tuple[Floats, Floats]:
    centre, spread = numbers("mean", mean), numbers("variance", variance)
    if centre.shape != spread.shape or spread.min() < 0:
        raise InvalidArgumentError(
            "variance must have the shape of mean and not be negative; got shapes "
            f"{centre.shape} and {spread.shape}, least variance {spread.min():.6g}."
        )
    return centre, spread


def _ordered(low: ArrayLike, high: ArrayLike, targets: ArrayLike) -> tuple[Floats, Floats, Floats]:
    # Conformal intervals may be infinite, targets may not.
    lows, highs = np.asarray(low, np.float64), np.asarray(high, np.float64)
    observed = numbers("targets", targets)
    if not lows.shape == highs.shape == observed.shape:
        # (n,) against (n, 1) would broadcast to a plausible, wrong number.
        raise InvalidArgumentError(
            "low, high and targets must have one shape; got "
            f"{lows.shape}, {highs.shape} and {observed.shape}."
        )
    if not (lows <= highs).all():
        raise InvalidArgumentError("low must not be above high, and neither NaN; some are.")
    return lows, highs, observed
