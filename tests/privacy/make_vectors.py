"""Words and the integers they stand for, by mpmath; run as a program, it writes them to a file.

Another implementation of the rounded Gaussian can check itself with that file,
``rounded_gaussian_vectors.json``. Each case has a ratio (a double in hexadecimal), the four words
of a column, its sixteen further words, and the two integers. `tacit.privacy.noise` says what the
bits mean.
"""

import json
import random
from pathlib import Path

import mpmath

PATH = Path(__file__).with_name("rounded_gaussian_vectors.json")
RATIOS = (0.3, 10.0, 4.1e6, 2.0**40)
ONES = 2**32 - 1


def number(words):
    """The words as one integer, the first the highest."""
    return int.from_bytes(b"".join(int(word).to_bytes(4, "big") for word in words), "big")


def split(integer, num_words):
    data = integer.to_bytes(4 * num_words, "big")
    return [int.from_bytes(data[i : i + 4], "big") for i in range(0, len(data), 4)]


def exact_values(words, further, ratio, *, precision=900):
    """The two values before rounding, straight from the definition."""
    with mpmath.workprec(precision):
        u = mpmath.mpf(2 * number([*words[:2], *further[:8]]) + 1) / 2**321
        angle = number([*words[2:], *further[8:]])
        theta = mpmath.pi / 4 * (2 * (angle % 2**317) + 1) / 2**318
        radius = ratio * mpmath.sqrt(-2 * mpmath.log(u))
        x, y = mpmath.cos(theta), mpmath.sin(theta)
        if angle >> 317 & 1:
            x, y = y, x
        signs = [-1 if angle >> bit & 1 else 1 for bit in (319, 318)]
        return signs[0] * radius * x, signs[1] * radius * y


def exact_integers(words, further, ratio):
    with mpmath.workprec(900):
        return [int(mpmath.nint(value)) for value in exact_values(words, further, ratio)]


def at_boundary(generator, ratio, integer, *, num_bits, above):
    """Words of a u whose first value lies above or below ``integer + 1/2``.

    Its first ``num_bits`` bits do not say which, because u could lie on either.
    """
    angle = generator.getrandbits(317)  # in the first octant, where the first value is the larger
    with mpmath.workprec(900):
        cosine = mpmath.cos(mpmath.pi / 4 * (2 * angle + 1) / 2**318)
        u = mpmath.exp(-(((integer + 0.5) / (ratio * cosine)) ** 2) / 2)
        cell = int(mpmath.floor(u * 2**num_bits))
    rest = 320 - num_bits  # zeros make u smaller, and the value larger
    radius = split((cell << rest) | (0 if above else (1 << rest) - 1), 10)
    angles = split(angle, 10)
    return [*radius[:2], *angles[:2]], [*radius[2:], *angles[2:]]


def cases():
    """Names, ratios and words: ordinary ones, extreme ones, and such as need refinement."""
    generator = random.Random(0)

    def words(num):
        return [generator.getrandbits(32) for _ in range(num)]

    for ratio in RATIOS:
        for _ in range(2):
            yield "ordinary", ratio, words(4), words(16)
        for integer in (0, max(1, int(2.3 * ratio))):
            for num_bits in (64, 250):
                for above in (False, True):
                    own, further = at_boundary(
                        generator, ratio, integer, num_bits=num_bits, above=above
                    )
                    yield f"{num_bits} bits from a boundary", ratio, own, further
    for ratio in (1.0, 4.1e6):
        for num_zeros in (0, 3, 8):
            further = [0] * num_zeros + words(16 - num_zeros)
            yield "u below 2^-64", ratio, [0, 0, *words(2)], further
        yield "u above 1 - 2^-64", ratio, [ONES, ONES, *words(2)], words(16)
        yield "the least u", ratio, [0] * 4, [0] * 16
        yield "the greatest u", ratio, [ONES] * 4, [ONES] * 16
        yield "u = 1/2", ratio, [1 << 31, 0, *words(2)], [0] * 16
    for octant in range(8):
        yield "an angle near zero", 4.1e6, [*words(2), octant << 29, 0], [0] * 16
        edge = (octant << 29) | (1 << 29) - 1
        yield "an angle near pi/4", 4.1e6, [*words(2), edge, ONES], [ONES] * 16


def vectors():
    return [
        {
            "case": name,
            "ratio": float(ratio).hex(),
            "words": [f"{word:08x}" for word in words],
            "further_words": [f"{word:08x}" for word in further],
            "integers": exact_integers(words, further, ratio),
        }
        for name, ratio, words, further in cases()
    ]


if __name__ == "__main__":
    PATH.write_text("[\n" + ",\n".join(json.dumps(vector) for vector in vectors()) + "\n]\n")
