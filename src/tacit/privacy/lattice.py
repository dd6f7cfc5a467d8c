"""The lattice on which clipped sums are added, and what rounding can do to them.

A compiler may compute an expression anew wherever it is used, and XLA does, also behind an
``optimization_barrier``, which it drops before it fuses. Each copy may be rounded in its own way:
in one loop ``x * y + z`` becomes a single operation and in the next it does not. Where terms
cancel, the two have nothing in common: one can be 0 and the other 2**26. A record whose norm is
taken from one copy and whose contribution comes from the other is not clipped at all.

So norms and sums read numbers that went through a call of the native kernel, which leaves them
where they are and does nothing, but no compiler knows that. Without the kernel they are copied in a
loop, and what is behind a loop reads its result.

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

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tacit import native
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Tree

__all__ = [
    "LARGEST_EXPONENT",
    "LARGEST_OPERAND",
    "LIMB_BITS",
    "Lattice",
    "gamma",
    "materialised",
    "nested_sum",
    "raised",
]


def materialised(tree: Tree) -> Tree:
    """Returns the same numbers. What is computed from them reads them and nothing before them.

    Example:
      >>> print(materialised(jnp.array([1.0, float("nan"), -0.0])))
      [ 1. nan -0.]
    """
    known: dict[int, Array] = {}

    def once(x: Array) -> Array:
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            return x
        if id(x) not in known:
            known[id(x)] = _same.bind(x)
        return known[id(x)]

    return jax.tree.map(once, tree)


_same = Primitive("tacit_same")


def _by_loop(x: Array) -> Array:
    """Copies the numbers in a loop, one half at a time."""
    if not x.size:
        return x
    flat = x.reshape(-1) if x.size > 1 else jnp.broadcast_to(x.reshape(1), (2,))
    half = -(-flat.size // 2)

    def copied(i: Array, copy: Array) -> Array:
        start = i * (flat.size - half)
        return lax.dynamic_update_slice(copy, lax.dynamic_slice(flat, [start], [half]), [start])

    return lax.fori_loop(0, 2, copied, jnp.zeros_like(flat))[: x.size].reshape(x.shape)


def _lower_on_cpu(context: Any, x: Any) -> Any:
    if not native.is_loaded():
        return _lower_by_loop(context, x)
    return jax.ffi.ffi_lowering("tacit_same", operand_output_aliases={0: 0})(context, x)


@functools.cache
def _compiled() -> Any:
    return jax.jit(_same.bind)


def _apply(x: Array) -> Array:
    with jax.disable_jit(False):
        return _compiled()(x)


def _batched(operands: Any, dims: Any) -> tuple[Array, int]:
    return _same.bind(*operands), dims[0]


_lower_by_loop = mlir.lower_fun(_by_loop, multiple_results=False)
_same.def_impl(_apply)
_same.def_abstract_eval(lambda x: x)
batching.primitive_batchers[_same] = _batched
ad.deflinear2(_same, lambda cotangent, _: [cotangent])
mlir.register_lowering(_same, _lower_by_loop)
mlir.register_lowering(_same, _lower_on_cpu, platform="cpu")


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
