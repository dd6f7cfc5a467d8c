"""Fingerprints: whether two tables look the same, told without keeping either."""

import hashlib
import hmac

import jax
import numpy as np

from tacit.tables import Distributed, OnHost, RowSource
from tacit.typing import Tree

__all__ = ["fingerprint_of"]

_LARGEST_READ_WHOLE = 2**28
_NUM_ROWS_OF_LARGER = 4096


def fingerprint_of(records: Tree, *, salt: bytes) -> str | None:
    """Returns a salted hash of a table, or None where its values are not all here.

    Of a table on the host that is too large to be read for this, a few thousand rows are looked at,
    at places that its size alone decides. A smaller one has the fingerprint that it has in memory.

    Guarantee:
      None of privacy. Whoever has the salt can test a guess of the whole table against it, so
      it stays with the salt in the owner's ledger and is never published. It is used to warn and
      decides nothing.

    Example:
      >>> one, other = np.zeros(3), np.ones(3)
      >>> known = fingerprint_of(one, salt=b"s")
      >>> known == fingerprint_of(one, salt=b"s"), known == fingerprint_of(other, salt=b"s")
      (True, False)
    """
    digest = hmac.new(salt, digestmod=hashlib.sha256)
    if isinstance(records, OnHost):
        digest.update(_size_if_large(records.source))
        records = _rows_of(records.source)
    elif isinstance(records, Distributed):
        if not _is_all_here(records.rows):
            return None  # a slice of it would wait for the other processes, which do not take part
        records = jax.tree.map(lambda leaf: leaf[: records.num_records], records.rows)
    for path, leaf in jax.tree_util.tree_leaves_with_path(records):
        if not isinstance(leaf, jax.Array | np.ndarray) or isinstance(leaf, jax.core.Tracer):
            return None
        if not _is_all_here(leaf):
            return None
        values = np.asarray(leaf, order="C")
        digest.update(f"{jax.tree_util.keystr(path)} {values.dtype} {values.shape};".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _is_all_here(rows: Tree) -> bool:
    return all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(rows))


def _rows_of(source: RowSource) -> Tree:
    number = source.num_records
    if not _is_large(source):
        return source.read(np.arange(number))
    return source.read(np.linspace(0, number - 1, min(number, _NUM_ROWS_OF_LARGER)).astype(int))


def _size_if_large(source: RowSource) -> bytes:
    return f"some of {source.num_records};".encode() if _is_large(source) else b""


def _is_large(source: RowSource) -> bool:
    row = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(source.record))
    return bool(source.num_records * row > _LARGEST_READ_WHOLE)
