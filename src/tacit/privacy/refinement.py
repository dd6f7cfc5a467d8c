"""The integers of rounded normals: double precision where its error bound decides, else 350 bits.

`in_double_precision` computes all columns of a draw at once, with a proven bound on the error of
each value, and leaves undecided those that lie too near to a half. `refined` decides them, one
after the other.

Its calculation is a list of lines of one form, a + b c or a - b c, which a loop works off. So the
multiplication is compiled once. XLA also compiles the whole loop as one kernel, because its body
touches less than a kilobyte. Products written one after the other would take most of a second to
compile in every program with noise. A number is positive or zero and has 18 digits to base 2^28,
four of them before the point. Line i writes number i after the constants and the inputs.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit.typing import Array

__all__ = [
    "FURTHER_WORDS",
    "LARGEST_RATIO",
    "RELATIVE_ERROR",
    "in_double_precision",
    "refined",
]

RELATIVE_ERROR = 2.0**-46
"""The bound on the relative error of a value in double precision; see `_values_and_errors`."""

FURTHER_WORDS = 8
"""How many words each uniform has after its first two."""

LARGEST_RATIO = 2.0**40
"""The largest standard deviation, in integers, for which the digits and the guess suffice."""

_BITS = 28
_WHOLE, _FRACTION = 4, 14
_DIGITS = _WHOLE + _FRACTION
_LARGEST_DIGIT = (1 << _BITS) - 1
_UNIT = 1 << _BITS * _FRACTION  # one, in units of the last digit
_LOG_TERMS, _COSINE_TERMS = 360, 44


def in_double_precision(words: Array, ratio: Array) -> tuple[Array, Array, Array]:
    """Returns the high and low words of the integers, and which columns are undecided.

    Guarantee:
      Columns that are decided have the integers that are defined. A column in the lowest cell of u,
      whose radius has no bound, never is.
    """
    with jax.enable_x64(True):
        decided, rows = (words[0] | words[1]) != 0, []
        for value, error in _values_and_errors(words, ratio):
            nearest = lax.round(value, lax.RoundingMethod.TO_NEAREST_EVEN)
            decided &= 0.5 - jnp.abs(value - nearest) > error
            rows.append(_split_words(nearest.astype(jnp.int64)))
        (high_x, low_x), (high_y, low_y) = rows
        return jnp.stack([high_x, high_y]), jnp.stack([low_x, low_y]), ~decided


def _values_and_errors(words: Array, ratio: Array) -> list[tuple[Array, Array]]:
    """Returns the two values of each column before rounding, and bounds on their errors.

    Guarantee:
      The values that are defined, whatever the further words, are within the errors of the
      ones returned, unless u is in the lowest cell. So are distances to the next half.

    Derivation. Write w = 2^-53 for the unit roundoff. The first 64 bits of u name a cell whose
    middle is u' = (U + 1/2) 2^-64. Write p for u', or for 1 - u' where the first bit is 1: then p
    comes from the complemented bits and has a relative error of 2 w, however near u is to one.

    * -ln u' = -e ln 2 - ln f, where f 2^e = u' and f lies between 0.7 and 1.42, and
      ln f = 2 atanh(s), s = (f - 1) / (f + 1). There f - 1 is exact, or -p where e = 0. So s has a
      relative error of at most 5 w, beside an absolute one of 2 w where e < 0. Ten terms of the
      series leave out 2^-55 of it, and Horner's rule adds 4 w because its terms fall
      by a factor of 34. Where e < 0 the sum is at least 0.34 and at least half of -e ln 2, whose
      error is 2 w of itself. So -ln u' has a relative error of at most 24 w and its root 13 w.
    * theta has a relative error of 5 w. Nine terms of sine and cosine leave out 2^-58. With
      Horner's rule (terms fall by a factor of 3 at least) the relative errors are below 10 w.
    * The products with the ratio and the root add 3 w. In all this is less than 32 w = 2^-48 of
      the value; the bound is 2^-46.
    * The cells: within one, unless it is the lowest, ln u is within (3/2) 2^-65 / u' of ln u', so
      the root of -2 ln u moves by at most (3/2) 2^-64 / (u' R) with R the root in the middle. An
      angle moves by at most 2^-62, and so do its sine and cosine. The bound is 2^-63 / (u' R) +
      2^-61 R, times the ratio. A column in the lowest cell is always undecided.
    * The distance from the value to the next half is computed to within 2^-53; the bound is 2^-50.

    Where a compiler contracts a product and a sum, one rounding less happens.
    """
    with jax.enable_x64(True):
        factor = lax.bitcast_convert_type(ratio, jnp.float64)
        w0, w1, w2, w3 = words
        near_one = w0 >> 31 == 1
        flip = jnp.where(near_one, np.uint32(0xFFFFFFFF), np.uint32(0))
        p = _binary_fraction(w0 ^ flip, w1 ^ flip, num_bits=64)
        u = jnp.where(near_one, 1 - p, p)
        # The exponent that leaves a fraction from 0.707 to 1.414, and that fraction.
        bits = lax.bitcast_convert_type(u, jnp.int64)
        e = (bits - np.int64(0x3FE6A09E00000000)) >> 52
        f = lax.bitcast_convert_type(bits - (e << 52), jnp.float64)
        s = jnp.where(e == 0, -p, f - 1) / (f + 1)
        series = s * _polynomial(s * s, [4 / (2 * n + 1) for n in range(10)])
        radius = jnp.sqrt(e.astype(jnp.int32).astype(jnp.float64) * -math.log(4) - series)

        theta = _binary_fraction(w2 & 0x1FFFFFFF, w3, num_bits=61) * (math.pi / 4)
        square, factorial = theta * theta, math.factorial
        sine = theta * _polynomial(square, [(-1) ** n / factorial(2 * n + 1) for n in range(9)])
        cosine = _polynomial(square, [(-1) ** n / factorial(2 * n) for n in range(9)])
        exchanged = (w2 >> 29) & 1 == 1
        x = jnp.where(exchanged, sine, cosine) * jnp.where(w2 >> 31 == 1, -1.0, 1.0)
        y = jnp.where(exchanged, cosine, sine) * jnp.where((w2 >> 30) & 1 == 1, -1.0, 1.0)

        spread = factor * (2.0**-63 / (u * radius) + 2.0**-61 * radius) + 2.0**-50
        values = (factor * radius * x, factor * radius * y)
        return [(value, RELATIVE_ERROR * jnp.abs(value) + spread) for value in values]


def _binary_fraction(high: Array, low: Array, *, num_bits: int) -> Array:
    """Returns the middle of the cell that two words name behind the binary point."""
    # The first word is below 2**31, where conversion from a signed integer is faster and equal.
    upper = high.astype(jnp.int32).astype(jnp.float64) * 2.0 ** (32 - num_bits)
    return upper + (low.astype(jnp.float64) + 0.5) * 2.0**-num_bits


def _polynomial(x: Array, coefficients: list[float]) -> Array:
    """Horner's rule; the constant coefficient comes first."""
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = value * x + coefficient
    return value


def refined(words: Array, further: Array, ratio: Array) -> tuple[Array, Array]:
    """Returns the two integers of one column, as `tacit.privacy.noise` defines them.

    Guarantee:
      For uniform words and any admissible ratio the integers are the defined ones except in an
      event of probability below 2^-250.

    Derivation. With m the whole part of |x|, the integer is m or m + 1 as x^2 is below
    (m + 1/2)^2 or not. (A double has the root of x^2 to within 2^-48 of itself and so to 1/8; where
    that gives the wrong m, the comparison still gives the right integer.)

    For the squares, write d = 2^-359. A line leaves out the columns behind the last digit, each of
    at most 18 products of digits: that is less than 2^33 units of the last digit, 2^-392. So its
    result is less than d too large or too small. Constants are less than a unit too small. Inputs
    are exact, but for what the ratio has below the last digit.

    * The logarithm's lines pass on at most half of an error, so the series is right to 3 d. It
      leaves out less than d. With at most 320 times ln 2 the logarithm is right to 6 d, and it is
      at most 223.
    * theta is right to 2 d and its square, at most 0.62, to 5 d. The cosine's lines pass on at most
      0.62 of an error and add 5 d times a number of at most 2, and d: less than 30 d in all.
      They leave out 2.5^44 / 88!. So both weights, which are at most 2, are right to 32 d.
    * The square of the ratio, at most 2^80, is right to 2 d. So half the square of the radius is
      right to 2^83 d and is below 2^88, and the squares are right to 2^94 d, less than 2^-260.

    Because m + 1/2 is at least 1/2, only values within 2^-260 of it can be misjudged. Normals of
    any standard deviation lie there with probability below 2^-250.

    Args:
      words: uint32[4], the column's words.
      further: uint32[2, FURTHER_WORDS], the continuations of its two uniforms.
      ratio: uint32[2], the low and high word of a double, positive and at most ``LARGEST_RATIO``.

    Returns:
      int32[2] and uint32[2], the high and low words of two 64-bit integers.
    """
    with jax.enable_x64(True):
        numbers = jnp.concatenate([jnp.asarray(_CONSTANTS), _inputs(words, further, ratio)])
        numbers = jnp.pad(numbers, ((0, len(_LINES)), (_FRACTION, _WHOLE - 1)))
        numbers = lax.fori_loop(np.int32(0), np.int32(2), _stage, numbers)
        high, low = numbers[_BOUNDARY : _BOUNDARY + 2, _DIGITS - 2 : _DIGITS].T
        # A difference below zero is written modulo a power of two.
        above = numbers[-2:, _FRACTION] <= _LARGEST_DIGIT // 2
        magnitude = (high.astype(jnp.int64) << _BITS) + low + above
        negative, exchanged = (words[2] >> np.array([[31, 30], [29, 29]], np.uint32)) & 1 == 1
        magnitude = jnp.where(exchanged, magnitude[::-1], magnitude)
        return _split_words(jnp.where(negative, -magnitude, magnitude))


def _split_words(integers: Array) -> tuple[Array, Array]:
    """Returns the int32 high and uint32 low words of int64 numbers, in a 64-bit context."""
    return (integers >> 32).astype(jnp.int32), integers.astype(jnp.uint32)


def _inputs(words: Array, further: Array, ratio: Array) -> Array:
    """Returns the mantissa of u, the angle's fraction, the ratio, u's exponent and two zeros."""
    # Behind the words comes the middle of the cell that they name; the octant is taken off.
    uniforms = jnp.concatenate([words.reshape(2, 2), further], axis=1)
    uniforms = jnp.pad(uniforms, ((0, 0), (0, 1)), constant_values=1 << 31)
    masks = np.full(uniforms.shape, 2**32 - 1, np.uint32)
    masks[1, 0] = 2**29 - 1
    uniforms &= masks
    # u = mantissa / 2^exponent, with a mantissa from 1/2 to 1.
    first = lax.argmax(uniforms[0] != 0, 0, jnp.int32)
    exponent = 32 * first + lax.clz(uniforms[0, first]).astype(jnp.int32)
    # The last bit of the significand stands for 2^(power - 1075).
    power = (ratio[1] >> 20).astype(jnp.int32)
    significand = jnp.stack([ratio[1] & 0xFFFFF | 0x100000, ratio[0]])
    room = jnp.pad(significand, (0, uniforms.shape[1] - 2))
    bits = jnp.pad(jnp.concatenate([uniforms, room[None]]), ((0, 0), (1, 1))).astype(jnp.uint64)
    # How many bits stand before the point. Beyond the first and the last there are zeros.
    points = jnp.stack([exponent, jnp.int32(3), power - 1075 + 64])
    place = points[:, None] + _BITS * np.arange(-_WHOLE, _FRACTION, dtype=np.int32)
    high, low = (
        jnp.take_along_axis(bits, jnp.clip((place >> 5) + i, 0, bits.shape[1] - 1), axis=1)
        for i in (1, 2)
    )
    shift = (64 - _BITS - (place & 31)).astype(jnp.uint64)
    digits = (((high << 32) | low) >> shift).astype(jnp.int32) & _LARGEST_DIGIT
    whole = jnp.where(np.arange(_DIGITS) == _WHOLE - 1, exponent, 0)
    return jnp.concatenate([digits, whole[None], jnp.zeros((2, _DIGITS), jnp.int32)])


def _stage(i: Array, numbers: Array) -> Array:
    """Works off the lines up to the squares, or those after; then writes m + 1/2 for both."""
    starts = jnp.asarray(_DIGITS * np.array([0, len(_LINES) - 2, len(_LINES)], np.int32))
    first, last = (lax.dynamic_index_in_dim(starts, i + j, keepdims=False) for j in (0, 1))
    numbers, _ = lax.fori_loop(first, last, _column, (numbers, jnp.int64(0)))
    leading = numbers[-4:-2, _FRACTION : _DIGITS + 2].astype(jnp.float64)
    places = 2.0 ** (_BITS * np.arange(_WHOLE - 1, -3, -1))
    whole = jnp.sqrt(jnp.sum(leading * places, axis=1)).astype(jnp.int64)
    digits = ((whole[:, None] >> np.array([_BITS, 0])) & _LARGEST_DIGIT).astype(jnp.int32)
    digits = jnp.pad(digits, ((0, 0), (0, 1)), constant_values=1 << (_BITS - 1))
    place = np.int32(_BOUNDARY), np.int32(_DIGITS - 2)  # vmap fails on 64-bit indices
    return lax.dynamic_update_slice(numbers, digits, place)


def _column(n: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
    """Writes the next digit, from the last to the first of a line, and returns the column's sum.

    Numbers have zeros around them, so that all columns are sums of as many products.
    """
    numbers, total = state
    i, j = lax.div(n, np.int32(_DIGITS)), np.int32(_DIGITS - 1) - lax.rem(n, np.int32(_DIGITS))
    added, sign, left, right = lax.dynamic_index_in_dim(jnp.asarray(_LINES), i, keepdims=False)
    carry = jnp.where(j == _DIGITS - 1, 0, total >> _BITS)
    place = j + np.int32(_FRACTION)
    carry = carry + lax.dynamic_slice(numbers, (added, place), (1, 1))
    factor = lax.dynamic_slice(numbers, (left, np.int32(_FRACTION)), (1, _DIGITS))
    other = lax.dynamic_slice(numbers, (right, j), (1, _DIGITS))[:, ::-1]
    products = (sign * factor).astype(jnp.int64) * other
    # The sum alone reads the numbers, and before they change, or XLA would copy all of them.
    total = jnp.sum(products + jnp.pad(carry, ((0, 0), (0, _DIGITS - 1))))
    digit = total.astype(jnp.int32) & _LARGEST_DIGIT
    return lax.dynamic_update_slice(numbers, digit[None, None], (i + _FIRST_LINE, place)), total


def _digits(number: int) -> np.ndarray:
    """Writes a whole number of units of the last digit."""
    return np.array([number >> _BITS * i & _LARGEST_DIGIT for i in reversed(range(_DIGITS))])


def _arc_tangent(inverse: int, *, hyperbolic: bool) -> int:
    """Returns atan or atanh of 1 / inverse, in units of 2^-64 of a unit."""
    power, total, n = (_UNIT << 64) // inverse, 0, 0
    while power:
        term = power // (2 * n + 1)
        total += term if hyperbolic or n % 2 == 0 else -term
        power //= inverse**2
        n += 1
    return total


_LOG_2 = 2 * _arc_tangent(3, hyperbolic=True) >> 64
_QUARTER_PI = (  # by Machin's formula
    4 * _arc_tangent(5, hyperbolic=False) - _arc_tangent(239, hyperbolic=False) >> 64
)
_CONSTANTS = np.array(
    [
        _digits(number)
        for number in (
            0,
            *(_UNIT // n for n in range(1, _LOG_TERMS + 1)),
            *(_UNIT * 4**n // math.factorial(2 * n) for n in range(1, _COSINE_TERMS)),
            2 * _UNIT,
            _LOG_2,
            _QUARTER_PI,
        )
    ],
    np.int32,
)
_BOUNDARY, _FIRST_LINE = len(_CONSTANTS) + 4, len(_CONSTANTS) + 6


def _lines() -> np.ndarray:
    """Returns rows (a, sign, b, c) of indices; the last two pairs are squares and comparisons."""
    lines: list[tuple[int, int, int, int]] = []

    def line(a: int, sign: int, b: int, c: int) -> int:
        lines.append((a, sign, b, c))
        return _FIRST_LINE + len(lines) - 1

    zero, one = 0, 1
    two, log_2, quarter_pi, mantissa, fraction, ratio, exponent, *boundaries = range(
        len(_CONSTANTS) - 3, _FIRST_LINE
    )
    # -ln(1 - x) = x + x^2 / 2 + x^3 / 3 + ... for x up to 1/2, by Horner's rule.
    x = line(one, -1, mantissa, one)
    series = zero
    for n in range(_LOG_TERMS, 0, -1):
        series = line(n, 1, x, series)
    logarithm = line(line(zero, 1, x, series), 1, exponent, log_2)
    half_square = line(zero, 1, line(zero, 1, ratio, ratio), logarithm)  # of ratio sqrt(-2 ln u)
    # 1 - cos(2 theta) = 4 theta^2 / 2! - 4^2 theta^4 / 4! + ..., of which no part is negative.
    theta = line(zero, 1, fraction, quarter_pi)
    theta_square = line(zero, 1, theta, theta)
    series = zero
    for n in range(_COSINE_TERMS - 1, 0, -1):
        series = line(_LOG_TERMS + n, -1, theta_square, series)
    twice_sine_square = line(zero, 1, theta_square, series)
    twice_cosine_square = line(two, -1, one, twice_sine_square)
    squares = [line(zero, 1, half_square, w) for w in (twice_cosine_square, twice_sine_square)]
    for square, boundary in zip(squares, boundaries, strict=True):
        line(square, -1, boundary, boundary)
    return np.array(lines, np.int32)


_LINES = _lines()
