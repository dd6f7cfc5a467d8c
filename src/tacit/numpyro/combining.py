"""One answer from several synthetic tables, as uncertain as it ought to be."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = ["Combined", "combined"]


class Combined(NamedTuple):
    """An estimate from several synthetic tables.

    Attributes:
      estimate: the mean over tables.
      variance: of the estimate, with what privacy noise, sampling and few tables add to it.
      degrees_of_freedom: of the t distribution to use with it.
    """

    estimate: float
    variance: float
    degrees_of_freedom: float

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Returns the interval that holds the truth with probability ``level``."""
        _check.fraction(level=level, one=False)
        reach = float(stats.t.ppf((1 + level) / 2, self.degrees_of_freedom))
        reach *= math.sqrt(self.variance)
        return self.estimate - reach, self.estimate + reach


def combined(estimates: ArrayLike, variances: ArrayLike) -> Combined:
    """Returns the combination of the same analysis of several synthetic tables.

    With between-table variance b, mean variance v and m tables, the variance is
    ``(1 + 1/m) b - v``: tables drawn from m draws of the posterior vary by its variance and by
    their own sampling, which v estimates. Where few tables make that difference smaller than the
    posterior's share could be, it falls back on ``(1 + 1/m) b``, which is too wide rather than too
    narrow. Larger tables make v small and the rule steady.

    Args:
      estimates: one estimate per table, at least two; the tables must come from different
        posterior draws, as those of ``synthetic_tables`` do.
      variances: the squared standard error of each, as for a real table.

    Example:
      >>> answer = combined([0.9, 1.0, 1.1], [0.001, 0.001, 0.001])
      >>> round(answer.estimate, 3), round(answer.variance, 4)
      (1.0, 0.0123)

    Reference:
      Raghunathan, Reiter and Rubin 2003, sections 2 and 3; for private draws Räisä et al. 2023.
    """
    estimate, variance = np.asarray(estimates, np.float64), np.asarray(variances, np.float64)
    if estimate.ndim != 1 or estimate.shape != variance.shape or len(estimate) < 2:
        raise InvalidArgumentError(
            "estimates and variances must hold one number per table, for at least two tables; got "
            f"the shapes {estimate.shape} and {variance.shape}."
        )
    num_tables = len(estimate)
    between = (1 + 1 / num_tables) * float(np.var(estimate, ddof=1))
    within = float(np.mean(variance))
    if between <= within:
        return Combined(float(np.mean(estimate)), between, num_tables - 1.0)
    degrees = (num_tables - 1) * (1 - within / between) ** 2
    return Combined(float(np.mean(estimate)), between - within, degrees)
