"""Ensembles over disjoint shards: many members for the price of one."""

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from jax import lax
from numpy.typing import ArrayLike, NDArray
from scipy.stats import binom

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.method import Info, Kernel, Method, State, declare
from tacit.models import Model
from tacit.privacy.cost import ParallelDpEvent
from tacit.tables.base import RECORDS, Table
from tacit.tables.distributed import Distributed, shared_among
from tacit.typing import Array, Key, Record, Tree

__all__ = ["Ensemble", "assign_shards", "shard_records", "shard_size"]

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


@declare(
    name="ensemble",
    summary="one member for each disjoint shard of the records",
    citations=("lakshminarayanan2017simple",),
)
@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """One member for each disjoint shard of the records; a record pays for its own member only.

    The posterior has each member as a chain. It is a mixture of posteriors given a part of the
    records each, so it is wider than the posterior given all of them, and agreement between its
    chains (R-hat) says how alike the shards are, not whether a chain has converged. Members that
    all see all records, each paid for, are ``Plan(num_chains=K)`` and need no class.

    Guarantee:
      A member reads its own rows of the table and no others, from a key of its own, and members
      never meet. So the joint law of all members for two neighbouring tables differs in one of
      them only, and the cost is that of one member (parallel composition). It needs an
      assignment that is not made from the records' contents and that a record keeps:
      `assign_shards`. Zero-out and add-remove adjacency leave every other record where it is; a
      record that is *replaced* may belong elsewhere, so replace-one is refused by every
      accountant.

    Args:
      member: the method, configured for one shard: its ``num_records`` is the room in a shard.
        Fillings of `shard_records` count in it, as records that contribute nothing.
      num_shards: how many members.

    Example:
      >>> from tacit.inference import assign_shards
      >>> from tacit.inference.ensemble import shard_records, shard_size
      >>> from tacit.inference import SGLD
      >>> from tacit.privacy.sampling import PoissonBatch
      >>> size = shard_size(10_000, 4)
      >>> method = Ensemble(
      ...     member=SGLD.fixed_temperature(
      ...         sampling=PoissonBatch(num_records=size, batch_size=64),
      ...         clip_norm=1.0,
      ...         step_size=1e-4,
      ...     ),
      ...     num_shards=4,
      ... )
      >>> method.cost(10).event == method.member.cost(10)
      True

    Reference:
      McSherry, "Privacy integrated queries" (2009), for the cost; Lakshminarayanan et al., "Simple
      and scalable predictive uncertainty estimation using deep ensembles" (2017).
    """

    member: Method
    num_shards: int

    def __post_init__(self) -> None:
        _check.positive_integer(num_shards=self.num_shards)

    @property
    def num_records(self) -> int:
        """The room for records in all shards together: the rows of the table."""
        return self.num_shards * self.member.num_records

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.num_shards * self.member.public_records

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """The cost of one member, since a record is in one shard."""
        return ParallelDpEvent(self.member.cost(num_steps, start=start), self.num_shards)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise of every member."""
        return replace(self, member=self.member.scale_noise(factor))

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model; states and infos have a leading axis of members."""
        kernel = self.member.build(model)
        if kernel.num_members is not None:
            raise InvalidArgumentError(
                f"member must be a single method; got {type(self.member).__name__}. Use one"
                " Ensemble with more shards."
            )

        def init(key: Key) -> State:
            return jax.vmap(kernel.init)(jax.random.split(key, self.num_shards))

        def step(key: Key, states: State, records: Record | Table) -> tuple[State, Info]:
            keys = jax.random.split(key, self.num_shards)

            def own_members(rows: Record, keys: Key, states: State) -> tuple[State, Info]:
                # One after the other: it compiles once and takes the memory of one member.
                return lax.map(lambda one: kernel.step(*one), (keys, states, self._shards(rows)))

            if isinstance(records, Distributed):
                # A device that holds the rows of some members takes them on, and no other.
                run = functools.partial(own_members, self._rows_of_members(records))
                return shared_among(RECORDS, run, keys, states)
            if isinstance(records, Table):  # it reads what is drawn, from all rows alike
                raise InvalidArgumentError(
                    "an Ensemble has its table in memory, cut into the rows of its members; got one"
                    " on the host. Give it as records, or fit a method that is not an Ensemble."
                )
            return own_members(records, keys, states)

        def retain(states: State) -> Tree:
            return jax.vmap(kernel.retain)(states)

        return Kernel(init, step, retain, kernel.sampler, self.num_shards)

    def _shards(self, records: Record) -> Record:
        """The table with an axis of shards before that of records."""

        def split(leaf: Array) -> Array:
            return leaf.reshape(-1, self.member.num_records, *leaf.shape[1:])

        sharded: Record = jax.tree.map(split, records)
        return sharded

    def _rows_of_members(self, part: Distributed) -> Record:
        num_rows = part.division.rows_in_shard
        if num_rows % self.member.num_records:
            raise InvalidArgumentError(
                f"an Ensemble of {self.num_shards} members must have whole members on each device,"
                f" in memory; got a table on devices that own {num_rows} records each, where a"
                f" member has {self.member.num_records}. Use a mesh whose number of devices divides"
                f" {self.num_shards}, and a table in memory."
            )
        rows: Record = part.rows
        return rows
