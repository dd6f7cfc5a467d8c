"""Confidence: how far a measured number may be from what more records would show.

SciPy has Wilson's interval and Clopper and Pearson's for one proportion at a time and no empty
group, and its bootstrap interpolates between scores, so that an infinite one can become NaN.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtri
from scipy.stats import beta

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, classified

__all__ = [
    "Interval",
    "bootstrap",
    "calibration_interval",
    "clopper_pearson",
    "clopper_pearson_lower",
    "wilson_interval",
]


class Interval(NamedTuple):
    """A measured number between the ends of its confidence interval."""

    low: float
    estimate: float
    high: float


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


def clopper_pearson(successes: int, trials: int, *, level: float = 0.95) -> Interval:
    """Returns a share with its exact two-sided confidence interval.

    Guarantee:
      For independent trials the interval misses the probability at most ``1 - level`` of the time,
      whatever the probability and however few the trials.

    Example:
      >>> interval = clopper_pearson(8, 10)
      >>> round(interval.low, 3), interval.estimate, round(interval.high, 3)
      (0.444, 0.8, 0.975)

    Reference:
      Clopper and Pearson, The use of confidence or fiducial limits, Biometrika 1934.
    """
    _check.fraction(one=False, level=level)
    low = clopper_pearson_lower(successes, trials, level=(1 + level) / 2)
    high = 1 - clopper_pearson_lower(trials - successes, trials, level=(1 + level) / 2)
    return Interval(low, successes / trials, high)


def clopper_pearson_lower(successes: int, trials: int, *, level: float = 0.95) -> float:
    """Returns the exact one-sided lower confidence bound of a probability.

    Example:
      >>> round(clopper_pearson_lower(100, 100, level=0.999), 4)
      0.9333
    """
    _check.fraction(one=False, level=level)
    _check.positive_integer(trials=trials)
    if not 0 <= successes <= trials:
        raise InvalidArgumentError(
            f"successes must lie between 0 and trials; got {successes} of {trials}."
        )
    if successes == 0:
        return 0.0
    return float(beta.ppf(1 - level, successes, trials - successes + 1))


def bootstrap(
    metric: Callable[..., float],
    *arrays: ArrayLike,
    seed: int,
    num_resamples: int = 200,
    level: float = 0.95,
) -> Interval:
    """Returns a metric with its percentile interval over resampled records.

    It says how much the score depends on which records were measured, not how much it depends
    on the training run. Calibration errors are biased upwards and resampling adds to the bias, so
    for them this interval can miss the truth entirely: use `calibration_interval`.

    Args:
      metric: any function of the arrays, such as ``nll``, ``rmse`` or ``gaussian_nll``.
      *arrays: its arguments, each with one row for each record.
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
    _check_options(num_resamples, level)
    columns = [np.asarray(array) for array in arrays]
    if not columns or any(c.ndim == 0 for c in columns) or not len(columns[0]) > 0:
        raise _unequal(columns)
    if any(len(column) != len(columns[0]) for column in columns):
        raise _unequal(columns)
    rng = np.random.default_rng(seed)
    scores = [
        metric(*(column[rows] for column in columns))
        for rows in _resamples(rng, len(columns[0]), num_resamples)
    ]
    return Interval(
        _low(scores, (1 - level) / 2), float(metric(*columns)), _high(scores, (1 + level) / 2)
    )


def calibration_interval(
    metric: Callable[[NDArray[Any], NDArray[Any]], float],
    probabilities: ArrayLike,
    labels: ArrayLike,
    *,
    seed: int,
    num_resamples: int = 200,
    level: float = 0.95,
) -> Interval:
    """Returns a calibration error with an interval that allows for its upward bias.

    A binned calibration error is a norm of the bins' gaps: by the triangle inequality the measured
    one exceeds the true one by at most the norm of the sampling error. How large that is, is seen
    on labels that are drawn from the predictions themselves, which are calibrated by construction.
    So the low end is the estimate less what chance alone explains (zero, for a model that may well
    be calibrated); the high end is that of the percentile interval, which is too high if anything.
    The interval is conservative: it covers more often than ``level`` says.

    Args:
      metric: ``ece``, ``mce``, ``sce``, ``ace``, or another norm of gaps.
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.
      seed: fixes the resampling.
      num_resamples: how many times the records are drawn with replacement.
      level: how often such an interval covers the truth at least.

    Example:
      >>> import numpy as np
      >>> from tacit.metrics import ece
      >>> labels = np.random.default_rng(0).integers(2, size=200)
      >>> calibration_interval(ece, np.full((200, 2), 0.5), labels, seed=0).low
      0.0

    Reference:
      Bröcker and Smith, Increasing the reliability of reliability diagrams, 2007, for the labels
      drawn from predictions.
    """
    _check_options(num_resamples, level)
    predictive, classes = classified(probabilities, labels)
    rng = np.random.default_rng(seed)
    estimate = float(metric(predictive, classes))
    observed, by_chance = [], []
    for rows in _resamples(rng, len(classes), num_resamples):
        chosen = predictive[rows]
        observed.append(metric(chosen, classes[rows]))
        by_chance.append(metric(chosen, _drawn_labels(rng, chosen)))
    slack = _high(by_chance, (1 + level) / 2)
    high = max(_high(observed, (1 + level) / 2), estimate)
    return Interval(max(0.0, estimate - slack), estimate, high)


def _check_options(num_resamples: int, level: float) -> None:
    _check.positive_integer(num_resamples=num_resamples)
    _check.fraction(one=False, level=level)


def _resamples(
    rng: np.random.Generator, num_records: int, num_resamples: int
) -> Iterator[NDArray[np.int64]]:
    return (rng.integers(num_records, size=num_records) for _ in range(num_resamples))


def _drawn_labels(rng: np.random.Generator, predictive: NDArray[Any]) -> NDArray[np.int64]:
    passed = predictive.cumsum(axis=1) < rng.random((len(predictive), 1))
    return np.minimum(passed.sum(axis=1), predictive.shape[1] - 1)


# Order statistics, outwards: no interpolation, so an infinite score stays infinite, not NaN.


def _low(scores: list[float], share: float) -> float:
    return float(np.quantile(scores, share, method="lower"))


def _high(scores: list[float], share: float) -> float:
    return float(np.quantile(scores, share, method="higher"))


def _unequal(columns: list[NDArray[Any]]) -> InvalidArgumentError:
    shapes = " and ".join(str(column.shape) for column in columns) or "none"
    return InvalidArgumentError(
        f"arrays must have one row for each of the same records, at least one; got shapes {shapes}."
    )
