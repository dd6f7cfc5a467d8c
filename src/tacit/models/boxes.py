"""Boxes: all arrays between two, entry by entry."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit.typing import Array

__all__ = ["Box", "around", "unit_roundoff"]


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
