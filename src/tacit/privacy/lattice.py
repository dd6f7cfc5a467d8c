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

They hold for numbers that are computed once. A compiler may compute an expression anew wherever it
is used, and XLA does, also behind an ``optimization_barrier``, which it drops before it fuses. Each
copy may be rounded in its own way: in one loop ``x * y + z`` becomes a single operation and in the
next it does not. Where terms cancel, the two have nothing in common: one can be 0 and the other
2**26. A record whose norm is taken from one copy and whose contribution comes from the other is not
clipped at all. So norms and sums read numbers that are `materialised`: they went through a call of
the native kernel, which leaves them where they are and does nothing, but no compiler knows that.
Without the kernel they are copied in a loop, and what is behind a loop reads its result.

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
    "FEWEST_ROWS",
    "LARGEST_EXPONENT",
    "LARGEST_OPERAND",
    "LIMB_BITS",
    "UNDERFLOW",
    "Lattice",
    "block_rows",
    "gamma",
    "largest_spread",
    "lost_to_underflow",
    "materialised",
    "materialised_backwards",
    "nested_sum",
    "num_blocks",
    "raised",
    "scaled",
    "scaled_weight",
    "summing_error",
]

_UNIT_ROUNDOFF = 2.0**-24

LARGEST_OPERAND = 2.0**60
"""A record with a larger number in it contributes nothing. Below, whatever underflows in a sum of
clipped terms is smaller than 2**-66 lattice units, which `_NEGLIGIBLE` covers."""

UNDERFLOW = 8 * 2.0**-126
"""What a product of scaled factors may lose to underflow, with a margin.

After scaling no factor exceeds one, so a term that underflows at any stage is below the smallest
normal float32. At ordinary scales this adds nothing; where operands are 1e19 apart it keeps the
norm an upper bound.
"""

LIMB_BITS = 12
"""Sums that pass 31 bits are kept as two numbers, the lower one of so many bits."""

LARGEST_EXPONENT = 22
"""With it a block of 288 records fits in 32 bits."""

_FINENESS, _LEAST_EXPONENT = 8, 18
"""Rounding to the lattice moves a sum by at most 2**-8 clip norms, and by much less where the sum
has few numbers: finer than this, sums over a batch would no longer fit in 32 bits."""

_NEGLIGIBLE = 2.0**-20
"""Covers the few roundings of a clip factor itself, and underflow."""

_LARGEST_SUM = 2**30
"""Half of what 32 bits hold: computed sums may exceed their bound a little."""

_NESTED = 2**14
"""Longer sums of squares are added in two stages, or rounding would cost more than 0.05 % of a
norm. A single stage is several times as fast."""

_MOST_ROWS, FEWEST_ROWS = 288, 2
"""With 288 rows a Poisson batch of 256, which has room for 272, is one block. The sum of a block
may be off by 1 % of a clip norm; with twice as many rows it would be 4 %."""

_SUMMING = 0.02
"""By how many clip norms the float32 sums of a block may be off, where positions add up."""


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


def largest_spread(positions: int) -> float:
    """Returns kappa: a record is clipped such that its spread A is at most so many clip norms.

    At one position spread and norm are the same. At several, terms that point in all directions
    have a spread of up to the square root of their number; four times as much leaves room for terms
    that cancel. A record whose terms cancel beyond that counts with less than its gradient.
    """
    return 1.0 if positions == 1 else 4.0 * math.sqrt(positions)


def block_rows(positions: int) -> int:
    """Returns how many records are added up in float32 before they are rounded to the lattice.

    Args:
      positions: how many positions of one record add up.

    Example:
      >>> block_rows(1), block_rows(4)
      (288, 64)
    """
    if positions == 1:
        return _MOST_ROWS
    rows = math.sqrt(_SUMMING / (2 * gamma(1) * positions * largest_spread(positions)))
    return min(_MOST_ROWS, 2 ** math.floor(math.log2(max(rows, 1.0))))


def num_blocks(length: int, positions: int) -> int:
    """Returns into how many blocks so many records are cut; into equal ones where that is easy.

    Example:
      >>> num_blocks(272, 1), num_blocks(1000, 1)
      (1, 4)
    """
    least = -(-length // block_rows(positions))
    even = [count for count in range(least, 2 * least + 1) if length % count == 0]
    return even[0] if even else least


def summing_error(positions: int, num_reads: int) -> float:
    """Returns by how many clip norms the sum of a record's block may be off, twice.

    A block's sum has ``rows * positions`` terms, and a few operations on each. In l2 norm it is off
    by at most ``gamma_m sum_i c_i A_i <= gamma_m rows kappa``, with the record and without it.
    """
    rows = block_rows(positions)
    operations = rows * positions + num_reads + 8
    return 2 * gamma(operations) * rows * largest_spread(positions)


def scaled(x: Array) -> tuple[Array, Array]:
    """Returns each record's array divided by its largest entry, and that entry.

    The entry is infinite where it is too large, so that the record is dropped: larger numbers could
    vanish in a product with a small factor, and leave a sum that no norm bounds.
    """
    largest = jnp.max(jnp.abs(x), axis=(1, 2, 3))
    # Zero stays zero; what is not finite stays so.
    scale = jnp.where(largest == 0, 1.0, largest)
    usable = jnp.where(largest <= LARGEST_OPERAND, largest, jnp.inf)
    return x / scale[:, None, None, None], usable


def scaled_weight(weight: Array) -> tuple[Array, Array]:
    """Returns derivatives divided by the largest, and that one, likewise."""
    largest = jnp.max(jnp.abs(weight))
    usable = jnp.where(largest <= LARGEST_OPERAND, largest, jnp.inf)
    return weight / jnp.where(largest == 0, 1.0, largest), usable


def lost_to_underflow(num_terms: int) -> float:
    """By how much underflow may shorten a vector of scaled products: each loses below 2**-63."""
    return 2.0**-62 * math.sqrt(num_terms)


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


@jax.custom_vjp
def materialised_backwards(x: Array) -> Array:
    """Returns the same numbers; the cotangent on its way back is materialised."""
    return x


def _forwards(x: Array) -> tuple[Array, None]:
    return x, None


def _backwards(_: None, cotangent: Array) -> tuple[Array]:
    return (materialised(cotangent),)


materialised_backwards.defvjp(_forwards, _backwards)

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
