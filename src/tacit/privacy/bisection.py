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
from tacit.privacy.events import repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Key, Scalar, Tree

__all__ = ["Bisection"]


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
