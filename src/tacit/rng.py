"""Randomness that an adversary cannot predict: secret keys, and what is drawn from them.

Differential privacy promises something about the *distribution* of the noise. It holds against
an adversary who sees every released number only if that adversary cannot tell the generator
from true randomness and so cannot subtract the noise.

Why neither JAX's generator nor a library:
  Under a secret uniform 256-bit key, ChaCha20 (`tacit.chacha20`) is believed to be a pseudorandom
  function: nobody with feasible resources can tell its blocks from independent uniform ones. A
  guarantee then holds computationally, against every feasible adversary. JAX's default,
  threefry2x32, is a statistical generator: its keys have 64 bits, and nobody claims that it resists
  an attack. The one library that has ChaCha20 for JAX, jax-chacha-prng, pins NumPy below 2 and does
  not import under the JAX that we need.

What a secure generator does not give:
  * A key made from an integer (``seeded_key``, ``jax.random.key``) has the entropy of that
    integer and is INSECURE: whoever guesses the seed recomputes the noise. Keys for private
    work come from ``fresh_key``, are never stored, and are never used twice.
  * Normals in floating point (``normal_like``, ``jax.random.normal``) are not the real-valued
    noise of the theorem: only finitely many values occur, and the lowest bits of a number plus
    such noise tell of the number (Mironov, *On significance of the least significant bits for
    differential privacy*, 2012). They serve samplers, not privacy. The engine's noise is an
    exactly sampled rounded Gaussian on integers, ``tacit.privacy.noise``.
  * Keys live in ordinary process memory, and nothing here defends against side channels.
"""

import hashlib
import math
import secrets
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import _check, _tree
from tacit.chacha20 import CHACHA20, HASH, KEY_WORDS, chacha20_block
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Key, Tree

__all__ = ["fresh_key", "keyed_hash", "normal_like", "seeded_key"]

# Words of a message that `keyed_hash` turns into one, and how many times it does so, each time with
# other keys.
_MESSAGE_WORDS, _NUM_HASHES = 64, 8


def fresh_key() -> Key:
    """Returns a new secret key: 256 bits from the operating system's generator.

    Guarantee:
      Noise drawn from it is pseudorandom to everyone who has not read this process's memory.
      Draw one for every run, do not store it, and let a resumed run draw another.

    Example:
      >>> jax.random.normal(fresh_key(), (3,)).shape
      (3,)
    """
    return _key_from_bytes(secrets.token_bytes(4 * KEY_WORDS))


def seeded_key(seed: int) -> Key:
    """Returns the key that ``seed`` names: reproducible, and therefore INSECURE.

    For tests and examples. Anyone who knows or guesses the seed can recompute all noise and
    subtract it, so nothing made with this key is private.

    Args:
      seed: a whole number from 0 to 2**256 - 1; different seeds give different keys.

    Example:
      >>> jax.random.bits(seeded_key(0), (2,))
      Array([2097569030, 3703499764], dtype=uint32)
    """
    return _key_from_bytes(_seed_bytes(seed))


def _seed_bytes(seed: object) -> bytes:
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= int(seed) < 2**256:
        raise InvalidArgumentError(
            f"seed must be a whole number from 0 to 2**256 - 1; got {seed!r}. "
            "Use fresh_key() for a secret key."
        )
    return int(seed).to_bytes(4 * KEY_WORDS, "little")


def _key_from_bytes(entropy: bytes) -> Key:
    words = np.frombuffer(entropy, dtype="<u4").astype(np.uint32)
    key: Key = jax.random.wrap_key_data(jnp.asarray(words), impl=CHACHA20)
    return key


def keyed_hash(key: Key, tree: Tree) -> Key:
    """Returns a key that follows from a secret key and every bit of a tree of arrays.

    Guarantee:
      Whoever does not know ``key`` cannot tell the keys of different trees from independent uniform
      ones. Trees differ if one bit of one leaf does (zeros of both signs and all NaNs are
      different), or a shape, a dtype or the structure.

      The argument is Carter and Wegman's: a pseudorandom function of an almost universal hash is a
      pseudorandom function of the message, up to the chance that two messages have one hash. The
      hash is a tree of NH with 16-bit words. For two blocks of equal length, not equal, and a
      random key k, ``NH(m) = sum_i (m_2i + k_2i mod 2^16) (m_2i+1 + k_2i+1 mod 2^16) mod 2^32``
      agrees with probability at most 2^-16 (Black et al. 1999, theorem 1). A level turns each block
      of 64 words into one, with its own keys, until one word is left; with L levels, messages
      of equal length agree at the end with probability at most L 2^-16. Eight hashes with
      independent keys all agree with probability at most (L 2^-16)^8: less than 2^-105 for
      messages up to 2^42 words. The eight words, and SHA-256 of what a program knows of the tree
      without its values (so that lengths are equal wherever hashes are compared), then enter
      ChaCha20 three at a time, each block the key of the next: for inputs of one length that is
      the construction of Goldreich, Goldwasser and Micali, and pseudorandom.

    Args:
      key: a secret key of this generator; not to be used for anything else.
      tree: arrays of numbers, truth values or keys; may be traced.

    Example:
      >>> zero, other = (keyed_hash(seeded_key(0), jnp.float32(x)) for x in (0.0, -0.0))
      >>> bool(jnp.all(jax.random.key_data(zero) == jax.random.key_data(other)))
      False

    Reference:
      Black, Halevi, Krawczyk, Krovetz, Rogaway, "UMAC: fast and secure message authentication"
      (1999); Carter and Wegman, "Universal classes of hash functions" (1979).
    """
    leaves, structure = jax.tree.flatten(tree)
    arrays = [jnp.asarray(leaf) for leaf in leaves]
    public = str((structure, [(array.shape, str(array.dtype)) for array in arrays]))
    digest = np.frombuffer(hashlib.sha256(public.encode()).digest(), "<u4").astype(np.uint32)
    level_key, last_key = jax.random.split(key)
    message = jnp.concatenate([jnp.zeros(1, jnp.uint32), *map(_words_of, arrays)])
    hashed = jnp.concatenate([_universal(level_key, message), digest])

    def absorb(state: Array, three: Array) -> tuple[Array, None]:
        block = chacha20_block(state, three[0], jnp.append(three[1:], HASH))
        return block[:KEY_WORDS], None

    threes = jnp.pad(hashed, (0, -len(hashed) % 3)).reshape(-1, 3)
    state, _ = lax.scan(absorb, jax.random.key_data(last_key), threes)
    return jax.random.wrap_key_data(state, impl=CHACHA20)


def _universal(key: Key, message: Array) -> Array:
    """Returns uint32[8]: the tree of NH under eight keys, level by level."""
    lengths = [len(message)]
    while lengths[-1] > 1 or len(lengths) == 1:
        lengths.append(-(-lengths[-1] // _MESSAGE_WORDS))
    shape = (len(lengths) - 1, _MESSAGE_WORDS, _NUM_HASHES, 1)
    words = message[None]
    for own in jax.random.bits(key, shape, jnp.uint32):
        words = _nh(jnp.pad(words, ((0, 0), (0, -words.shape[1] % _MESSAGE_WORDS))), own)
    return words[:, 0]


def _nh(words: Array, keys: Array) -> Array:
    """Returns NH of each block of uint32[hashes, words]; block j has every n-th word from the j-th.

    So a loop over the words of all blocks at once reads memory in order, which is ten times faster
    for a table than a sum over blocks that lie one after the other.
    """
    blocks = words.reshape(len(words), _MESSAGE_WORDS, -1)

    def add(i: Array, total: Array) -> Array:
        word, key = blocks[:, i], keys[i]
        # The halves of a word are the factors. Added as one, the low would carry into the high.
        low, high = (word + key) & 0xFFFF, ((word >> 16) + (key >> 16)) & 0xFFFF
        return total + low * high

    nothing = jnp.zeros((_NUM_HASHES, blocks.shape[2]), jnp.uint32)
    total: Array = lax.fori_loop(0, _MESSAGE_WORDS, add, nothing)
    return total


def _words_of(array: Array) -> Array:
    """Returns the bits of an array as uint32 words, the last ones filled up with zeros."""
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag])
    if array.dtype == bool:
        array = array.astype(jnp.uint8)
    bits = lax.bitcast_convert_type(array, jnp.dtype(f"uint{min(32, 8 * array.dtype.itemsize)}"))
    flat, per_word = bits.reshape(-1), 4 // bits.dtype.itemsize
    if per_word == 1:
        return flat
    padded = jnp.pad(flat, (0, -len(flat) % per_word)).reshape(-1, per_word)
    return lax.bitcast_convert_type(padded, jnp.uint32)


def normal_like(key: Key, tree: Tree, *, std: float | Array = 1.0) -> Tree:
    """Returns independent normal numbers with the shapes of ``tree``, for everything but privacy.

    They come in pairs, a radius and a direction (Box and Muller, 1958). The radius is the quantile
    of one of 2**56 equally likely probabilities, which reaches 8.89 standard deviations; the
    direction is one of 2**24 equally likely angles. Relative errors are below 1e-6.

    Args:
      key: used up by this call.
      tree: arrays, or anything with a shape and a floating dtype, such as
        ``jax.ShapeDtypeStruct``. Only shapes and dtypes are read.
      std: the standard deviation, zero or more; may be traced. Zero gives exact zeros.

    Returns:
      A tree of the same structure and shapes, in float32 or wider: the noise of bfloat16
      parameters keeps its precision.

    Example:
      >>> normal_like(seeded_key(0), {"w": jnp.zeros((2, 3))}, std=2.0)["w"].shape
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
    values = jnp.concatenate(list(_normals(words) * jnp.asarray(std, jnp.float32)))
    normals, start = [], 0
    for leaf in leaves:
        stop = start + math.prod(leaf.shape)
        dtype = jnp.promote_types(leaf.dtype, jnp.float32)
        normals.append(values[start:stop].reshape(leaf.shape).astype(dtype))
        start = stop
    return jax.tree.unflatten(treedef, normals)


def _normals(words: Array) -> Array:
    """Maps uint32[5, n] uniform words to float32[4, n] independent standard normals.

    Two pairs have a word each for the radius, and a word of which 24 bits are the direction; the
    radius takes the other 8 bits, and 16 of the fifth word.
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
    nearest = high * np.float32(2.0**-32) + (low + 0.5) * np.float32(2.0**-56)
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
