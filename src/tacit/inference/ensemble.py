"""Ensembles over disjoint shards: many members for the price of one."""

import functools
from dataclasses import dataclass, replace
from typing import Self

import jax
from dp_accounting import DpEvent
from jax import lax

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.base import Info, Kernel, Method, State
from tacit.models import Model
from tacit.privacy.events import ParallelDpEvent
from tacit.tables import RECORDS, Shard, Summing, shared_among
from tacit.typing import Array, Key, Record, Tree

__all__ = ["Ensemble"]


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
      >>> from tacit.data import assign_shards, shard_records, shard_size
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

        def step(key: Key, states: State, records: Record | Shard) -> tuple[State, Info]:
            keys = jax.random.split(key, self.num_shards)

            def own_members(rows: Record, keys: Key, states: State) -> tuple[State, Info]:
                # One after the other: it compiles once and takes the memory of one member.
                return lax.map(lambda one: kernel.step(*one), (keys, states, self._shards(rows)))

            if isinstance(records, Shard):
                # A device that holds the rows of some members takes them on, and no other.
                run = functools.partial(own_members, self._rows_of_members(records))
                return shared_among(RECORDS, run, keys, states)
            if isinstance(records, Summing):  # it reads what is drawn, from all rows alike
                raise InvalidArgumentError(
                    "an Ensemble has its table in memory, cut into the rows of its members; got one"
                    " on the host. Give it as records, or fit a method that is no Ensemble."
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

    def _rows_of_members(self, shard: Shard) -> Record:
        if shard.rows is None or shard.length % self.member.num_records:
            raise InvalidArgumentError(
                f"an Ensemble of {self.num_shards} members must have whole members on each device,"
                f" in memory; got a table on devices that own {shard.length} records each, where a"
                f" member has {self.member.num_records}. Use a mesh whose number of devices divides"
                f" {self.num_shards}, and a table in memory."
            )
        return shard.rows
