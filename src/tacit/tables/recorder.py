"""A table that tells what a step will draw."""

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from tacit.tables.base import Batch, ClippedSum, shapes_of_sum
from tacit.tables.on_host import OnHost
from tacit.typing import Key, Tree

__all__ = ["DrawnInLoopError", "Recorder"]


class DrawnInLoopError(Exception):
    """A step draws inside of a loop or a branch, so what it draws cannot be told beforehand."""


class Recorder:
    """A table that notes which batches it is asked for, and has nothing in it.

    Batches are drawn from keys and never from states or records, so a step that runs on this table
    tells what it would draw; the compiler leaves out all else.
    """

    def __init__(self, table: OnHost) -> None:
        self.num_records, self.record = table.num_records, table.record
        self.batches: list[Batch] = []
        self.rates: list[float] = []
        self._trace = get_opaque_trace_state()

    def clipped_sum(self, batch: Batch, key: Key, clipped_sum: ClippedSum, *, rate: float) -> Tree:
        """Notes the batch; the sum is zero."""
        if get_opaque_trace_state() != self._trace:
            raise DrawnInLoopError
        self.batches.append(batch)
        self.rates.append(rate)
        shapes = shapes_of_sum(self.record, len(batch.indices), key, clipped_sum)
        return jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
