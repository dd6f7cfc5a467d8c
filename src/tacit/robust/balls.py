"""Balls and boxes: where an adversary may move an input."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Input, Key, Scalar

__all__ = ["L2", "Ball", "Box", "Linf", "around", "floating_input", "unit_roundoff"]


class Box(NamedTuple):
    """All arrays between two, entry by entry.

    Example:
      >>> Box(jnp.array([0.0, 1.0]), jnp.array([2.0, 1.0])).centre
      Array([1., 1.], dtype=float32)
    """

    lower: Array
    upper: Array

    @property
    def centre(self) -> Array:
        """The middle, up to rounding."""
        return 0.5 * self.lower + 0.5 * self.upper

    @property
    def radius(self) -> Array:
        """How far the farther end is from `centre`, up to rounding."""
        centre = self.centre
        return jnp.maximum(self.upper - centre, centre - self.lower)

    def intersect(self, other: "Box") -> "Box":
        """Returns what lies in both boxes."""
        return Box(jnp.maximum(self.lower, other.lower), jnp.minimum(self.upper, other.upper))


def around(centre: Array, radius: Array) -> Box:
    """Returns the box of what is within ``radius`` of ``centre``, entry by entry."""
    return Box(centre - radius, centre + radius)


def unit_roundoff(x: Array) -> float:
    """Returns half the spacing of floats at 1, in the precision of an array."""
    return 0.5 * float(np.finfo(x.dtype).eps)


class Ball(Protocol):
    """The inputs that an adversary may put in the place of one input."""

    def __hash__(self) -> int: ...

    @property
    def radius(self) -> float | Scalar:
        """How far the adversary may go."""
        ...

    def at(self, radius: float | Scalar) -> Self:
        """Returns the ball with another radius, which may be traced."""
        ...

    def project(self, x: Array, centre: Array) -> Array:
        """Returns a point of the ball around ``centre``: ``x`` itself where it is one."""
        ...

    def sample(self, key: Key, centre: Array) -> Array:
        """Draws a point of the ball around ``centre``."""
        ...

    def ascend(self, gradient: Array, size: float | Scalar) -> Array:
        """Returns the move of norm ``size`` along which a function grows the most."""
        ...

    def box(self, x: Array) -> Box:
        """Returns the smallest box that holds the ball around ``x``."""
        ...


@dataclass(frozen=True, kw_only=True)
class _WithinRange:
    """The part that is the same for every norm: a radius, and a range of values.

    A range is for inputs that have one, such as pixels in [0, 1]. A centre beyond it stays a
    point of its own ball (it is not pulled into the range, nor pushed farther out of it), so that
    a ball of radius zero is always the centre alone.
    """

    radius: float | Scalar
    low: float = -math.inf
    high: float = math.inf

    def __post_init__(self) -> None:
        if not isinstance(self.radius, jax.Array):
            _check.non_negative(radius=self.radius)
        if not self.low < self.high:
            raise InvalidArgumentError(
                f"low must be below high; got {self.low!r} and {self.high!r}. They are the ends of"
                " the range of every input value, such as 0 and 1 for pixels."
            )

    def at(self, radius: float | Scalar) -> Self:
        """Returns the ball with another radius, which may be traced: for schedules."""
        return replace(self, radius=radius)

    def box(self, x: Array) -> Box:
        """Returns the smallest box that holds the ball around ``x``."""
        return Box(self._in_range(x - self.radius, x), self._in_range(x + self.radius, x))

    def _in_range(self, x: Array, centre: Array) -> Array:
        return jnp.clip(x, jnp.minimum(self.low, centre), jnp.maximum(self.high, centre))


@dataclass(frozen=True, kw_only=True)
class Linf(_WithinRange):
    """Every value may move by at most ``radius``, and stays in ``[low, high]``.

    Example:
      >>> ball = Linf(radius=0.5, low=0.0, high=1.0)
      >>> ball.project(jnp.array([0.9, -0.3, 2.0]), jnp.array([0.2, 0.2, 0.9]))
      Array([0.7, 0. , 1. ], dtype=float32)
    """

    def project(self, x: Array, centre: Array) -> Array:
        """Returns the nearest point of the ball around ``centre``."""
        return jnp.clip(x, *self.box(centre))

    def sample(self, key: Key, centre: Array) -> Array:
        """Draws uniformly from the part of the ball that lies in the range."""
        lower, upper = self.box(centre)
        share = jax.random.uniform(key, centre.shape, centre.dtype)
        return self.project(lower + share * (upper - lower), centre)

    def ascend(self, gradient: Array, size: float | Scalar) -> Array:
        """Returns ``size`` times the signs of the gradient."""
        return size * jnp.sign(_finite(gradient))


@dataclass(frozen=True, kw_only=True)
class L2(_WithinRange):
    """The input may move by at most ``radius`` in Euclidean norm; values stay in ``[low, high]``.

    Example:
      >>> ball = L2(radius=1.0)
      >>> ball.project(jnp.array([3.0, 4.0]), jnp.zeros(2))
      Array([0.6, 0.8], dtype=float32)
    """

    def project(self, x: Array, centre: Array) -> Array:
        """Returns ``x`` drawn towards the centre into the ball, then cut to the range.

        The result is in both, since cutting only brings it nearer to the centre. Without a range
        it is the nearest point of the ball.
        """
        move = x - centre
        norm, direction = _norm_and_direction(move)
        move = jnp.where(norm > self.radius, self.radius * direction, move)
        return self._in_range(centre + move, centre)

    def sample(self, key: Key, centre: Array) -> Array:
        """Draws uniformly from the ball and cuts to the range."""
        direction_key, norm_key = jax.random.split(key)
        _, direction = _norm_and_direction(
            jax.random.normal(direction_key, centre.shape, centre.dtype)
        )
        # The volume within a share s of the radius is s to the power of the dimension.
        share = jax.random.uniform(norm_key, (), centre.dtype) ** (1 / max(centre.size, 1))
        return self.project(centre + self.radius * share * direction, centre)

    def ascend(self, gradient: Array, size: float | Scalar) -> Array:
        """Returns the gradient at norm ``size``; a gradient of zero moves nothing."""
        return size * _norm_and_direction(_finite(gradient))[1]


def floating_input(x: Input) -> Array:
    """Returns an input as an array, or raises where it has no ball around it."""
    is_array = isinstance(x, jax.Array | np.ndarray)
    if not is_array or not jnp.issubdtype(x.dtype, jnp.floating):
        found = f"{x.dtype} of shape {x.shape}" if is_array else type(x).__name__
        raise InvalidArgumentError(
            f"x must be one array of floating numbers to be attacked; got {found}. Tokens and trees"
            " of arrays have no ball around them: attack the embedding, or join the arrays."
        )
    return jnp.asarray(x)


def _finite(gradient: Array) -> Array:
    """Ignores what is not a number, so that one bad entry does not spoil the whole attack."""
    return jnp.nan_to_num(gradient)


def _norm_and_direction(x: Array) -> tuple[Array, Array]:
    """Returns the Euclidean norm, without under- or overflow, and the unit vector or zero."""
    largest = jnp.max(jnp.abs(x), initial=0.0)
    scaled = x / jnp.where(largest == 0, 1.0, largest)
    length = jnp.sqrt(jnp.sum(jnp.square(scaled)))
    return largest * length, scaled / jnp.where(length == 0, 1.0, length)
