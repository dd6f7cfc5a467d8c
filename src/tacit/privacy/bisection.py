"""Private searches beside a fit: charged first, then a few noisy sums."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget, Ledger, RunRequest
from tacit.privacy.events import repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.privacy.statement import require_adjacency
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Key, Scalar, Tree

__all__ = ["Bisection", "charged_key"]


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
          key: from `charged_key`.
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


def charged_key(
    cost: DpEvent,
    *,
    budget: Budget,
    ledger: Ledger | None,
    seed: int | None,
    purpose: str = "release",
    records: Tree = None,
) -> Key:
    """Returns the key of releases that are within the budget and charged.

    Guarantee:
      Raises `BudgetExceededError` where the budget or the ledger does not allow the cost; without
      this key nothing can be released. Such releases look at every record, so a budget under
      add-remove adjacency, where their number is private, is refused.

    Args:
      cost: of all releases that will be made with the key.
      budget: what may be spent.
      ledger: is charged, if there is one.
      seed: for tests only; replaces the fresh key, INSECURE.
      purpose: what the ledger calls it; public.
      records: the table, where it is the one that the ledger knows by its fingerprint.
    """
    require_adjacency(FullBatch(num_records=1), budget)
    budget.require(cost)
    if ledger is not None:
        request = RunRequest(
            cost=cost,
            purpose=purpose,
            is_secure=seed is None,
            records=records,
            adjacency=budget.accountant.adjacency,
        )
        ledger.begin(request).charge(cost)
    return fresh_key() if seed is None else seeded_key(seed)
