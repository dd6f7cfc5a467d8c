"""The lattice on which clipped sums are added, and what rounding can do to them.

A clipped sum is released as integers: multiples of a spacing ``g = 2**-exponent`` clip norms. A
record contributes to it either by itself, rounded to the lattice and then added as integers, or in
a block of records that a matrix product adds in float32 before the block's sum is rounded. Integers
add up exactly in every order, so one record moves the sum by no more than

    its clipped norm + the rounding errors of its own block, with it and without it
    + what rounding to the lattice moves.

All of these are bounded beforehand from shapes, so records are clipped a little below the clip
norm and the sum of the bounds is the clip norm itself. That is what the noise is scaled to.

The bounds are the standard ones of rounding analysis. With the unit roundoff ``u = 2**-24``, a
result of m operations has a relative error of at most ``gamma_m = m u / (1 - m u)`` for sums of
positive terms, and for others that error relative to the sum of the terms' magnitudes, in whatever
order the terms are added and whether or not products and sums are fused.

Reference:
  Higham, *Accuracy and Stability of Numerical Algorithms*, 2002, chapters 3 and 4; Casacuberta,
  Shoemate, Vadhan, Wagaman, *Widespread underestimation of sensitivity in differentially private
  libraries and how to fix it*, 2022.
"""

import math
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from tacit.errors import InvalidArgumentError
from tacit.privacy.materialised import materialised
from tacit.typing import Array

__all__ = [
    "LARGEST_EXPONENT",
    "LARGEST_OPERAND",
    "LIMB_BITS",
    "Lattice",
    "gamma",
    "nested_sum",
    "raised",
]

_UNIT_ROUNDOFF = 2.0**-24

LARGEST_OPERAND = 2.0**60
"""A record with a larger number in it contributes nothing. Below, whatever underflows in a sum of
clipped terms is smaller than 2**-66 lattice units, which `_NEGLIGIBLE` covers."""

LIMB_BITS = 12
"""Sums that pass 31 bits are kept as two numbers, the lower one of so many bits."""

_FINENESS, _LEAST_EXPONENT = 8, 18
"""Rounding to the lattice moves a sum by at most 2**-8 clip norms, and by much less where the sum
has few numbers: finer than this, sums over a batch would no longer fit in 32 bits."""

_NEGLIGIBLE = 2.0**-20
"""Covers the few roundings of a clip factor itself, and underflow."""

_LARGEST_SUM = 2**30
"""Half of what 32 bits hold: computed sums may exceed their bound a little."""

LARGEST_EXPONENT = 22
"""With it a block of 288 records fits in 32 bits."""

_NESTED = 2048
"""Longer sums of squares are added in two stages, or rounding would cost more than 0.01 %."""


def gamma(num_operations: int) -> float:
    """Returns the relative error that so many operations in float32 can add up to.

    Example:
      >>> f"{gamma(256):.2e}"
      '1.53e-05'
    """
    error = num_operations * _UNIT_ROUNDOFF
    if error >= 0.25:
        raise InvalidArgumentError(
            f"a float32 sum of {num_operations} operations has no useful error bound. Use a smaller"
            " chunk_size, or fewer positions for each record."
        )
    return error / (1 - error)


def raised(value: Array, num_operations: int) -> Array:
    """Returns an upper bound on a sum of positive terms that was computed in so many operations.

    The exact sum is at most ``value / (1 - gamma_m)``; the product here is counted in m.
    """
    factor = 1 / (1 - gamma(num_operations + 2))
    return value * np.nextafter(np.float32(factor), np.float32(np.inf))


def nested_sum(squares: Array) -> tuple[Array, int]:
    """Sums positive terms over the last axis; returns also the number of operations of the sum.

    Long sums are added in two stages, each of about the square root of the length. The
    first stage is materialised, or the compiler might merge them again.
    """
    length = squares.shape[-1]
    if length <= _NESTED:
        return jnp.sum(squares, axis=-1), length
    inner = math.isqrt(length)
    outer = -(-length // inner)
    padding = [(0, 0)] * (squares.ndim - 1) + [(0, outer * inner - length)]
    padded = jnp.pad(squares, padding).reshape(*squares.shape[:-1], outer, inner)
    return jnp.sum(materialised(jnp.sum(padded, axis=-1)), axis=-1), inner + outer


@dataclass(frozen=True, kw_only=True)
class Lattice:
    """Where the clipped sum of one query or gradient is rounded to; all of it public.

    Attributes:
      rounding: by how many lattice units rounding may move the sum when one record changes.
      summing: by how many clip norms the errors of float32 sums may move it.
    """

    rounding: float
    summing: float = 0.0

    def __post_init__(self) -> None:
        if self.exponent > LARGEST_EXPONENT:
            raise InvalidArgumentError(
                f"a sum whose rounding may move it by {self.rounding:.3g} units has too many"
                " numbers for integers of 32 bits. Release fewer than 2**28 at once."
            )

    @property
    def exponent(self) -> int:
        """The spacing is ``2**-exponent`` clip norms: a power of two, so that scaling is exact."""
        return max(_LEAST_EXPONENT, _FINENESS + math.ceil(math.log2(self.rounding)))

    @property
    def share(self) -> float:
        """What a record is clipped to, in clip norms; the rest of one is kept for rounding.

        A record clipped to ``share`` moves the sum by at most ``share * (1 + summing)`` and the
        lattice's rounding, with a margin for the factors: that is one clip norm.
        """
        return (1 - self.rounding * 2.0**-self.exponent - _NEGLIGIBLE) / (1 + self.summing)

    def num_limbs(self, num_records: int) -> int:
        """Returns how many numbers hold a sum over so many records."""
        return 1 if num_records * 2**self.exponent <= _LARGEST_SUM else 2
