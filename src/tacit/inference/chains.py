"""The chains of a run: advanced chunk by chunk, wherever its table is, and kept in checkpoints."""

import bisect
import functools
import math
import os
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tacit import _artefact, _tree
from tacit.compiling import compiled_once
from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference.compilation import Compiled, step_key, step_on_table
from tacit.inference.half_precision import Recording, retained_layout
from tacit.inference.method import Kernel
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.cost import Cost, event_from_json, event_to_json
from tacit.privacy.statement.text import ARITHMETIC
from tacit.privacy.stopping import Declared, declared_from_json, declared_to_json
from tacit.processes import num_processes, translating_lost_workers
from tacit.rng import seeded_key
from tacit.state_file import StateFile, state_file_of
from tacit.tables import OnHost
from tacit.tables.base import Batch, Table
from tacit.tables.distributed import CHAINS, at_home, cut_of, everywhere, largest_share
from tacit.tables.on_host import DrawnInLoopError, Fetched, Recorder, fetch
from tacit.typing import Array, Key, Record, Tree

__all__ = [
    "Chains",
    "Checkpoint",
    "Feed",
    "OnProgress",
    "ProgressBar",
    "chunks_between",
    "feed_of",
    "load_checkpoint",
    "require_shared_chains",
    "save_checkpoint",
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
        recording: Recording | None = None,
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
          recording: where states are kept, and those from before are already; None for memory.
          mesh: the devices that share the table; None for one device.
        """
        kernel, self._advance = compiled
        self._kept_steps, self._mesh = set(kept_steps), mesh

        @compiled_once
        def start(key: Key) -> tuple[Key, Tree]:
            init_key, run_key = jax.random.split(key)
            begun = None
            if states is None:
                begun = jax.vmap(kernel.init)(jax.random.split(init_key, num_chains))
            return jax.random.split(run_key, num_chains), begun

        self.keys, begun = start(key)
        self._states: Tree = begun if states is None else states
        if mesh is not None:
            # The leading axis counts chains.
            self._states = everywhere(
                self._states, mesh, lambda leaf: P(None, *cut_of(leaf.shape[1:], mesh))
            )
        self._at_home, self._recording = None, recording
        self._kept = [] if retained is None else [retained]
        if recording is not None:
            self._kept = [(None, info) for _, info in self._kept]
        self._emitted: list[tuple[Tree, list[int]]] = []

    @property
    def states(self) -> Tree:
        """The states now, on this process's own device."""
        if self._at_home is None:
            self._at_home = self._own(self._states)
        return self._at_home

    @property
    def retained(self) -> tuple[Tree, Tree]:
        """What was kept so far, and the infos, each as one tree; None before the first."""
        # On the host: JAX would compile a concatenation for each number of states.
        self._kept += [
            jax.tree.map(lambda leaf, at=wanted: np.asarray(leaf)[:, at], emitted)
            for emitted, wanted in self._emitted
        ]
        self._emitted = []
        if not self._kept:
            return None, None
        joined = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=1), *self._kept)
        self._kept = [jax.device_put(joined) if self._recording is None else joined]
        states, info = self._kept[0]
        return (states if self._recording is None else self._recording.states), info

    def take_on(self, table: Tree, boundaries: list[int]) -> None:
        """Takes all chains from the first boundary to the last, and keeps what the plan says."""
        before, *ends = boundaries
        with translating_lost_workers(after_step=before):
            between: Any = np.asarray(boundaries, np.int32)  # making one of JAX compiles a program
            self._states, emitted = self._advance(self.keys, self._states, table, between)
            self._at_home = None
            if num_processes() > 1:  # what is cut among processes is gathered by all of them
                self._at_home = jax.block_until_ready(self._own(self._states))
            own = self._own(emitted)
        wanted = [ends.index(step) for step in sorted(self._kept_steps.intersection(ends))]
        if wanted:
            states, info = own
            if self._recording is not None:
                states, info = jax.device_get((states, info))
                self._recording.add(states, wanted)
                states = None
            # Looked at later: what was just dispatched is not known yet.
            self._emitted.append(((states, info), wanted))

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


class OnProgress(Protocol):
    """Is told how far a run is; all of it is public."""

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Is called after each chunk with steps made, steps planned and epsilon spent so far."""
        ...


class ProgressBar:
    """A bar in the terminal or the notebook.

    Example:
      >>> with ProgressBar("DP-SGLD") as bar:  # doctest: +SKIP
      ...     fit(plan, model, records, budget=budget, progress=bar)
    """

    def __init__(self, description: str = "fit", *, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(description, total=None, epsilon="0")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Moves the bar."""
        text = "infinity" if math.isinf(epsilon) else round_up(epsilon)
        self._bar.update(self._task, completed=step, total=num_steps, epsilon=text)


class Checkpoint(NamedTuple):
    """A run after ``step`` steps. A resumed run draws a fresh key, so no noise is ever reused.

    What led to it goes with it, so that the statement of a resumed run counts all that was
    executed, whatever plan it is resumed under, and at least what was declared. Two runs resumed
    from one checkpoint are two sets of releases; a ledger counts both.

    Attributes:
      step: how many steps of every chain were made (and are paid for).
      states: the chains' states; leaves have a leading chain axis.
      kept: states retained so far, ``(num_chains, num_kept, ...)``; None before the first. On disk,
        members of a state are chains of their own, as in a posterior.
      info: mean `Info` of the steps just before each of them.
      cost: all that was executed to come here, with what the plan had spent before.
      run_id: what the ledger called the run; None where there was no ledger.
      declared: what the run was declared to be before its first step, which its statement is made
        of however early it ends; None where that is not known.
    """

    step: int
    states: Tree
    kept: Tree
    info: Tree
    cost: Cost
    run_id: str | None = None
    declared: Declared | None = None


def save_checkpoint(checkpoint: Checkpoint, directory: str | os.PathLike[str]) -> None:
    """Writes ``checkpoint.safetensors``, ``checkpoint.json`` and states that are on disk."""
    file = None if checkpoint.kept is None else state_file_of(checkpoint.kept)
    kept = checkpoint.kept if file is None else None
    arrays = _artefact.flatten(
        {"states": checkpoint.states, "kept": kept, "info": checkpoint.info}, prefix="checkpoint"
    )
    if file is not None:
        file.save(directory)
        arrays |= file.arrays()
    _artefact.write(
        directory,
        "checkpoint",
        arrays,
        {
            "step": checkpoint.step,
            "has_kept": checkpoint.kept is not None,
            "on_disk": None if file is None else file.to_json(),
            "cost": event_to_json(checkpoint.cost.event),
            "arithmetic": ARITHMETIC,
            "is_secure": checkpoint.cost.is_secure,
            "run_id": checkpoint.run_id,
            "declared": declared_to_json(checkpoint.declared),
        },
    )


def load_checkpoint(
    directory: str | os.PathLike[str],
    plan: Plan,
    model: Model,
    records: Record | Table,
) -> Checkpoint:
    """Reads a checkpoint of a run of ``plan``; of the records only the shapes are used.

    Raises:
      TacitError: where it is missing, damaged or of another plan, or where its steps were made in
        another arithmetic: the statement of the resumed run would not be true of them.
    """
    arrays, document = _artefact.read(directory, "checkpoint")
    if document.get("arithmetic") != ARITHMETIC:
        raise TacitError(
            f"the checkpoint in {directory} was made by a version of tacit with other noise. Resume"
            " it with that version, or begin anew."
        )
    kernel = plan.method.build(model)
    key = seeded_key(0)
    state = jax.eval_shape(kernel.init, key)
    _, info = jax.eval_shape(functools.partial(step_on_table, kernel), key, state, records)

    def read(template: Tree, name: str, *rest: None) -> Tree:
        prefix, leading = f"checkpoint['{name}']", (plan.num_chains, *rest)
        return _artefact.unflatten(arrays, template, prefix=prefix, leading=leading)

    kept, stored = None, document.get("on_disk")
    if stored is not None:
        template = retained_layout(kernel, plan.num_chains).template
        kept = StateFile.open(directory, stored, template, arrays).states
    elif document["has_kept"]:
        kept = read(jax.eval_shape(kernel.retain, state), "kept", None)
    return Checkpoint(
        step=document["step"],
        states=read(state, "states"),
        kept=kept,
        info=None if kept is None else read(info, "info", None),
        cost=Cost(event_from_json(document["cost"]), is_secure=document["is_secure"]),
        run_id=document["run_id"],
        # Earlier versions did not write it.
        declared=declared_from_json(document.get("declared")),
    )
