"""Shards: disjoint parts of a table, told apart by who a record is and never by what it says."""

import hashlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.typing import Array, Record

__all__ = ["assign_shards", "shard_records", "shard_size"]

_OVERFLOW = 1e-9


def assign_shards(ids: ArrayLike, num_shards: int, *, salt: str) -> NDArray[np.int32]:
    """Returns the shard of each id, from 0 on: a keyed hash of the id and nothing else.

    Guarantee:
      The shard of an id depends on that id, the salt and the number of shards only: not on any
      record's content, not on which other ids there are, not on their order. So deleting or adding
      a record moves no other, and rows with the same id are never split. It needs a salt that was
      chosen without looking at the records; the salt and the shards are public.

    Args:
      ids: one for each record, all text or all whole numbers. With ``groups``, those of the
        units, in the order of their first rows: ``pandas.unique(groups)``.
      num_shards: how many.
      salt: any public text. Another one gives another, independent assignment.

    Example:
      >>> assign_shards(["ann", "bob", "cy", "dee"], 2, salt="study 7")
      array([1, 0, 1, 1], dtype=int32)
      >>> assign_shards(["dee", "bob"], 2, salt="study 7")
      array([1, 0], dtype=int32)
    """
    _check.positive_integer(num_shards=num_shards)
    if not isinstance(salt, str):
        raise InvalidArgumentError(f"salt must be text; got {salt!r}.")
    identify = _identifier(np.asarray(ids, dtype=None if hasattr(ids, "dtype") else object))
    # The salt is hashed first, because the hash function's own key may not be longer than 64 bytes.
    key = hashlib.blake2b(salt.encode()).digest()

    def shard(name: bytes) -> int:
        digest = hashlib.blake2b(name, key=key, digest_size=16).digest()
        return int.from_bytes(digest, "little") % num_shards

    return np.array([shard(name) for name in identify()], np.int32)


def shard_size(num_records: int, num_shards: int) -> int:
    """Returns how many records a shard must have room for, from public numbers alone.

    A keyed hash sends each record to a shard independently; with this much room for each, some
    shard overflows for one salt in a thousand million.

    Example:
      >>> shard_size(60_000, 10)
      6473
    """
    _check.positive_integer(num_records=num_records, num_shards=num_shards)
    share = 1 / num_shards
    sizes = np.arange(num_records // num_shards, num_records + 1)
    # A union bound over the shards.
    enough = num_shards * binom.sf(sizes, num_records, share) <= _OVERFLOW
    return max(1, int(sizes[np.argmax(enough)]))


def shard_records(
    records: Record, shards: NDArray[np.integer[Any]], *, num_shards: int, size: int
) -> Record:
    """Returns the table ordered by shard, each filled up to ``size`` with records of weight zero.

    Record ``i`` of shard ``k`` is row ``k * size + i``; within a shard the order is kept. A filling
    is a record that contributes nothing, so the table's shape tells no shard's size.

    Guarantee:
      A shard's rows depend on that shard's records only. (An error, and so whether some shard
      overflows, depends on all ids: an owner may read it.)

    Args:
      records: the table.
      shards: of each record, from `assign_shards`.
      num_shards: how many there are.
      size: room in each; public, see `shard_size`.

    Example:
      >>> table = Record(jnp.arange(4.0)[:, None], jnp.zeros(4), jnp.ones(4))
      >>> sharded = shard_records(table, np.array([1, 0, 1, 0]), num_shards=2, size=3)
      >>> sharded.x[:, 0].tolist(), sharded.weight.tolist()
      ([1.0, 3.0, 0.0, 0.0, 2.0, 0.0], [1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    """
    _check.positive_integer(num_shards=num_shards, size=size)
    shards = np.asarray(shards)
    num_records = len(records.y)
    if shards.shape != (num_records,) or shards.min() < 0 or shards.max() >= num_shards:
        raise InvalidArgumentError(
            f"shards must give one of 0..{num_shards - 1} for each of {num_records} records; got"
            f" shape {shards.shape}. Use assign_shards(ids, {num_shards}, salt=...)."
        )
    largest = int(np.bincount(shards).max())
    if largest > size:
        raise InvalidArgumentError(
            f"size must be at least {largest}, what the fullest shard holds; got {size}. Use"
            f" shard_size({num_records}, {num_shards}), or another salt."
        )
    order = np.argsort(shards, kind="stable")
    ordered = shards[order]
    starts = np.searchsorted(ordered, np.arange(num_shards))
    place = ordered * size + np.arange(num_records) - starts[ordered]

    def spread(leaf: Array) -> Array:
        empty = jnp.zeros((num_shards * size, *leaf.shape[1:]), leaf.dtype)
        return empty.at[place].set(leaf[order])

    sharded: Record = jax.tree.map(spread, records)
    return sharded


def _identifier(ids: NDArray[Any]) -> Callable[[], list[bytes]]:
    """Returns the unique bytes of each id, or raises unless ids are of one kind that has them."""
    if ids.ndim == 1 and ids.size:
        if all(isinstance(value, str) for value in ids):
            return lambda: [b"text:" + value.encode() for value in ids.tolist()]
        is_whole = all(
            isinstance(value, int | np.integer) and not isinstance(value, bool) for value in ids
        )
        if is_whole:
            return lambda: [b"number:%d" % int(value) for value in ids]
    raise InvalidArgumentError(
        "ids must be one for each record, all text or all whole numbers (1 and '1' would be two"
        f" people); got {ids.dtype} of shape {ids.shape}. Convert them with astype(str)."
    )
