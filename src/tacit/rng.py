"""Randomness that an adversary cannot predict: ChaCha20 as a JAX generator.

Differential privacy promises something about the *distribution* of the noise. It holds against
an adversary who sees every released number only if that adversary cannot tell the generator
from true randomness and so cannot subtract the noise.

What ChaCha20 buys:
  Under a secret uniform 256-bit key, ChaCha20 is believed to be a pseudorandom function: nobody
  with feasible resources can tell its blocks from independent uniform ones. A guarantee then
  holds computationally, against every feasible adversary. JAX's default, threefry2x32, is a
  statistical generator: its keys have 64 bits, and nobody claims that it resists an attack.

What it does not buy:
  * A key made from an integer (``seeded_key``, ``jax.random.key``) has the entropy of that
    integer and is INSECURE: whoever guesses the seed recomputes the noise. Keys for private
    work come from ``fresh_key``, are never stored, and are never used twice.
  * Normals in floating point (``normal_like``, ``jax.random.normal``) are not the real-valued
    noise of the theorem: only finitely many values occur, and the lowest bits of a number plus
    such noise tell of the number (Mironov, *On significance of the least significant bits for
    differential privacy*, 2012). They serve samplers, not privacy. The engine's noise is an
    exactly sampled rounded Gaussian on integers, ``tacit.privacy.noise``.
  * Keys live in ordinary process memory, and nothing here defends against side channels.

The construction: one block is ``F(key, counter, nonce)``. The nonce names the operation (bits,
split, fold_in), and within an operation the counter never repeats, so everything derived from
one key is made of outputs of a pseudorandom function at distinct inputs, which are jointly
indistinguishable from independent uniform blocks. Child keys are such blocks, so by induction
the same is true of the whole tree of keys.

The library that offers ChaCha20 to JAX, jax-chacha-prng, pins NumPy below 2 and does not import
with current JAX.
"""

import functools
import hashlib
import math
import secrets
from collections.abc import Hashable
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from tacit import _check, _tree, native
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Key, Tree

__all__ = [
    "CHACHA20",
    "chacha20_block",
    "fresh_key",
    "keyed_hash",
    "normal_like",
    "seeded_key",
    "words_between",
]

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")
_KEY_WORDS = 8
_BLOCK_WORDS = 16

# The last word of the nonce, one value for each operation that derives something from a key.
_BITS, _SPLIT, _FOLD_IN, _HASH = np.uint32(1), np.uint32(2), np.uint32(3), np.uint32(4)

# Words of a message that `keyed_hash` turns into one, and how many times it does so, each time with
# other keys.
_MESSAGE_WORDS, _NUM_HASHES = 64, 8

# Blocks computed side by side. The rounds of one group run in the first-level cache (8 KiB of
# state); below, the dispatch of kernels dominates, and above, memory traffic. Measured.
_GROUP = 128

# So few blocks are computed one by one: XLA compiles a loop over one block as a whole, which takes
# a microsecond, and dispatches a loop over three round by round, which takes ten. Measured.
_FEW = 3


def _rotate_left(x: Array, bits: int) -> Array:
    return (x << bits) | (x >> (32 - bits))


def _quarter_rounds(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array, Array, Array]:
    """Mixes the columns of the 4x4 state, given as its four rows."""
    a = a + b
    d = _rotate_left(d ^ a, 16)
    c = c + d
    b = _rotate_left(b ^ c, 12)
    a = a + b
    d = _rotate_left(d ^ a, 8)
    c = c + d
    b = _rotate_left(b ^ c, 7)
    return a, b, c, d


def _round(_: int, state: Array) -> Array:
    """One of the twenty rounds, leaving in the columns what the next round must mix.

    ChaCha alternates rounds on columns and on diagonals: row k turns by k places before a
    diagonal round and back after it. Mirroring the columns as well, ``row[(k - i) % 4]``, makes
    both moves the same (applied twice it is the identity, and the order of columns does not
    matter to a round), so that one short loop body serves and compiles fast.
    """
    rows = _quarter_rounds(state[0], state[1], state[2], state[3])
    return jnp.stack(
        [jnp.stack([row[(k - i) % 4] for i in range(4)]) for k, row in enumerate(rows)]
    )


def _blocks(key: Array, position: Array) -> Array:
    """Returns uint32[16, n]: the blocks at uint32[4, n] positions (words 12 to 15 of the state)."""
    num_blocks = position.shape[1]
    head = jnp.concatenate([jnp.asarray(_CONSTANTS), key]).reshape(3, 4, 1)
    start = jnp.concatenate([jnp.broadcast_to(head, (3, 4, num_blocks)), position[None]])
    # Two rounds at a time take a fifth off a long stream; all twenty at once take XLA ten seconds
    # to compile. A short loop XLA compiles as a whole only if its body is short, too.
    mixed: Array = lax.fori_loop(0, 20, _round, start, unroll=2 if num_blocks > _FEW else 1)
    return (mixed + start).reshape(_BLOCK_WORDS, num_blocks)


@jax.jit
def chacha20_block(key: Array, counter: Array, nonce: Array) -> Array:
    """Returns one block of the ChaCha20 key stream.

    Args:
      key: uint32[8], little-endian words of the key.
      counter: uint32[], which block.
      nonce: uint32[3], little-endian words of the nonce.

    Returns:
      uint32[16], little-endian words of the block.

    Example:
      >>> zeros = jnp.zeros(8, jnp.uint32)
      >>> block = chacha20_block(zeros, jnp.uint32(0), zeros[:3])
      >>> np.asarray(block).astype("<u4").tobytes().hex()[:16]
      '76b8e0ada0f13d90'

    Reference:
      Nir and Langley, *ChaCha20 and Poly1305 for IETF Protocols*, RFC 7539, section 2.3.
    """
    return _block(key, jnp.append(counter, nonce), num_words=_BLOCK_WORDS)


def _block(key: Array, position: Array, *, num_words: int) -> Array:
    """Returns the first words of the block at uint32[4]."""
    key, position = jnp.asarray(key, jnp.uint32), jnp.asarray(position, jnp.uint32)
    if not native.is_loaded():
        return _one_block(key, position, num_words=num_words)
    return native.call(
        "tacit_blocks",
        _one_block,
        key,
        position,
        results=(((num_words,), jnp.uint32),),
        attributes={},
        static={"num_words": num_words},
    )[0]


def _one_block(key: Array, position: Array, *, num_words: int) -> Array:
    return _blocks(key, position[:, None])[:num_words, 0]


def _positions(operation: np.uint32, group: Array, lanes: int) -> Array:
    """Returns uint32[4, lanes]: the positions of the blocks of one group.

    Block ``128 * group + lane`` has that number as a 64-bit counter in the first two words, so
    that it stays unique far beyond any array that fits in a memory.
    """
    lane = jnp.arange(lanes, dtype=jnp.uint32)
    low, high = group * np.uint32(_GROUP) + lane, group // np.uint32(2**32 // _GROUP)
    return jnp.stack([jnp.broadcast_to(word, (lanes,)) for word in (low, high, 0, operation)])


@functools.partial(jax.jit, static_argnums=(1, 2))
def _stream(key: Array, operation: np.uint32, num_words: int) -> Array:
    """Returns uint32[groups, 16, lanes], at least ``num_words`` of them, for one operation."""
    num_blocks = -(-num_words // _BLOCK_WORDS)
    if 0 < num_blocks <= _FEW:
        positions = _positions(operation, jnp.uint32(0), num_blocks)
        singles = [_blocks(key, positions[:, i : i + 1]) for i in range(num_blocks)]
        return jnp.concatenate(singles, axis=1)[None]
    if num_blocks <= _GROUP:
        return _blocks(key, _positions(operation, jnp.uint32(0), num_blocks))[None]
    return _groups(key, operation, jnp.arange(-(-num_blocks // _GROUP), dtype=jnp.uint32))


def _groups(key: Array, operation: np.uint32, groups: Array) -> Array:
    """Returns uint32[groups, 16, 128], one group of blocks after the other."""
    blocks: Array = lax.map(
        lambda group: _blocks(key, _positions(operation, group, _GROUP)), groups
    )
    return blocks


def _first_words(key: Array, *, num_words: int) -> Array:
    # The words keep the order in which they were computed, which spares a transposition.
    return _stream(key, _BITS, num_words).reshape(-1)[:num_words]


def _children(key: Array, *, num_keys: int) -> Array:
    blocks = jnp.swapaxes(_stream(key, _SPLIT, num_keys * _KEY_WORDS), 1, 2)
    # Two children to a block; child i is the same whatever the number of children.
    return blocks.reshape(-1)[: num_keys * _KEY_WORDS]


def _words_from(key: Array, start: Array, *, length: int) -> Array:
    """Returns words of the bits of more than one group, from any on."""
    of_group = _GROUP * _BLOCK_WORDS
    first = start // np.uint32(of_group)
    groups = first + jnp.arange(-(-length // of_group) + 1, dtype=jnp.uint32)
    words = _groups(key, _BITS, groups).reshape(-1)
    return lax.dynamic_slice(words, (start - first * np.uint32(of_group),), (length,))


def _random_bits(key: Array, bit_width: int, shape: tuple[int, ...]) -> Array:
    size = math.prod(shape)
    num_words = -(-size * bit_width // 32)
    num_blocks = -(-num_words // _BLOCK_WORDS)
    if num_words == 0 or not native.is_loaded():
        words = _first_words(key, num_words=num_words)
    elif num_blocks <= _GROUP:
        (words,) = native.call(
            "tacit_streams",
            _first_words,
            key,
            results=(((num_words,), jnp.uint32),),
            attributes={"operation": int(_BITS), "num_blocks": num_blocks, "by_block": 0},
            static={"num_words": num_words},
        )
    else:
        words = _native_words_from(key, jnp.uint32(0), length=num_words)
    if bit_width == 64:
        words = words.reshape(-1, 2)
    dtype = jnp.dtype(f"uint{bit_width}")
    return lax.bitcast_convert_type(words, dtype).reshape(-1)[:size].reshape(shape)


def words_between(key: Key, start: Array, length: int, *, num_words: int) -> Array:
    """Returns ``jax.random.bits(key, (num_words,))[start : start + length]``, and computes no more.

    Devices that share a draw each compute their own part of it so.

    Args:
      key: as for ``jax.random.bits``, which it stands for: both use the key up.
      start: the first word; may be traced.
      length: how many words, at most ``num_words``. Beyond the end of the draw they are arbitrary.
      num_words: the length of the whole draw, less than 2**32.

    Example:
      >>> words_between(seeded_key(0), 1, 1, num_words=2)
      Array([3703499764], dtype=uint32)
    """
    if num_words >= 2**32:  # a position would wrap around, and words be used twice
        raise InvalidArgumentError(
            f"num_words must be less than 2**32; got {num_words}. Draw in several parts, each from"
            " a key of its own."
        )
    of_group = _GROUP * _BLOCK_WORDS
    if jax.random.key_impl(key) != CHACHA20 or num_words <= of_group:
        whole = jnp.pad(jax.random.bits(key, (num_words,), jnp.uint32), (0, length))
        return lax.dynamic_slice(whole, (start,), (length,))
    data, start = jax.random.key_data(key), jnp.asarray(start, jnp.uint32)
    if length == 0 or not native.is_loaded():
        return _words_from(data, start, length=length)
    return _native_words_from(data, start, length=length)


def _native_words_from(key: Array, start: Array, *, length: int) -> Array:
    return native.call(
        "tacit_words",
        _words_from,
        key,
        start,
        results=(((length,), jnp.uint32),),
        attributes={"operation": int(_BITS)},
        static={"length": length},
    )[0]


def _split(key: Array, shape: tuple[int, ...]) -> Array:
    num_keys = math.prod(shape)
    if num_keys == 0 or not native.is_loaded():
        return _children(key, num_keys=num_keys).reshape(*shape, _KEY_WORDS)
    (children,) = native.call(
        "tacit_streams",
        _children,
        key,
        results=(((num_keys * _KEY_WORDS,), jnp.uint32),),
        attributes={"operation": int(_SPLIT), "num_blocks": -(-num_keys // 2), "by_block": 1},
        static={"num_keys": num_keys},
    )
    return children.reshape(*shape, _KEY_WORDS)


def _fold_in(key: Array, data: Array | int) -> Array:
    counter = lax.convert_element_type(data, jnp.uint32)
    position = jnp.append(counter, jnp.array([0, 0, _FOLD_IN], jnp.uint32))
    return _block(key, position, num_words=_KEY_WORDS)


def _seed(seed: Array) -> Array:
    """Writes an integer, of 32 bits or of 64 where JAX has them enabled, into a key."""
    low = lax.convert_element_type(seed, jnp.uint32)
    high = jnp.zeros_like(low)
    if seed.dtype.itemsize == 8:
        high = lax.convert_element_type(seed >> 32, jnp.uint32)
    return jnp.zeros(_KEY_WORDS, jnp.uint32).at[:2].set(jnp.stack([low, high]))


CHACHA20: Hashable = define_prng_impl(
    key_shape=(_KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cha",
)
"""The generator, for ``jax.random.key(seed, impl=CHACHA20)`` and ``jax.random.wrap_key_data``."""


def _key_from_bytes(entropy: bytes) -> Key:
    words = np.frombuffer(entropy, dtype="<u4").astype(np.uint32)
    key: Key = jax.random.wrap_key_data(jnp.asarray(words), impl=CHACHA20)
    return key


def fresh_key() -> Key:
    """Returns a new secret key: 256 bits from the operating system's generator.

    Guarantee:
      Noise drawn from it is pseudorandom to everyone who has not read this process's memory.
      Draw one for every run, do not store it, and let a resumed run draw another.

    Example:
      >>> jax.random.normal(fresh_key(), (3,)).shape
      (3,)
    """
    return _key_from_bytes(secrets.token_bytes(4 * _KEY_WORDS))


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
    return int(seed).to_bytes(4 * _KEY_WORDS, "little")


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
        block = chacha20_block(state, three[0], jnp.append(three[1:], _HASH))
        return block[:_KEY_WORDS], None

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
