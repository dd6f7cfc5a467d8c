"""Sampling error: how far a measured number may be from what more records would show."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import Floats

__all__ = ["Interval", "bootstrap", "wilson_interval"]


class Interval(NamedTuple):
    """A measured number between the ends of its confidence interval."""

    low: float
    estimate: float
    high: float


def bootstrap(
    metric: Callable[[NDArray[Any], NDArray[Any]], float],
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    seed: int,
    num_resamples: int = 200,
    level: float = 0.95,
) -> Interval:
    """Returns a metric with its percentile interval over resampled records.

    It says how much the score depends on which records were measured, not how much it depends
    on the training run. Calibration errors are biased upwards and resampling adds to the bias,
    so their interval can lie above the estimate: that is a sign that it is mostly noise.

    Args:
      metric: any function of predictions and targets, such as ``nll`` or ``rmse``.
      predictions: its first argument, one row for each record.
      targets: its second argument, one row for each record.
      seed: fixes the resampling, so that the interval can be reproduced.
      num_resamples: how many times the records are drawn with replacement.
      level: how often such an interval should cover the truth.

    Example:
      >>> import numpy as np
      >>> from tacit.metrics import accuracy
      >>> right, wrong = [0.9, 0.1], [0.1, 0.9]
      >>> bootstrap(accuracy, [right] * 80 + [wrong] * 20, np.zeros(100, int), seed=0)
      Interval(low=0.72, estimate=0.8, high=0.89)

    Reference:
      Efron and Tibshirani, An introduction to the bootstrap, 1993, chapter 13.
    """
    _check.positive_integer(num_resamples=num_resamples)
    _check.fraction(one=False, level=level)
    first, second = np.asarray(predictions), np.asarray(targets)
    if first.ndim == 0 or second.ndim == 0 or not 0 < len(first) == len(second):
        raise InvalidArgumentError(
            "predictions and targets must have one row for each of the same records, at least one; "
            f"got shapes {first.shape} and {second.shape}."
        )
    estimate = float(metric(first, second))
    rng = np.random.default_rng(seed)
    rows = (rng.integers(len(first), size=len(first)) for _ in range(num_resamples))
    scores = [metric(first[row], second[row]) for row in rows]
    # Order statistics, outwards: no interpolation, so an infinite score stays infinite, not NaN.
    low = np.quantile(scores, (1 - level) / 2, method="lower")
    high = np.quantile(scores, (1 + level) / 2, method="higher")
    return Interval(float(low), estimate, float(high))


def wilson_interval(
    successes: ArrayLike, trials: ArrayLike, *, level: float = 0.95
) -> tuple[Floats, Floats]:
    """Returns the ends of Wilson's score interval for each proportion.

    Unlike the normal approximation it stays in [0, 1] and has a width at 0 and 1; without
    trials it is the whole of [0, 1].

    Example:
      >>> low, high = wilson_interval([8, 0], [10, 0])
      >>> low.round(3), high.round(3)
      (array([0.49, 0.  ]), array([0.943, 1.   ]))

    Reference:
      Wilson, Probable inference, the law of succession, and statistical inference, 1927.
    """
    _check.fraction(one=False, level=level)
    hits, total = np.asarray(successes, dtype=np.float64), np.asarray(trials, dtype=np.float64)
    if not ((hits >= 0) & (hits <= total)).all():
        raise InvalidArgumentError(
            f"successes must lie between 0 and trials; got {successes!r} of {trials!r}."
        )
    z_squared = ndtri((1 + level) / 2) ** 2
    centre = (hits + z_squared / 2) / (total + z_squared)
    variance = hits * (total - hits) / np.maximum(total, 1) + z_squared / 4
    half_width = np.sqrt(z_squared * variance) / (total + z_squared)
    return np.maximum(centre - half_width, 0.0), np.minimum(centre + half_width, 1.0)
