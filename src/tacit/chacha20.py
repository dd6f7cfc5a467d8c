"""ChaCha20 as a JAX generator: keys of 256 bits, and words that nobody can predict without one.

One block is ``F(key, counter, nonce)``. The nonce names the operation (bits, split, fold_in), and
within an operation the counter never repeats, so everything derived from one key is made of outputs
of a pseudorandom function at distinct inputs, which are jointly indistinguishable from independent
uniform blocks. Child keys are such blocks, so by induction the same is true of the whole tree of
keys. The native kernel computes the same words where it is there.
"""

import functools
import math
from collections.abc import Hashable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl

from tacit import native
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Key

__all__ = ["CHACHA20", "HASH", "KEY_WORDS", "chacha20_block", "words_between"]

_CONSTANTS = np.frombuffer(b"expand 32-byte k", dtype="<u4")
KEY_WORDS = 8
_BLOCK_WORDS = 16

# The last word of the nonce, one value for each operation that derives something from a key. The
# fourth is that of `tacit.rng.keyed_hash`.
_BITS, _SPLIT, _FOLD_IN, HASH = np.uint32(1), np.uint32(2), np.uint32(3), np.uint32(4)

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
    blocks = jnp.swapaxes(_stream(key, _SPLIT, num_keys * KEY_WORDS), 1, 2)
    # Two children to a block; child i is the same whatever the number of children.
    return blocks.reshape(-1)[: num_keys * KEY_WORDS]


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
      >>> words_between(jax.random.key(0, impl=CHACHA20), 1, 1, num_words=2)
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
        return _children(key, num_keys=num_keys).reshape(*shape, KEY_WORDS)
    (children,) = native.call(
        "tacit_streams",
        _children,
        key,
        results=(((num_keys * KEY_WORDS,), jnp.uint32),),
        attributes={"operation": int(_SPLIT), "num_blocks": -(-num_keys // 2), "by_block": 1},
        static={"num_keys": num_keys},
    )
    return children.reshape(*shape, KEY_WORDS)


def _fold_in(key: Array, data: Array | int) -> Array:
    counter = lax.convert_element_type(data, jnp.uint32)
    position = jnp.append(counter, jnp.array([0, 0, _FOLD_IN], jnp.uint32))
    return _block(key, position, num_words=KEY_WORDS)


def _seed(seed: Array) -> Array:
    """Writes an integer, of 32 bits or of 64 where JAX has them enabled, into a key."""
    low = lax.convert_element_type(seed, jnp.uint32)
    high = jnp.zeros_like(low)
    if seed.dtype.itemsize == 8:
        high = lax.convert_element_type(seed >> 32, jnp.uint32)
    return jnp.zeros(KEY_WORDS, jnp.uint32).at[:2].set(jnp.stack([low, high]))


CHACHA20: Hashable = define_prng_impl(
    key_shape=(KEY_WORDS,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="chacha20",
    tag="cha",
)
"""The generator, for ``jax.random.key(seed, impl=CHACHA20)`` and ``jax.random.wrap_key_data``."""
