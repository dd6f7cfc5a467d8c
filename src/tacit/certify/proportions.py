"""Proportions: how far a share of independent trials may be from its probability, exactly."""

from scipy.stats import beta

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics import Interval

__all__ = ["clopper_pearson", "clopper_pearson_lower"]


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
