"""Bounding: how the differences of one draw's logits are bounded over a ball."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.models import Box, EuclideanBall, Network, interval_bounds, linear_bounds
from tacit.robust import L2, Ball
from tacit.typing import Array, Key, Params

__all__ = ["Bounds", "Intervals", "Linear"]


class Bounds(Protocol):
    """A way to bound linear functions of a network's outputs."""

    def __hash__(self) -> int: ...

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns bounds of each row's product with the outputs, over the ball around ``x``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Interval bounds: as cheap as two predictions, and loose; the ball counts as its box."""

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns what the box of outputs allows."""
        box = interval_bounds(network, params, ball.box(x), key)
        size = jnp.maximum(jnp.abs(box.lower), jnp.abs(box.upper))
        slack = 4 * (size.size + 4) * float(np.finfo(size.dtype).eps)
        centre, radius = rows @ box.centre, jnp.abs(rows) @ (box.radius + slack * size)
        return Box(centre - radius, centre + radius)


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

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns the linear bounds of the rows."""
        return linear_bounds(
            network,
            params,
            ball.box(x),
            key,
            ball=EuclideanBall(x, ball.radius) if isinstance(ball, L2) else None,
            specification=rows,
            max_rows=self.max_rows,
        )
