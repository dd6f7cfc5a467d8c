"""Gaussian noise whose tail and precision are stated.

``jax.random.normal`` in single precision never exceeds 5.42 in magnitude. That is too short for
privacy: an output beyond the edge of the noise around one data set proves that it was not made
from that data set. A record moves the edge of coordinate j by v_j noise standard deviations,
which reveals it with probability about phi(t) |v_j| when the edge is at t, and sum |v_j| <=
sqrt(d) / noise_multiplier. Over T releases that must be far below delta: with d = 2.4 million,
T = 3515 and delta = 1e-5 the edge must lie beyond 8.5. Here it lies at 8.89, and ``tail_delta``
bounds what is left.

A sum of floats with float noise leaks in a second way: its last bits are those of the numbers that
went in, and tell which sum is under the noise. So a noisy sum must pass ``rounded_to_grid`` before
anyone sees it.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.rng import words_between
from tacit.tables import Scattered
from tacit.typing import Array, Key, Tree

__all__ = [
    "MAX_MAGNITUDE",
    "gaussian_noise",
    "normals_from_words",
    "rounded_to_grid",
    "tail_delta",
    "with_noise",
]

_RADIUS_BITS = 56

MAX_MAGNITUDE = math.sqrt(2 * (_RADIUS_BITS + 1) * math.log(2))
"""The largest standard normal that can occur, 8.889, and the largest norm of a pair of them."""


def with_noise(key: Key, total: Tree | Scattered, *, std: float | Array) -> Tree | Scattered:
    """Returns a sum with `gaussian_noise` on it, rounded by `rounded_to_grid`.

    Guarantee:
      Each number of the sum gets its noise once, and the same noise wherever the sum lies. Where it
      lies in slices on several devices, each makes the noise of its own slice and of no other; of
      more than 3.4e9 numbers it raises, because 32 bits cannot count the words of their noise.
    """
    if not isinstance(total, Scattered):
        noise = gaussian_noise(key, total, std=std)
        return rounded_to_grid(jax.tree.map(jnp.add, total, noise), std=std)
    own, num_columns = total.own, total.num_columns
    rows = jnp.arange(5, dtype=jnp.uint32)
    starts = rows * np.uint32(num_columns) + total.first_column.astype(jnp.uint32)
    # One after the other, which stays in the cache and takes half the time of all at once.
    words = jax.lax.map(
        lambda start: words_between(key, start, own.shape[1], num_words=5 * num_columns), starts
    )
    slice_noise = normals_from_words(words) * jnp.asarray(std, jnp.float32)
    noisy: Array = rounded_to_grid(own + slice_noise.astype(own.dtype), std=std)
    return total.with_own(noisy)


def gaussian_noise(key: Key, tree: Tree, *, std: float | Array) -> Tree:
    """Returns independent normal noise with the shapes of ``tree``.

    Guarantee:
      Every value is ``std`` times a standard normal, independent of the others under a secret
      key of ``tacit.rng``. The normals come in pairs, a radius and a direction. The radius is
      the exact quantile of one of 2**56 equally likely, equally spaced probabilities, the
      direction one of 2**24 equally likely, equally spaced angles; both are then rounded to
      single precision with a relative error below 1e-6. No value exceeds
      ``MAX_MAGNITUDE * std``; ``tail_delta`` bounds the cost. The finite grid itself is outside
      the guarantee; ``rounded_to_grid`` hides it in a sum.

    Args:
      key: used up by this call.
      tree: arrays, or anything with a shape and a floating dtype, such as
        ``jax.ShapeDtypeStruct``. Only shapes and dtypes are read.
      std: the standard deviation, zero or more; may be traced. Zero gives exact zeros.

    Returns:
      A tree of the same structure and shapes, in float32 or wider: the noise of bfloat16
      parameters keeps its precision.

    Example:
      >>> from tacit.rng import seeded_key
      >>> noise = gaussian_noise(seeded_key(0), {"w": jnp.zeros((2, 3))}, std=2.0)
      >>> noise["w"].shape
      (2, 3)
    """
    if isinstance(std, int | float):
        _check.non_negative(std=std)
    leaves, treedef = jax.tree.flatten(tree)
    for leaf in leaves:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InvalidArgumentError(
                f"tree must have floating leaves; got {leaf.dtype}. Cast it before adding noise."
            )
    # One draw for the whole tree: a draw for each leaf would compile the generator once for each.
    words = jax.random.bits(key, (5, -(-_tree.size(tree) // 4)), jnp.uint32)
    # Rows one after the other, which takes a quarter less time than a reshape to one row: there the
    # compiler finds the row of each value by division.
    values = jnp.concatenate(list(normals_from_words(words) * jnp.asarray(std, jnp.float32)))
    noise, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape)
        dtype = jnp.promote_types(leaf.dtype, jnp.float32)
        noise.append(values[start:stop].reshape(leaf.shape).astype(dtype))
        start = stop
    return jax.tree.unflatten(treedef, noise)


def rounded_to_grid(tree: Tree, *, std: float | Array) -> Tree:
    """Rounds a noisy sum to the nearest multiples of a power of two from std/32 to std/16.

    Guarantee:
      The result depends on ``tree`` only through the multiples, and the grid only on ``std``. It
      is computed from the noisy sum alone, so it costs no privacy; it is unbiased up to the noise's
      own precision, and adds at most std**2 / 3072 (0.033 %) to the variance.

    What this buys: without it the last bits of a sum tell it from a neighbouring one whatever the
    noise. A single-precision noise value plus a number is a multiple of that number's last bit, and
    in double precision the bits below the noise's are those of the sum itself. On the grid both
    are gone: a cell holds about 2**18 values of the noise or more, so that its probability is the
    Gaussian's to about 2**-18 of itself.

    What remains is an estimate and not a proof. These deviations differ from cell to cell; if they
    are as good as independent, d values tell of them as much as a divergence of d * 2**-36. A
    proof would take noise that is discrete to begin with. A float sum can also move by its own
    rounding errors when a record changes, about 1e-7 of the sum's size.

    Args:
      tree: a sum with noise of this standard deviation, in float32 or wider.
      std: may be traced. Zero leaves the values as they are.

    Example:
      >>> print(rounded_to_grid(jnp.array([0.1, 1.0, -2.55]), std=1.0))
      [ 0.125   1.     -2.5625]

    Reference:
      Mironov, *On significance of the least significant bits for differential privacy*, 2012;
      there the rounding is to a multiple that is coarser than the noise.
    """
    # The bits of the exponent alone are the largest power of two that is no larger; logarithms
    # and powers in floating point need not be exact.
    bits = jax.lax.bitcast_convert_type(jnp.asarray(std, jnp.float32), jnp.uint32)
    power = jax.lax.bitcast_convert_type(bits & jnp.uint32(0x7F800000), jnp.float32)
    spacing = power / 16

    def rounded(value: Array) -> Array:
        own = spacing.astype(value.dtype)
        return jnp.where(own > 0, jnp.round(value / jnp.where(own > 0, own, 1)) * own, value)

    return jax.tree.map(rounded, tree)


def normals_from_words(words: Array) -> Array:
    """Maps uint32[5, n] uniform words to float32[4, n] independent standard normals.

    The Box-Muller transform of two pairs. Each has a word for the radius, and a word of which
    24 bits are the direction; the radius takes the other 8 bits, and 16 of the fifth word,
    so that its tail reaches as far as 56 bits allow.

    Example:
      >>> normals_from_words(jnp.zeros((5, 1), jnp.uint32))[0, 0] == np.float32(MAX_MAGNITUDE)
      Array(True, dtype=bool)

    Reference:
      Box and Muller, *A note on the generation of random normal deviates*, 1958.
    """
    high, angle, shared = words[0:2], words[2:4], words[4]
    low = ((angle & 0xFF) << 16) | jnp.stack([shared >> 16, shared & 0xFFFF])
    cosine, sine = _direction(angle >> 8)
    return (_radius(high, low) * jnp.stack([cosine, sine])).reshape(4, -1)


def _radius(high: Array, low: Array) -> Array:
    """sqrt(-2 ln u) for u = (high 2^24 + low + 1/2) / 2^56.

    Near u = 1 the logarithm needs 1 - u, which single precision would round away; it is the
    same expression of the complemented bits. So both ends keep their relative precision.
    """
    near_one = high >> 31 == 1
    high = jnp.where(near_one, ~high, high)
    low = jnp.where(near_one, 0xFFFFFF - low, low)
    # Both integers are below 2**31, where conversion from a signed integer is faster and equal.
    high, low = (word.astype(jnp.int32).astype(jnp.float32) for word in (high, low))
    nearest = high * np.float32(2.0**-32) + (low + 0.5) * np.float32(2.0**-_RADIUS_BITS)
    # -ln(1 - v) = 2 artanh(v / (2 - v)), whose argument is at most 1/3 here: seven terms of the
    # series do, and take an eighth of the time of jnp.log1p.
    ratio = nearest / (2 - nearest)
    series = ratio * _polynomial(ratio * ratio, [2 / n for n in (1, 3, 5, 7, 9, 11, 13)])
    return jnp.sqrt(2 * jnp.where(near_one, series, -jnp.log(nearest)))


def _direction(angle: Array) -> tuple[Array, Array]:
    """Cosine and sine of 24 bits: two signs, a swap, and 21 bits of an angle below pi/4.

    On an eighth of a turn both functions have short Taylor series that are exact to single
    precision, relatively, down to the smallest sine.
    """
    eighth = (angle >> 3).astype(jnp.int32).astype(jnp.float32)
    x = (eighth + 0.5) * np.float32(math.pi / 4 * 2.0**-21)
    square = x * x
    sine = x * _polynomial(square, [1, -1 / 6, 1 / 120, -1 / 5040, 1 / 362880])
    cosine = _polynomial(square, [1, -1 / 2, 1 / 24, -1 / 720, 1 / 40320])
    swap = angle & 4 != 0
    first, second = jnp.where(swap, sine, cosine), jnp.where(swap, cosine, sine)
    return jnp.where(angle & 2 != 0, -first, first), jnp.where(angle & 1 != 0, -second, second)


def _polynomial(x: Array, coefficients: list[float]) -> Array:
    """Horner's rule; the constant coefficient comes first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + np.float32(coefficient)
    return value


def tail_delta(num_values: int, num_releases: int, noise_multiplier: float) -> float:
    """Bounds how much the cut tail adds to delta.

    Guarantee:
      If the same releases with unbounded Gaussian noise are (epsilon, delta)-DP, with the noise
      cut at ``MAX_MAGNITUDE`` they are (epsilon, delta + ``tail_delta``)-DP, whatever epsilon
      and the sampling of records. (The granularity of the noise is not part of this.)

    Derivation. Write R for the edge, so that a pair's norm passes it with probability
    exp(-R^2 / 2) = 2^-57, and m for the number of pairs. Let the ideal noise be moved to the edge
    where it passes R. A release is *bad* if some pair was moved, or if the output lies outside
    the disc of radius R around what a neighbouring data set would centre it at. On outputs that
    are not bad both densities are the Gaussian ones, so delta grows by at most the probability
    of a bad release. The first happens with probability at most m 2^-57. For the second, let
    a neighbour move pair i by w_i standard deviations, where |w| <= D = 1 / noise_multiplier; the
    pair must lie in the outermost ring of width w_i, whose probability is at most

        exp(-(R - w_i)^2 / 2) - exp(-R^2 / 2) <= 2^-57 (exp(R w_i) - 1).

    Because (exp(x) - 1 - x) / x^2 grows with x, exp(R w) - 1 <= R w + (w / D)^2 c with
    c = exp(R D) - 1 - R D. Summed over the pairs, with sum w_i <= D sqrt(m) by Cauchy-Schwarz,
    this is at most R D sqrt(m) + c. A union bound over the releases ends it.

    Args:
      num_values: how many numbers one release has.
      num_releases: how many releases there are.
      noise_multiplier: the standard deviation of the noise over the sensitivity.

    Example:
      >>> print(f"{tail_delta(2_400_000, 3515, 1.3):.1e}")
      2.9e-08
    """
    _check.positive_integer(num_values=num_values, num_releases=num_releases)
    _check.positive(noise_multiplier=noise_multiplier, infinite=True)
    num_pairs = math.ceil(num_values / 2)
    shift = MAX_MAGNITUDE / noise_multiplier
    if shift > MAX_MAGNITUDE**2 / 2:  # exp(shift) 2^-57 passes one: nothing is left to promise
        return 1.0
    pairs = num_pairs + shift * math.sqrt(num_pairs) + math.expm1(shift) - shift
    return min(1.0, num_releases * pairs * 2.0 ** -(_RADIUS_BITS + 1))
