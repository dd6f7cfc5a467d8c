"""Sampling error: how far a measured number may be from what more records would show."""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import Floats

__all__ = ["Interval", "wilson_interval"]


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
