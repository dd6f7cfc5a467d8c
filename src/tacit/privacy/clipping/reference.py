"""The clipped sum, slow and obvious: every record's contribution is formed, clipped and added.

This is the definition that any faster path is tested against.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _tree
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import Clipping, squared_norms
from tacit.privacy.materialised import materialised
from tacit.typing import Array, Key, Params, Query, RecordLoss, Scalar, Tree

__all__ = ["clipped_gradient_sum", "clipped_sum", "in_chunks"]


def clipped_sum(
    query: Query,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Tree:
    """Returns the sum over records of the clipped ``query(record, key)``.

    Guarantee:
      A record's contribution is clipped by an upper bound on the norm of exactly its floats.
      Added as integers, it is rounded by itself: replacing any one record, however bad, by nothing
      moves the sum by at most ``clip_norm`` in l2 norm and half a lattice unit for each number,
      and all others not at all. Records whose mask is False and records whose contribution is
      not finite add exactly zero.

    Args:
      query: a function of one record and its key.
      records: a batch; every leaf has a leading record axis.
      keys: one key for each record.
      mask: which rows are records and which are padding.
      clipping: the rule.
      clip_norm: the bound on one record's contribution.
      chunk_size: how many contributions are held at once; memory only, never the result beyond
        the order in which floats are added.
      adding: as integers, or as floats.

    Example:
      >>> from tacit.privacy.clipping.bounds import Flat
      >>> rows = jnp.array([[3.0, 4.0], [0.0, 0.5], [jnp.nan, 0.0]])
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> keep = jnp.array([True, True, True])
      >>> total = clipped_sum(lambda r, k: r, rows, keys, keep, clipping=Flat(), clip_norm=1.0)
      >>> [f"{value:.3f}" for value in total]
      ['0.600', '1.300']
    """

    def contribution(record: Tree, key: Key, keep: Array) -> Tree:
        # Norm and sum must read the same numbers.
        value = materialised(_tree.at_least_float32(query(record, key)))
        factors = clipping.factors(squared_norms(value), clip_norm=clip_norm)
        weights = jax.tree.map(lambda c: c * adding.units, factors)
        # A product with zero would let a NaN through; a selection does not.
        return jax.tree.map(lambda v, c: jnp.where(keep & (c > 0), c * v, 0.0), value, weights)

    def chunk_sum(chunk: tuple[Tree, Key, Array]) -> Tree:
        sums = jax.tree.map(adding.total, jax.vmap(contribution)(*chunk))
        return sums if adding.is_exact else jax.tree.map(lambda leaf: leaf[0], sums)

    return in_chunks(chunk_sum, (records, keys, mask), adding.largest_chunk(chunk_size), adding)


def in_chunks(
    chunk_sum: Callable[[tuple[Tree, Key, Array]], Tree],
    batch: tuple[Tree, Key, Array],
    chunk_size: int | None,
    adding: Adding,
) -> Tree:
    """Returns ``chunk_sum(batch)``, added up over chunks of records to bound memory."""
    length = batch[2].shape[0]
    if chunk_size is None or chunk_size >= length:
        return chunk_sum(batch)

    num_chunks = -(-length // chunk_size)
    padded = jax.tree.map(lambda leaf: _pad(leaf, num_chunks * chunk_size), batch)
    chunks = jax.tree.map(lambda x: x.reshape(num_chunks, chunk_size, *x.shape[1:]), padded)
    shapes = jax.eval_shape(chunk_sum, jax.tree.map(lambda x: x[0], chunks))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total: Tree, chunk: tuple[Tree, Key, Array]) -> tuple[Tree, None]:
        return jax.tree.map(lambda a, b: adding.carried(a + b), total, chunk_sum(chunk)), None

    return lax.scan(add, zero, chunks)[0]


def clipped_gradient_sum(
    loss: RecordLoss,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Tree:
    """Returns the sum over records of the clipped gradient of ``loss(params, record, key)``."""

    def gradient(record: Tree, key: Key) -> Tree:
        return jax.grad(loss)(params, record, key)

    return clipped_sum(
        gradient,
        records,
        keys,
        mask,
        clipping=clipping,
        clip_norm=clip_norm,
        chunk_size=chunk_size,
        adding=adding,
    )


def _pad(leaf: Array, length: int) -> Array:
    """Repeats the first row; padded rows have a False mask, which `clipped_sum` obeys."""
    missing = length - leaf.shape[0]
    padding = jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))
    # Padding of the mask itself must be False, whatever its first row is.
    if leaf.dtype == jnp.bool_:
        padding = jnp.zeros_like(padding)
    return jnp.concatenate([leaf, padding])
