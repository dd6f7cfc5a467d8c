"""Sums and searches over private records beside a fit: paid for first, then a few noisy sums."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import noise_within
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import Cost, repeated
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Key, Scalar, Tree

__all__ = ["Bisection", "NoisySums", "mean_interval", "noisy_sums"]


@dataclass(frozen=True, kw_only=True)
class NoisySums:
    """What was released about some records.

    Attributes:
      sums: over all units.
      release: the engine that made them.
    """

    sums: NDArray[np.float64]
    release: GaussianSum

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each sum."""
        return self.release.noise_std

    @property
    def num_units(self) -> int:
        """How many units there are; public."""
        return self.release.sampling.num_records


def noisy_sums(
    vectors: NDArray[np.float64],
    *,
    max_norm: float,
    budget: Budget,
    purpose: str,
    groups: NDArray[np.int64] | None = None,
    ledger: DataSetLedger | None = None,
    seed: int | None = None,
) -> tuple[NoisySums, Cost]:
    """Returns the noisy sum of one vector for each unit of privacy, and what it cost.

    Guarantee:
      One full-batch Gaussian release within the budget, and charged to the ledger before it is
      made. ``max_norm`` bounds a unit whatever its rows hold: the engine clips.

    Args:
      vectors: one row for each record, computed from that record and public values alone.
      max_norm: the largest Euclidean norm of a row.
      budget: what may be spent; a finite one.
      purpose: what the ledger calls it.
      groups: numbers from zero that say whose each row is; a unit counts with the mean of its rows.
      ledger: is charged.
      seed: for tests only; INSECURE.

    Example:
      >>> found, cost = noisy_sums(
      ...     np.ones((1000, 1)), max_norm=1.0, budget=Budget(1.0, 1e-6), purpose="a count", seed=0
      ... )
      >>> bool(abs(found.sums[0] - 1000) < 5 * found.noise_std)
      True
    """
    _check.positive(max_norm=max_norm)
    rows = np.asarray(vectors, np.float64)
    if groups is not None:
        counts = np.bincount(groups)
        rows = np.stack([np.bincount(groups, weights=column) for column in rows.T], axis=1)
        rows /= counts[:, None]
    num_units = len(rows)
    release = GaussianSum(
        sampling=FullBatch(num_records=num_units), clip_norm=max_norm, noise_multiplier=1.0
    )
    noise = noise_within(release.cost_of, budget, ledger).noise
    release = replace(release, noise_multiplier=noise)
    data = jnp.asarray(rows, jnp.float32)
    key, cost = charged_key(release.cost, budget=budget, ledger=ledger, seed=seed, purpose=purpose)
    sums = jax.jit(lambda key, data: release(key, lambda own, _: own, data))(key, data)
    return NoisySums(sums=np.asarray(sums, np.float64), release=release), cost


def mean_interval(total: float, found: NoisySums, *, z: float = 1.96) -> dict[str, float]:
    """Returns the mean of values in [0, 1] with an interval for noise and sampling together.

    No variance is released: that of values in [0, 1] is at most ``m * (1 - m)``.
    """
    n = found.num_units
    mean = min(max(total / n, 0.0), 1.0)
    error = z * math.sqrt(max(mean * (1 - mean), 1 / n) / n + (found.noise_std / n) ** 2)
    return {"value": mean, "low": max(0.0, mean - error), "high": min(1.0, mean + error)}


@dataclass(frozen=True, kw_only=True)
class Bisection:
    """Finds where a sum over records that grows with a public variable reaches a level.

    With ``2**num_queries - 1`` points, ``num_queries`` releases find one; each looks at the middle
    of what is left.

    Guarantee:
      ``num_queries`` full-batch Gaussian releases, fixed beforehand in number and noise; together
      they tell as much as a single one with ``noise_multiplier``.

    Args:
      num_queries: how many releases.
      noise_multiplier: of all of them together; each has ``sqrt(num_queries)`` times as much.
      clip_norm: the largest magnitude that one record adds to a sum.

    Example:
      >>> from tacit.rng import seeded_key
      >>> search = Bisection(num_queries=3, noise_multiplier=0.1, clip_norm=1.0)
      >>> scores = jnp.linspace(0.0, 1.0, 101)
      >>> search.run(
      ...     seeded_key(0),
      ...     lambda point, score, key: jnp.where(score <= point, 1.0, 0.0),
      ...     scores,
      ...     np.linspace(0.1, 0.7, 7),
      ...     level=45.0,
      ... )
      4
    """

    num_queries: int
    noise_multiplier: float
    clip_norm: float

    def __post_init__(self) -> None:
        _check.positive_integer(num_queries=self.num_queries)
        _check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)

    @property
    def num_points(self) -> int:
        """How many points there must be."""
        return int(2**self.num_queries - 1)

    @property
    def noise_std(self) -> float:
        """The standard deviation of the noise on each sum."""
        return math.sqrt(self.num_queries) * self.noise_multiplier * self.clip_norm

    def cost(self, num_records: int) -> DpEvent:
        """What a search costs."""
        return repeated(self._release(num_records).cost, self.num_queries)

    def run(
        self,
        key: Key,
        query: Callable[[Scalar, Tree, Key], Scalar],
        data: Tree,
        points: NDArray[np.float64],
        *,
        level: float,
    ) -> int:
        """Returns the index of the first point found to have a noisy sum of at least ``level``.

        Where none is found, that is the number of points.

        Args:
          key: from `tacit.privacy.charging.charged_key`.
          query: ``query(point, record, key)`` of one record, a number that grows with the point.
          data: the records; every leaf has one row for each.
          points: public, in increasing order.
          level: public.
        """
        if np.shape(points) != (self.num_points,):
            raise InvalidArgumentError(
                f"points must be {self.num_points} numbers, 2**num_queries - 1; got shape"
                f" {np.shape(points)}."
            )
        release = self._release(_tree.num_records(data))

        low, high = 0, self.num_points
        for number in range(self.num_queries):
            middle = (low + high) // 2
            point = jnp.asarray(points[middle], jnp.float32)
            total = _noisy_sum(release, query, jax.random.fold_in(key, number), point, data)
            if float(total) >= level:
                high = middle
            else:
                low = middle + 1
        return high

    def _release(self, num_records: int) -> GaussianSum:
        return GaussianSum(
            sampling=FullBatch(num_records=num_records),
            clip_norm=self.clip_norm,
            noise_multiplier=math.sqrt(self.num_queries) * self.noise_multiplier,
        )


# Compiled once for each query; the point is an argument, so that searches share it.
@functools.partial(jax.jit, static_argnums=(0, 1))
def _noisy_sum(
    release: GaussianSum,
    query: Callable[[Scalar, Tree, Key], Scalar],
    key: Key,
    point: Scalar,
    data: Tree,
) -> Scalar:
    total: Scalar = release(key, lambda record, key: query(point, record, key), data)
    return total
