"""Bounding: how the differences of one draw's logits are bounded over a ball."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.models import EuclideanBall, Network, interval_bounds, linear_bounds
from tacit.robust import L2, Ball
from tacit.typing import Array, Key, Params

__all__ = ["Bounds", "Intervals", "Linear"]


class Bounds(Protocol):
    """A way to bound linear functions of a network's outputs."""

    def __hash__(self) -> int: ...

    def least(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Array:
        """Returns, for each row, the least product with the outputs over the ball around ``x``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Interval bounds: as cheap as two predictions, and loose; the ball counts as its box."""

    def least(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Array:
        """Returns what the box of outputs allows."""
        lower, upper = interval_bounds(network, params, ball.box(x), key)
        # Rows hold 0, 1 and -1, at most two of them not 0: the only rounding is of one difference.
        least = jnp.maximum(rows, 0.0) @ lower + jnp.minimum(rows, 0.0) @ upper
        size = jnp.abs(rows) @ jnp.maximum(jnp.abs(lower), jnp.abs(upper))
        return least - 8 * float(np.finfo(size.dtype).eps) * size


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear bounds within interval bounds: much tighter, and dearer.

    Attributes:
      max_rows: hidden layers with at most so many units get linear bounds of their own, at one
        backward pass for each unit; see `tacit.models.linear_bounds`.
    """

    max_rows: int = 256

    def __post_init__(self) -> None:
        _check.positive_integer(max_rows=self.max_rows)

    def least(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Array:
        """Returns the lower ends of the rows' linear bounds."""
        return linear_bounds(
            network,
            params,
            ball.box(x),
            key,
            ball=EuclideanBall(x, ball.radius) if isinstance(ball, L2) else None,
            specification=rows,
            max_rows=self.max_rows,
        ).lower
