"""Exactly sampled Gaussian noise on a lattice: normals of any precision, rounded to integers.

The engine's sums are integers f on a public lattice. What it releases is f + K, times the spacing,
where the K are independent and

    P(K = k) = Phi((k + 1/2) / ratio) - Phi((k - 1/2) / ratio),

a normal of standard deviation ``ratio`` (in units of the spacing), rounded to the nearest integer.
Because f is whole, f + K is the *real-valued* Gaussian mechanism's output, rounded: a release is
post-processing of the mechanism that the accountants analyse, with no cut tail and no bits
below the noise.

The integers are defined by mathematics, so every implementation has the same. Column c of a draw
has four words w0 ... w3 and sixteen further words v0 ... v7 and v8 ... v15, all of 32 bits:

    u     = 0.w0 w1 v0 ... v7 1    the bits of these words behind the binary point, and a last one
    a     = w2 w3 v8 ... v15 1     written likewise; its first three bits s0 s1 s2 are taken off
    theta = pi/4 * 0.(the others)
    R     = ratio sqrt(-2 ln u)
    (x, y) = (cos theta, sin theta), exchanged if s2 = 1
    K[0, c] = round(R x), negated if s0 = 1;  K[1, c] = round(R y), negated if s1 = 1

The last 1 is the middle of the cell of width 2^-320 (2^-317) that the words name. The words are
row i, column c of ``jax.random.bits(key, (4, num_columns))``; the further ones are
``jax.random.bits(jax.random.fold_in(key, c), (16,))``, which the generator of `tacit.rng` makes
under another nonce. ``tests/privacy/rounded_gaussian_vectors.json`` has words and integers to check
an implementation with.

Hardly any column needs its further words. Double precision with a proven error bound decides all
but about ``2^-44 ratio`` of them; those are refined, one after the other, to 350 bits
(`tacit.privacy.refinement` has both).
How long a draw takes therefore depends on the noise, though never on the records.

Reference:
  Box and Muller, *A note on the generation of random normal deviates*, 1958.
"""

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import _check, native
from tacit.chacha20 import CHACHA20, words_between
from tacit.errors import InvalidArgumentError
from tacit.privacy import refinement
from tacit.privacy.lattice import LIMB_BITS
from tacit.privacy.refinement import FURTHER_WORDS, LARGEST_RATIO
from tacit.typing import Array, Key, Tree

__all__ = ["integers_from_words", "noisy", "rounded_gaussian"]

# Limbs of a sum that the native kernel adds.
_MOST_LIMBS = 2

# Columns that are drawn together: their words and intermediate results stay in the cache.
_PART = 32768

_Finish: TypeAlias = Callable[[Array, Array, Tree], Tree]
"""Makes the result of some columns from their high and low words and the integers."""


def rounded_gaussian(
    key: Key,
    *,
    ratio: float | Array,
    num_columns: int,
    first_column: int | Array = 0,
    length: int | None = None,
) -> tuple[Array, Array]:
    """Returns columns of a draw of 2 x ``num_columns`` integers, as this module defines them.

    Guarantee:
      Under a secret key of `tacit.rng` the integers are independent of each other and of everything
      else, and each has the law of a rounded normal up to a total variation of 2^-200. That
      changes no delta that a double can hold, so nothing is charged for it. It supposes IEEE
      double precision, as on CPUs and CUDA devices.

    Args:
      key: used up by this call.
      ratio: the standard deviation, at most 2**40. A number is used exactly as it is. An array may
        be traced, and must have been rounded up before; one that is not a positive number, or is
        too large, gives the least 64-bit integer everywhere.
      num_columns: of the whole draw, less than 2**30.
      first_column: where the slice begins; may be traced.
      length: how many columns it has; by default all. It must end within the draw: what lies
        beyond repeats the words of other columns.

    Returns:
      int32[2, length] and uint32[2, length], the high and low words of 64-bit integers.

    Example:
      >>> from tacit.rng import seeded_key
      >>> high, low = rounded_gaussian(seeded_key(0), ratio=1e6, num_columns=2)
      >>> print(low.astype("int32"))
      [[  344419   443141]
       [-1146606   316160]]
    """
    ratio_words, valid = _checked_ratio(ratio)
    length = num_columns if length is None else length
    first = _checked_start(num_columns, first_column, length)
    high, low = _rounded_gaussian(key, ratio_words, first, num_columns=num_columns, length=length)
    return jnp.where(valid, high, -(2**31)), jnp.where(valid, low, 0)


def noisy(
    key: Key,
    integers: Array,
    *,
    ratio: float | Array,
    scale: float | Array,
    num_columns: int,
    first_column: int | Array = 0,
    dtype: Any = jnp.float32,
) -> Array:
    """Returns ``scale * (f + K)`` for the integers f and the K of `rounded_gaussian`.

    Guarantee:
      The result is a function of f + K, ``ratio`` and ``scale`` alone, computed in 64-bit integers
      and double precision and cast at the end. If the neighbours of f are no further than S from it
      in the l2 norm, it is post-processing of a Gaussian mechanism with sensitivity S
      and standard deviation ``ratio``. A ratio that is not positive or not a number is refused,
      or where it is an array, gives NaN everywhere.

    Args:
      key: used up by this call.
      integers: int32[num_limbs, 2, length]. With one limb it is f; with two, f is the first plus
        ``2**LIMB_BITS`` times the second, of any sign and size.
      ratio: as for `rounded_gaussian`.
      scale: the spacing of the lattice in units of the result; may be traced.
      num_columns: of the whole draw, as for `rounded_gaussian`.
      first_column: where the integers stand in it; may be traced.
      dtype: of the result.

    Example:
      >>> from tacit.rng import seeded_key
      >>> f = jnp.array([[[0, 100], [200, -100]]])
      >>> print(noisy(seeded_key(0), f, ratio=3.0, scale=0.5, num_columns=2))
      [[  0.5  50.5]
       [ 98.5 -49.5]]
    """
    ratio_words, valid = _checked_ratio(ratio)
    first = _checked_start(num_columns, first_column, integers.shape[-1])
    with jax.enable_x64(True):
        scale = jnp.where(valid, jnp.asarray(scale, jnp.float64), jnp.nan)
        scale_words = lax.bitcast_convert_type(scale, jnp.uint32)
    return _noisy(
        key, integers, ratio_words, scale_words, first, num_columns=num_columns, dtype=dtype
    )


def integers_from_words(
    words: Array, further_words: Callable[[Array], Array], *, ratio: float | Array
) -> tuple[Array, Array]:
    """Maps words to integers, as this module defines it.

    Args:
      words: uint32[4, n].
      further_words: returns the uint32[2, 8] further words of a column.
      ratio: as for `rounded_gaussian`.

    Returns:
      int32[2, n] and uint32[2, n], the high and low words of 64-bit integers.

    Example:
      >>> words, further = jnp.ones((4, 1), jnp.uint32), jnp.ones((2, 8), jnp.uint32)
      >>> high, low = integers_from_words(words, lambda column: further, ratio=100.0)
      >>> print(low)
      [[666]
       [  0]]
    """
    return _decided(words, further_words, _checked_ratio(ratio)[0], (), _unchanged)


@functools.partial(jax.jit, static_argnames=("num_columns", "length"))
def _rounded_gaussian(
    key: Key, ratio: Array, first_column: Array, *, num_columns: int, length: int
) -> tuple[Array, Array]:
    if not (length and _is_native(key)):
        return _integers_in_jax(key, ratio, first_column, num_columns=num_columns, length=length)
    high, low = native.call(
        "tacit_integers",
        _integers_in_jax,
        jax.random.key_data(key),
        ratio,
        first_column,
        results=(((2, length), jnp.int32), ((2, length), jnp.uint32)),
        attributes={"num_columns": num_columns, "relative_error": _bits(refinement.RELATIVE_ERROR)},
        static={"num_columns": num_columns, "length": length},
    )
    return high, low


def _integers_in_jax(
    key: Key, ratio: Array, first_column: Array, *, num_columns: int, length: int
) -> tuple[Array, Array]:
    return _drawn(
        _as_key(key),
        (),
        _unchanged,
        ratio=ratio,
        first_column=first_column,
        num_columns=num_columns,
        length=length,
    )


@functools.partial(jax.jit, static_argnames=("num_columns", "dtype"))
def _noisy(
    key: Key,
    integers: Array,
    ratio: Array,
    scale: Array,
    first_column: Array,
    *,
    num_columns: int,
    dtype: Any,
) -> Array:
    num_limbs, _, length = integers.shape
    supported = jnp.dtype(dtype).name in ("float32", "float64") and integers.dtype == jnp.int32
    if not (supported and num_limbs <= _MOST_LIMBS and length and _is_native(key)):
        return _noisy_in_jax(
            key, ratio, first_column, integers, scale, num_columns=num_columns, dtype=dtype
        )
    return native.call(
        "tacit_noise",
        _noisy_in_jax,
        jax.random.key_data(key),
        ratio,
        first_column,
        integers,
        scale,
        results=(((2, length), dtype),),
        attributes={"num_columns": num_columns, "relative_error": _bits(refinement.RELATIVE_ERROR)},
        static={"num_columns": num_columns, "dtype": dtype},
    )[0]


def _noisy_in_jax(
    key: Key,
    ratio: Array,
    first_column: Array,
    integers: Array,
    scale: Array,
    *,
    num_columns: int,
    dtype: Any,
) -> Array:
    def finish(high: Array, low: Array, limbs: Array) -> Array:
        with jax.enable_x64(True):
            total = (high.astype(jnp.int64) << 32) | low.astype(jnp.int64)
            for i, limb in enumerate(limbs):
                total = total + (limb.astype(jnp.int64) << (LIMB_BITS * i))
            factor = lax.bitcast_convert_type(scale, jnp.float64)
            return (total.astype(jnp.float64) * factor).astype(dtype)

    return _drawn(
        _as_key(key),
        integers,
        finish,
        ratio=ratio,
        first_column=first_column,
        num_columns=num_columns,
        length=integers.shape[-1],
    )


def _is_native(key: Key) -> bool:
    return native.is_loaded() and jax.random.key_impl(key) == CHACHA20


def _as_key(key: Key) -> Key:
    """Returns a key for itself or for its words, which is what the kernel takes."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    return jax.random.wrap_key_data(key, impl=CHACHA20)


def _bits(number: float) -> int:
    return int(np.float64(number).view(np.int64))


def _drawn(
    key: Key,
    integers: Tree,
    finish: _Finish,
    *,
    ratio: Array,
    first_column: Array,
    num_columns: int,
    length: int,
) -> Tree:
    """Draws part by part and returns what ``finish`` makes of the draw and of the integers."""
    # Of another generator any slice takes the whole draw.
    part = min(length, _PART) if jax.random.key_impl(key) == CHACHA20 else length
    rows = np.arange(4, dtype=np.uint32) * np.uint32(num_columns)

    def of_part(start: Array) -> Tree:
        column = first_column + start
        words = lax.map(
            lambda row: words_between(key, row + column, part, num_words=4 * num_columns),
            jnp.asarray(rows),
        )

        def further_words(own: Array) -> Array:
            own_key = jax.random.fold_in(key, column + own.astype(jnp.uint32))
            return jax.random.bits(own_key, (2, FURTHER_WORDS), jnp.uint32)

        own = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, part, axis=-1), integers)
        return _decided(words, further_words, ratio, own, finish)

    if part == length:
        return of_part(jnp.uint32(0))

    def fill(i: Array, released: Tree) -> Tree:
        # The last part begins earlier and repeats some columns, with the same result.
        start = jnp.minimum(i.astype(jnp.uint32) * np.uint32(part), np.uint32(length - part))
        return jax.tree.map(
            lambda x, own: lax.dynamic_update_slice_in_dim(x, own, start, axis=-1),
            released,
            of_part(start),
        )

    shapes = jax.eval_shape(of_part, jnp.uint32(0))
    empty = jax.tree.map(lambda x: jnp.zeros((2, length), x.dtype), shapes)
    return lax.fori_loop(0, -(-length // part), fill, empty)


def _unchanged(high: Array, low: Array, _: Tree) -> tuple[Array, Array]:
    return high, low


def _checked_ratio(ratio: float | Array) -> tuple[Array, bool | Array]:
    """Returns the low and high word of a ratio as a double, and whether it is one."""
    if not isinstance(ratio, jax.Array):
        _check.positive(ratio=ratio)
        if ratio > LARGEST_RATIO:
            raise InvalidArgumentError(
                f"ratio must be at most 2**40; got {ratio!r}. Use a coarser lattice."
            )
        return jnp.asarray(np.array([ratio], np.float64).view(np.uint32)), True
    with jax.enable_x64(True):
        double = ratio.astype(jnp.float64)
        valid = (double > 0) & (double <= LARGEST_RATIO)
        return lax.bitcast_convert_type(jnp.where(valid, double, 1.0), jnp.uint32), valid


def _checked_start(num_columns: int, first_column: int | Array, length: int) -> Array:
    """Returns the first column, after what can be checked of a slice was."""
    if num_columns >= 2**30:
        raise InvalidArgumentError(
            f"num_columns must be less than 2**30; got {num_columns}. Draw in several parts, each"
            " from a key of its own."
        )
    if not isinstance(first_column, jax.Array) and not 0 <= first_column <= num_columns - length:
        raise InvalidArgumentError(
            f"columns must lie within the draw; got {length} from {first_column} on of"
            f" {num_columns}."
        )
    return jnp.asarray(first_column, jnp.uint32)


def _decided(
    words: Array,
    further_words: Callable[[Array], Array],
    ratio: Array,
    integers: Tree,
    finish: _Finish,
) -> Tree:
    """Returns what ``finish`` makes of the draw's high and low words and of the integers.

    It is applied to all columns at once, and again to each that had to be refined: so the integers
    of the draw need not be kept.
    """
    high, low, undecided = refinement.in_double_precision(words, ratio)
    released = finish(high, low, integers)
    if not undecided.size:
        return released

    def refine(state: tuple[Tree, Array]) -> tuple[Tree, Array]:
        # Of a single column XLA would see that it is always the same, and refine it before it is
        # known whether it has to be: 0.2 ms instead of nothing.
        released, undecided = state
        column, _ = lax.optimization_barrier((jnp.argmax(undecided), undecided))
        own_words = lax.dynamic_index_in_dim(words, column, axis=-1, keepdims=False)
        pair = refinement.refined(own_words, further_words(column), ratio)
        own = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, column, 1, axis=-1), integers)
        released = jax.tree.map(
            lambda x, new: lax.dynamic_update_slice_in_dim(x, new, column, axis=-1),
            released,
            finish(pair[0][:, None], pair[1][:, None], own),
        )
        return released, undecided.at[column].set(False)

    return lax.while_loop(lambda state: state[1].any(), refine, (released, undecided))[0]
