"""The chains of a run, taken on chunk by chunk, wherever its table is."""

import bisect
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tacit.errors import InvalidArgumentError
from tacit.inference.checkpoint import Checkpoint
from tacit.inference.compiled import compiled_kernel
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.processes import num_processes, translating_lost_workers
from tacit.tables import CHAINS, at_home, cut_of, everywhere
from tacit.typing import Key, Tree

__all__ = ["Chains", "chunks_between", "require_shared_chains"]


class Chains:
    """States of all chains and what was retained of them; changes as it is taken on."""

    def __init__(
        self, plan: Plan, model: Model, key: Key, *, resume: Checkpoint | None, mesh: Mesh | None
    ) -> None:
        """Starts chains, or takes them from a checkpoint.

        Args:
          plan: what is run.
          model: what is inferred.
          key: used up.
          resume: where to go on from.
          mesh: the devices that share the table; None for one device.
        """
        self._kernel, self._advance = compiled_kernel(plan.method, model)
        self._kept_steps, self._mesh = set(plan.kept_steps), mesh
        init_key, run_key = jax.random.split(key)
        self.keys = jax.random.split(run_key, plan.num_chains)
        self._states = (
            jax.vmap(self._kernel.init)(jax.random.split(init_key, plan.num_chains))
            if resume is None
            else resume.states
        )
        if mesh is not None:
            # The leading axis counts chains.
            self._states = everywhere(
                self._states, mesh, lambda leaf: P(None, *cut_of(leaf.shape[1:], mesh))
            )
        self._at_home: Tree | None = None
        self._kept: list[Any] = []
        if resume is not None and resume.kept is not None:
            self._kept.append((resume.kept, resume.info))

    @property
    def states(self) -> Tree:
        """The states now, on this process's own device."""
        if self._at_home is None:
            self._at_home = self._own(self._states)
        return self._at_home

    @property
    def retained(self) -> tuple[Tree, Tree]:
        """What was kept so far, and the infos, each as one tree; None before the first."""
        if not self._kept:
            return None, None
        states, info = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *self._kept)
        return states, info

    def take_on(self, table: Tree, boundaries: list[int]) -> None:
        """Takes all chains from the first boundary to the last, and keeps what the plan says."""
        before, *ends = boundaries
        with translating_lost_workers(after_step=before):
            self._states, emitted = self._advance(
                self.keys, self._states, table, jnp.array(boundaries)
            )
            self._at_home = None
            if num_processes() > 1:  # what is cut among processes is gathered by all of them
                self._at_home = jax.block_until_ready(self._own(self._states))
            own = self._own(emitted)
        wanted = [ends.index(step) for step in sorted(self._kept_steps.intersection(ends))]
        if wanted:
            chosen = jnp.array(wanted)
            self._kept.append(jax.tree.map(lambda leaf: leaf[:, chosen], own))

    def _own(self, tree: Tree) -> Tree:
        return tree if self._mesh is None else at_home(tree)


def require_shared_chains(num_chains: int, mesh: Mesh | None) -> None:
    """Raises unless the groups of devices that share chains get as many each."""
    groups = 1 if mesh is None else mesh.shape.get(CHAINS, 1)
    if num_chains % groups:
        raise InvalidArgumentError(
            f"num_chains={num_chains} must be a multiple of {groups}, the groups of devices that"
            " share the chains. Change the plan, or the mesh."
        )


def chunks_between(
    start: int, stop: int, chunk_steps: int, kept_steps: Sequence[int]
) -> list[list[int]]:
    """Cuts a run into chunks, each a list of boundaries of one length, padded with its end."""
    chunks = []
    for first in range(start, stop, chunk_steps):
        last = min(first + chunk_steps, stop)
        inside = kept_steps[
            bisect.bisect_right(kept_steps, first) : bisect.bisect_left(kept_steps, last)
        ]
        chunks.append([*inside, last])
    length = max(map(len, chunks))
    return [chunk + [chunk[-1]] * (length - len(chunk)) for chunk in chunks]
