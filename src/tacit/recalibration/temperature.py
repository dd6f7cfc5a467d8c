"""Temperature scaling: one number that makes class probabilities less, or more, sure of themselves.

The mean negative log likelihood is convex in the inverse temperature, and its slope is a sum over
records; the best temperature is where the slope crosses zero.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import softmax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import classified
from tacit.privacy.bisection import Bisection
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import Cost
from tacit.typing import Array, Key, Scalar

__all__ = ["apply_temperature", "private_temperature", "public_temperature"]

Floats = NDArray[np.float64]

_SMALLEST = 1e-30
"""A probability of zero has no logarithm."""


def apply_temperature(probabilities: ArrayLike, temperature: float) -> Floats:
    """Returns ``p ** (1 / temperature)``, normalised; the most probable class stays the same.

    Example:
      >>> apply_temperature([[0.8, 0.2]], 2.0).round(3)
      array([[0.667, 0.333]])
    """
    _check.positive(temperature=temperature)
    scaled: Floats = softmax(_logs(probabilities) / temperature, axis=-1)
    return scaled


def public_temperature(
    probabilities: ArrayLike, labels: ArrayLike, *, lowest: float = 0.05, highest: float = 20.0
) -> float:
    """Returns the best temperature for PUBLIC, or separately consented, records.

    Guarantee:
      None of privacy: the temperature is a function of the records.

    Args:
      probabilities: of shape ``(num_records, num_classes)``; every row sums to one.
      labels: integers of shape ``(num_records,)``.
      lowest: the smallest that is returned.
      highest: the largest that is returned.

    Example:
      Right three times out of four, but sure to 96 %; at the best temperature it says 75 %:

      >>> rows = [[0.96, 0.04]] * 4
      >>> best = public_temperature(rows, [0, 0, 0, 1])
      >>> apply_temperature(rows, best)[0].round(4)
      array([0.75, 0.25])

    Reference:
      Guo et al., On calibration of modern neural networks, ICML 2017, section 4.2.
    """
    _check_range(lowest, highest)
    predictive, classes = classified(probabilities, labels)
    logs = _logs(predictive)
    own = logs[np.arange(len(classes)), classes]

    def slope(log_inverse: float) -> float:
        told = softmax(np.exp(log_inverse) * logs, axis=1)
        return float(np.mean(np.sum(told * logs, axis=1) - own))

    coldest, hottest = -np.log(lowest), -np.log(highest)
    if slope(coldest) <= 0:
        return lowest
    if slope(hottest) >= 0:
        return highest
    return float(np.exp(-brentq(slope, hottest, coldest, xtol=1e-10)))


def private_temperature(
    probabilities: Array | NDArray[Any],
    labels: Array | NDArray[Any],
    *,
    noise_multiplier: float,
    budget: Budget,
    clip_norm: float = 2.0,
    lowest: float = 0.05,
    highest: float = 20.0,
    num_queries: int = 8,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> tuple[float, Cost]:
    """Returns a temperature from PRIVATE records, for a price.

    A bisection asks, with noise, for the sign of the slope. Each record's slope grows with the
    inverse temperature, and so does what a clip leaves of it: the search has one answer.

    Guarantee:
      ``num_queries`` full-batch releases, as private together as one with ``noise_multiplier``;
      refused before a record is read if the budget does not allow it. It needs one row for each
      unit of privacy, computed from that unit and released values alone. Rows that are not finite
      count nothing.

    Args:
      probabilities: of shape ``(num_records, num_classes)``.
      labels: integers of shape ``(num_records,)``.
      noise_multiplier: of the whole search.
      budget: what may be spent. Where records were trained on as well, it must allow both.
      clip_norm: the most that one record adds to the slope, in nats. Where many reach it, the
        temperature is too low for the most surprising records.
      lowest: the smallest that is returned; public.
      highest: the largest that is returned; public.
      num_queries: how finely the range is divided, into ``2**num_queries`` equal ratios.
      seed: for tests only; replaces the fresh key, INSECURE.
      ledger: is charged before any record is read.
    """
    _check_range(lowest, highest)
    shapes = probabilities.shape, labels.shape
    if len(shapes[0]) != 2 or shapes[1] != shapes[0][:1]:
        raise InvalidArgumentError(
            "probabilities and labels must have shapes (num_records, num_classes) and"
            f" (num_records,); got {shapes[0]} and {shapes[1]}."
        )
    search = Bisection(
        num_queries=num_queries, noise_multiplier=noise_multiplier, clip_norm=clip_norm
    )
    inverses = np.geomspace(1 / highest, 1 / lowest, search.num_points)

    key, cost = charged_key(
        search.cost(shapes[0][0]),
        budget=budget,
        ledger=ledger,
        seed=seed,
        purpose="private temperature",
    )
    records = jnp.asarray(probabilities, jnp.float32), jnp.asarray(labels, jnp.int32)
    index = search.run(key, _slope, records, inverses, level=0.0)
    found = inverses[min(index, search.num_points - 1)]
    return float(1 / found), cost


def _slope(inverse: Scalar, record: tuple[Array, Array], key: Key) -> Scalar:
    """The derivative of one record's negative log likelihood by the inverse temperature."""
    del key
    row, label = record
    logs = jnp.log(jnp.maximum(row, _SMALLEST))
    return jnp.sum(jax.nn.softmax(inverse * logs) * logs) - logs[label]


def _check_range(lowest: float, highest: float) -> None:
    _check.positive(lowest=lowest, highest=highest)
    if not lowest < highest:
        raise InvalidArgumentError(f"lowest must be below highest={highest}; got {lowest}.")


def _logs(probabilities: ArrayLike) -> Floats:
    return np.log(np.maximum(np.asarray(probabilities, np.float64), _SMALLEST))
