"""The chains of a run, compiled once and advanced chunk by chunk, wherever its table is."""

import bisect
import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.compilation import Compiled, step_key
from tacit.inference.method import Kernel
from tacit.processes import num_processes, translating_lost_workers
from tacit.rng import seeded_key
from tacit.tables import OnHost
from tacit.tables.base import Batch
from tacit.tables.mesh import CHAINS, at_home, cut_of, everywhere, largest_share
from tacit.tables.on_host import DrawnInLoopError, Fetched, Recorder, fetch
from tacit.typing import Array, Key, Tree

__all__ = [
    "Chains",
    "Feed",
    "chunks_between",
    "feed_of",
    "require_shared_chains",
]


_MAX_BYTES = 2**26
"""How much is read ahead at once, 64 MB; twice that is held."""

Chunk: TypeAlias = tuple[int, int]
"""The first step of a chunk, and the one after its last."""

Tables: TypeAlias = Generator[Tree, None, None]
"""The table of one chunk after the other."""


class Feed(NamedTuple):
    """How a run gets its table.

    Attributes:
      max_steps: of a chunk, so that what is read ahead fits in memory; None where nothing is read.
      tables: gives, for chains' keys, chunks and the most steps of one, the table of each chunk;
        close it where not all of them are wanted, or its thread stays.
    """

    max_steps: int | None
    tables: Callable[[Key, Sequence[Chunk], int], Tables]


def feed_of(records: Tree, kernel: Kernel, states: Tree, *, num_chains: int) -> Feed:
    """Returns the feed of a run.

    Batches are drawn from keys alone, so those of the next chunk are known, and read in a thread of
    its own, while the device works on this one. A method that draws inside of a loop does not tell
    what it will draw; its rows are read when it asks for them.

    Args:
      records: the table.
      kernel: of the method.
      states: the shapes of one chain's state.
      num_chains: how many chains.
    """
    found = _draws_of(records, kernel, states) if isinstance(records, OnHost) else None
    if found is None:
        return Feed(None, lambda keys, chunks, num_steps: (records for _ in chunks))
    draw, rate, num_rows = found

    def tables(keys: Key, chunks: Sequence[Chunk], num_steps: int) -> Tables:
        def read(chunk: Chunk) -> Fetched:
            first, stop = chunk
            # Chunks have one length; what is beyond the last step is not used.
            steps = jnp.minimum(first + jnp.arange(num_steps), stop - 1)
            batches = jax.device_get(draw(keys, steps))
            return fetch(records, batches, first_step=first, rate=rate)

        with ThreadPoolExecutor(max_workers=1) as reader:
            ahead = reader.submit(read, chunks[0])
            for following in chunks[1:]:
                table = ahead.result()
                ahead = reader.submit(read, following)
                yield table
            yield ahead.result()

    leaves = jax.tree.leaves(records.record)
    row_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves) + 8
    step_bytes = math.ceil(num_chains * num_rows * row_bytes * largest_share(records.mesh))
    return Feed(max(1, _MAX_BYTES // step_bytes), tables)


def _draws_of(
    records: OnHost, kernel: Kernel, states: Tree
) -> tuple[Callable[[Key, Array], Batch], float, int] | None:
    """Returns what steps draw, as a function of chains' keys and steps, with its rate and size."""
    rates: list[float] = []

    def of_step(key: Key) -> Batch:
        recorder = Recorder(records)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), states)
        kernel.step(key, nothing, recorder)
        rates.extend(recorder.rates)
        if len({batch.indices.shape for batch in recorder.batches}) != 1:
            raise DrawnInLoopError  # batches of several sizes are read one by one, too
        stacked: Batch = jax.tree.map(lambda *leaves: jnp.stack(leaves), *recorder.batches)
        return stacked

    def of_chain(key: Key, steps: Array) -> Batch:
        return jax.vmap(lambda step: of_step(step_key(key, step)))(steps)

    try:
        shapes = jax.eval_shape(of_step, seeded_key(0))
    except DrawnInLoopError:
        return None
    draw = jax.jit(jax.vmap(of_chain, in_axes=(0, None)))
    return draw, max(rates), _tree.size(shapes.indices)


class Chains:
    """States of all chains and what was retained of them; changes as it is taken on."""

    def __init__(
        self,
        compiled: Compiled,
        key: Key,
        *,
        num_chains: int,
        kept_steps: Sequence[int],
        states: Tree | None = None,
        retained: tuple[Tree, Tree] | None = None,
        mesh: Mesh | None = None,
    ) -> None:
        """Starts chains, or takes them on from where they are.

        Args:
          compiled: the kernel.
          key: used up.
          num_chains: how many chains.
          kept_steps: after how many steps a state is retained.
          states: of the chains; None for new ones.
          retained: what was kept before, and its infos.
          mesh: the devices that share the table; None for one device.
        """
        kernel, self._advance = compiled
        self._kept_steps, self._mesh = set(kept_steps), mesh
        init_key, run_key = jax.random.split(key)
        self.keys = jax.random.split(run_key, num_chains)
        self._states = states
        if states is None:
            self._states = jax.vmap(kernel.init)(jax.random.split(init_key, num_chains))
        if mesh is not None:
            # The leading axis counts chains.
            self._states = everywhere(
                self._states, mesh, lambda leaf: P(None, *cut_of(leaf.shape[1:], mesh))
            )
        self._at_home: Tree | None = None
        self._kept = [] if retained is None else [retained]

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
