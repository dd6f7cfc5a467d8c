"""Feeding: gives a run its table, chunk by chunk, and reads ahead where it is on the host."""

import math
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp

from tacit import _tree
from tacit.inference.base import Kernel
from tacit.inference.compiled import step_key
from tacit.rng import seeded_key
from tacit.tables import (
    Batch,
    DrawnInLoopError,
    Fetched,
    OnHost,
    Recorder,
    as_table,
    fetch,
    largest_share,
)
from tacit.typing import Array, Key, Tree

__all__ = ["Feed", "feed_of"]

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

    record = as_table(records).record
    row_bytes = sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(record)) + 8
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
        kernel.step(key, nothing, recorder)  # type: ignore[arg-type]
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
