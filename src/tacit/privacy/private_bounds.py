"""Private bounds: where most values of each column lie, from two noisy histograms."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.calibration import smallest_noise
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import Cost, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Array, Key

__all__ = ["BoundsSearch", "PrivateBounds", "bounds_noise", "private_bounds"]

Floats = NDArray[np.float64]

_SMALLEST, _LARGEST = -20, 40
"""Powers of two between which magnitudes are told apart; about 1e-6 to 1e12. Public."""

_EDGES = np.concatenate(
    [-(2.0 ** np.arange(_LARGEST, _SMALLEST - 1, -1)), 2.0 ** np.arange(_SMALLEST, _LARGEST + 1)]
)
_NUM_BINS = len(_EDGES) + 1
_NUM_PARTS = 32
_COVERED, _CONFIDENT = 0.8, 2.0
_SIGNIFICANT, _TRIMMED = 3.0, 0.025
_ENTRIES_IN_MEMORY = 2**22


class PrivateBounds(NamedTuple):
    """Bounds of each column.

    Attributes:
      low: the lower ends, one for each column.
      high: the upper ends.
    """

    low: Floats
    high: Floats


@dataclass(frozen=True, kw_only=True)
class BoundsSearch:
    """What `private_bounds` will release, and its cost: known before a value is read.

    Args:
      num_records: units of privacy.
      num_columns: whose bounds are wanted.
      noise_multiplier: of both releases together, from `bounds_noise`.

    Example:
      >>> search = BoundsSearch(num_records=100, num_columns=3, noise_multiplier=5.0)
      >>> search.cost
      SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=7.07...), count=2)
    """

    num_records: int
    num_columns: int
    noise_multiplier: float

    def __post_init__(self) -> None:
        _check.positive_integer(num_records=self.num_records, num_columns=self.num_columns)
        _check.non_negative(noise_multiplier=self.noise_multiplier)

    @property
    def release(self) -> GaussianSum:
        """Each of the two releases."""
        return GaussianSum(
            sampling=FullBatch(num_records=self.num_records),
            clip_norm=math.sqrt(self.num_columns),
            noise_multiplier=math.sqrt(2) * self.noise_multiplier,
            chunk_size=max(1, _ENTRIES_IN_MEMORY // (_NUM_BINS * self.num_columns)),
        )

    @property
    def cost(self) -> DpEvent:
        """Of both."""
        return repeated(self.release.cost, 2)


def bounds_noise(budget: Budget, *, share: float) -> float:
    """Returns the noise multiplier with which bounds take about this share of a budget.

    A share of ``s`` leaves the rest of a fit with ``1 / sqrt(1 - s)`` times the noise.

    Example:
      >>> f"{bounds_noise(Budget(epsilon=1.0, delta=1e-5), share=0.1):.1f}"
      '11.8'
    """
    _check.fraction(share=share)

    def cost_of(noise: float) -> DpEvent:
        return BoundsSearch(num_records=1, num_columns=1, noise_multiplier=noise).cost

    return smallest_noise(cost_of, budget) / math.sqrt(share)


def private_bounds(
    values: NDArray[Any],
    *,
    budget: Budget,
    noise_multiplier: float,
    mask: NDArray[np.bool_] | None = None,
    seed: int | None = None,
    ledger: Ledger | None = None,
) -> tuple[PrivateBounds, Cost]:
    """Returns bounds between which most of each column's values lie, and what they cost.

    A first histogram finds the powers of two between which they lie, a second the part of that
    range which they fill. Ranges known from a code book are better: they cost
    nothing and do not vary. With few records and many columns noise hides where values lie.

    Guarantee:
      Two full-batch Gaussian releases, as private together as one with ``noise_multiplier``,
      whatever the number of columns (noise grows with its square root). A unit adds at most one to
      the histogram of a column. Refused before a value is read if the budget or the ledger
      does not allow it. The cost is returned and must be counted.

    Args:
      values: of shape ``(num_records, num_columns)``, or ``(num_units, max_rows, num_columns)``
        with a mask. NaN is a missing value and counts nowhere.
      budget: what may be spent, here and by the fit together.
      noise_multiplier: of both releases together, from `bounds_noise`; zero is not private.
      mask: of shape ``(num_units, max_rows)``, tells rows from padding.
      seed: for tests only; replaces the fresh key, INSECURE.
      ledger: is charged before any value is read.

    Example:
      >>> ages = np.random.default_rng(0).uniform(20, 60, size=(5000, 1))
      >>> found, cost = private_bounds(
      ...     ages, budget=Budget(epsilon=1.0, delta=1e-6), noise_multiplier=10.0, seed=0
      ... )
      >>> found.low.tolist(), found.high.tolist()
      ([20.5], [59.5])
    """
    if values.ndim != (2 if mask is None else 3) or 0 in values.shape:
        raise InvalidArgumentError(
            "values must have one row for each record and at least one column; got shape"
            f" {values.shape}."
        )
    num_records = values.shape[0]
    search = BoundsSearch(
        num_records=num_records,
        num_columns=values.shape[-1],
        noise_multiplier=noise_multiplier,
    )
    release = search.release
    key, cost = charged_key(
        search.cost, budget=budget, ledger=ledger, seed=seed, purpose="private bounds"
    )
    first, second = jax.random.split(key)
    rows = np.ones(values.shape[:1], np.bool_) if mask is None else np.asarray(mask)

    columns = np.asarray(values, np.float64)
    magnitudes = np.searchsorted(_EDGES, columns, side="right")
    counts = _histograms(first, release, magnitudes, columns, rows, num_bins=_NUM_BINS)
    spans = np.array([_occupied(count, release.noise_std) for count in counts])
    # The outermost bins are open; their inner edges stand for them.
    ends = np.concatenate([_EDGES[:1], _EDGES, _EDGES[-1:]])
    low, high = ends[np.minimum(spans[:, 0], len(ends) - 3)], ends[np.maximum(spans[:, 1], 2)]

    parts = np.floor((columns - low) / (high - low) * _NUM_PARTS)
    inside = np.where((parts >= 0) & (parts < _NUM_PARTS), parts, -1).astype(np.int64)
    counts = _histograms(second, release, inside, columns, rows, num_bins=_NUM_PARTS)
    filled = [_filled_parts(count, release.noise_std, num_records) for count in counts]
    starts, stops = np.transpose(filled)
    width = (high - low) / _NUM_PARTS
    return PrivateBounds(low + starts * width, low + stops * width), cost


def _histograms(
    key: Key,
    release: GaussianSum,
    bins: NDArray[np.int64],
    values: Floats,
    rows: NDArray[np.bool_],
    *,
    num_bins: int,
) -> Floats:
    """Returns a noisy histogram for each column: how many units have values in each bin.

    A unit with several rows adds the mean of what its rows say.
    """
    bins = np.where(np.isnan(values), -1, bins)  # a number that no bin has
    weights = rows / np.maximum(rows.sum(axis=-1, keepdims=True), 1) if rows.ndim == 2 else rows
    data = (jnp.asarray(bins, jnp.int32), jnp.asarray(weights, jnp.float32))

    def of_one(record: tuple[Array, Array], key: Key) -> Array:
        del key
        own, weight = record
        return jnp.tensordot(weight, jax.nn.one_hot(own, num_bins), axes=weight.ndim)

    return np.asarray(jax.jit(lambda key, data: release(key, of_one, data))(key, data), np.float64)


def _occupied(counts: Floats, std: float) -> tuple[int, int]:
    """Returns the first and the last bin, exclusive, between which most values seem to lie.

    Bins that noise alone could have filled are left out, then the outermost few percent.
    """
    significant = np.where(counts > _SIGNIFICANT * std, counts, 0.0)
    if not significant.any():
        significant = np.where(counts == counts.max(), 1.0, 0.0)
    sums, total = np.cumsum(significant), significant.sum()
    start = int(np.argmax(sums > _TRIMMED * total))
    stop = int(np.argmax(sums >= (1 - _TRIMMED) * total)) + 1
    # Beside bins that are certainly filled, less evidence will do.
    while start > 0 and significant[start - 1] == 0 < std < counts[start - 1]:
        start -= 1
    while stop < len(counts) and significant[stop] == 0 < std < counts[stop]:
        stop += 1
    return start, stop


def _filled_parts(counts: Floats, std: float, num_records: int) -> tuple[int, int]:
    """Returns the same for parts of a range, or all of it unless most values surely lie there."""
    start, stop = _occupied(counts, std)
    surely = counts[start:stop].sum() - _CONFIDENT * std * math.sqrt(stop - start)
    return (start, stop) if surely >= _COVERED * num_records else (0, _NUM_PARTS)
