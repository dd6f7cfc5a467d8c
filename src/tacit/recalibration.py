"""Recalibration after a fit: free on public records, a charged release on private ones.

A score says how badly a target fits a prediction. A threshold that most scores of calibration
records stay below turns scores into sets: all targets whose score is below it. Whatever the
model, the set of a new record holds its target with the stated chance, provided that calibration
records and new ones are exchangeable; so calibration records must not be those trained on.

The mean negative log likelihood is convex in the inverse temperature, and its slope is a sum over
records; the best temperature is where the slope crosses zero.

Libraries such as MAPIE take quantiles of the scores as they are. Written as counts and sums, as
here, the same quantities can be released with noise.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import brentq
from scipy.special import ndtri, softmax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.calibration import Band
from tacit.metrics.scores import Floats, classified
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import Cost
from tacit.privacy.private_sums import Bisection
from tacit.typing import Array, Key, Scalar

__all__ = [
    "PrivateThreshold",
    "apply_temperature",
    "aps_scores",
    "conformal_interval",
    "lac_scores",
    "prediction_sets",
    "private_temperature",
    "private_threshold",
    "public_temperature",
    "public_threshold",
    "residual_scores",
    "scores_of_labels",
]


class PrivateThreshold(NamedTuple):
    """A threshold from private records.

    Attributes:
      threshold: for `prediction_sets` or `conformal_interval`; infinite where noise hid it.
      margin: how many records more than without noise must lie below it.
    """

    threshold: float
    margin: float


def lac_scores(probabilities: ArrayLike) -> Floats:
    """Returns ``1 - p`` of every class: sets of the least average size.

    Args:
      probabilities: of shape ``(num_records, num_classes)``.

    Reference:
      Sadinle, Lei and Wasserman, Least ambiguous set-valued classifiers with bounded error levels,
      2019.
    """
    return 1 - _rows(probabilities)


def aps_scores(probabilities: ArrayLike, *, seed: int) -> Floats:
    """Returns of every class the probability of all that are more probable, and some of its own.

    Sets are larger for hard records and smaller for easy ones. How much of a class's own
    probability counts is drawn for each record, without which sets would cover too often.

    Args:
      probabilities: of shape ``(num_records, num_classes)``.
      seed: of these draws; take another one for new records than for calibration.

    Reference:
      Romano, Sesia and Candès, Classification with valid and adaptive coverage, 2020.
    """
    rows = _rows(probabilities)
    order = np.argsort(-rows, axis=1, kind="stable")
    ordered = np.take_along_axis(rows, order, axis=1)
    part = np.random.default_rng(seed).random((len(rows), 1))
    scores = np.empty_like(rows)
    np.put_along_axis(scores, order, ordered.cumsum(axis=1) - (1 - part) * ordered, axis=1)
    return scores


def scores_of_labels(scores: Floats, labels: ArrayLike) -> Floats:
    """Returns the score of each record's own label: what a threshold is made from."""
    return np.take_along_axis(scores, np.asarray(labels)[:, None], axis=1)[:, 0]


def residual_scores(mean: ArrayLike, std: ArrayLike, targets: ArrayLike) -> Floats:
    """Returns ``|target - mean| / std``, for intervals as wide as the model is uncertain."""
    residual = np.asarray(targets, np.float64) - np.asarray(mean, np.float64)
    return np.abs(residual) / np.asarray(std, np.float64)


def prediction_sets(scores: Floats, threshold: float) -> NDArray[np.bool_]:
    """Returns of every record and class whether the class is in the set.

    Example:
      >>> prediction_sets(lac_scores([[0.7, 0.2, 0.1], [0.4, 0.4, 0.2]]), 0.65)
      array([[ True, False, False],
             [ True,  True, False]])
    """
    return scores <= threshold


def conformal_interval(mean: ArrayLike, std: ArrayLike, threshold: float) -> Band:
    """Returns all targets whose `residual_scores` are at most the threshold.

    Example:
      >>> conformal_interval([1.0], [2.0], 1.5)
      Band(low=array([-2.]), high=array([4.]))
    """
    centre, half = np.asarray(mean, np.float64), threshold * np.asarray(std, np.float64)
    return Band(centre - half, centre + half)


def public_threshold(scores: ArrayLike, *, miscoverage: float) -> float:
    """Returns the threshold from PUBLIC, or separately consented, calibration records.

    Guarantee:
      None of privacy: the threshold is one of the scores. A new record's set holds its target
      with a chance of at least ``1 - miscoverage``, over calibration records and new one together.

    Args:
      scores: of the calibration records' own targets.
      miscoverage: how often a set may miss.

    Example:
      >>> public_threshold([0.1, 0.2, 0.3, 0.4], miscoverage=0.25)
      0.4
      >>> public_threshold([0.1, 0.2, 0.3], miscoverage=0.1)
      inf
    """
    _check.fraction(one=False, miscoverage=miscoverage)
    values = np.sort(np.asarray(scores, np.float64))
    if values.ndim != 1 or not values.size or np.isnan(values).any():
        raise InvalidArgumentError(
            f"scores must be one number for each record; got shape {values.shape}, or NaN."
        )
    rank = _rank(len(values), miscoverage)
    return float(values[rank - 1]) if rank <= len(values) else math.inf


def private_threshold(
    scores: Array | NDArray[Any],
    *,
    miscoverage: float,
    noise_multiplier: float,
    budget: Budget,
    failure: float = 0.005,
    lowest: float = 0.0,
    highest: float = 1.0,
    num_queries: int = 8,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> tuple[PrivateThreshold, Cost]:
    """Returns a threshold from PRIVATE calibration records, for a price.

    A bisection counts, with noise, the scores below a threshold. It asks for as many more
    than without noise as noise could have feigned.

    Guarantee:
      Privacy: ``num_queries`` full-batch releases, as private together as one with
      ``noise_multiplier``; refused before a record is read if the budget does not allow it. It
      needs one score for each unit of privacy, computed from that unit and released values alone.

      Coverage: at least ``1 - miscoverage``, as without noise. Unless noise of some query exceeds
      the margin (chance at most ``failure``, whatever the records), the threshold is at least the
      k-th smallest score with ``k = ceil((n + 1)(1 - a))``. Noise is independent of records, so
      coverage is at least ``(1 - a)(1 - failure)``, and ``a`` is chosen to make that
      ``1 - miscoverage``. The price is larger sets: about ``margin / n`` more coverage than asked.

    Args:
      scores: of the calibration records' own targets, one for each unit of privacy; NaN counts
        as larger than any threshold.
      miscoverage: how often a set may miss.
      noise_multiplier: of the whole search.
      budget: what may be spent. Where records were trained on as well, it must allow both.
      failure: the chance that the margin is too small; below ``miscoverage``.
      lowest: the smallest threshold looked at; public.
      highest: the largest but infinity; public. Scores of probabilities are at most one.
      num_queries: how finely the range is divided, into ``2**num_queries`` parts.
      seed: for tests only; replaces the fresh key, INSECURE.
      ledger: is charged before any record is read.
    """
    _check.fraction(one=False, miscoverage=miscoverage, failure=failure)
    _check.finite(lowest=lowest, highest=highest)
    if not lowest < highest:
        raise InvalidArgumentError(f"lowest must be below highest={highest}; got {lowest}.")
    if not failure < miscoverage:
        raise InvalidArgumentError(f"failure must be below {miscoverage=}; got {failure}.")
    shape = scores.shape
    if len(shape) != 1 or not shape[0]:
        raise InvalidArgumentError(f"scores must be one number for each record; got {shape}.")
    search = Bisection(num_queries=num_queries, noise_multiplier=noise_multiplier, clip_norm=1.0)
    rank = _rank(shape[0], 1 - (1 - miscoverage) / (1 - failure))
    if rank > shape[0]:
        raise InvalidArgumentError(
            f"scores must be of more records for {miscoverage=}; got {shape[0]}. Even without noise"
            " the threshold would be infinite."
        )
    # A thirty-second of the noise is for the engine's rounding.
    margin = search.noise_std * (float(ndtri(1 - failure / num_queries)) + 1 / 32)
    points = np.linspace(lowest, highest, search.num_points)

    key, cost = charged_key(
        search.cost(shape[0]),
        budget=budget,
        ledger=ledger,
        seed=seed,
        purpose="private conformal threshold",
    )
    # The first point that a score is not above: whole numbers, which float32 holds exactly.
    first = np.searchsorted(points, np.asarray(scores, np.float64))
    index = search.run(
        key,
        _is_below,
        jnp.asarray(first, jnp.float32),
        np.arange(search.num_points, dtype=np.float64),
        level=rank + margin,
    )
    found = float(points[index]) if index < len(points) else math.inf
    return PrivateThreshold(found, margin), cost


def _is_below(point: Scalar, first: Array, key: Key) -> Scalar:
    del key
    return jnp.where(first <= point, 1.0, 0.0)


def _rank(num_records: int, miscoverage: float) -> int:
    # A product such as 10 * .9 may come out a hair above the whole number that it is.
    return max(1, math.ceil((num_records + 1) * (1 - miscoverage) - 1e-9))


def _rows(probabilities: ArrayLike) -> Floats:
    rows = np.asarray(probabilities, np.float64)
    if rows.ndim != 2:
        raise InvalidArgumentError(
            f"probabilities must have shape (num_records, num_classes); got {rows.shape}."
        )
    return rows


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
