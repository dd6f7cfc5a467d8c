"""Intervals for real targets: from draws or from moments, and whether they hold what they say.

An interval of the draws of a mean is *credible*: it says where the mean is. One that has the
observation noise in it is *predictive*: it says where the next target is, and only that can be
checked against targets.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, numbers

__all__ = [
    "Band",
    "gaussian_interval",
    "interval_coverage",
    "interval_score",
    "mixture_interval",
    "quantile_interval",
]

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
