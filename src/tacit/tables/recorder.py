"""A table that tells what a step will draw."""

import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state

from tacit.tables.base import Batch, ClippedSum, Keys, shape_of_sum
from tacit.tables.on_host import OnHost
from tacit.typing import Array

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
        self.division = table.division
        self.batches: list[Batch] = []
        self.rates: list[float] = []
        self._trace = get_opaque_trace_state()

    def clipped_sum(
        self, batch: Batch, keys: Keys, clipped_sum: ClippedSum, *, rate: float
    ) -> tuple[Array, Array]:
        """Notes the batch; the sum is zero."""
        if get_opaque_trace_state() != self._trace:
            raise DrawnInLoopError
        self.batches.append(batch)
        self.rates.append(rate)
        shape = shape_of_sum(self.record, len(batch.indices), keys.record, clipped_sum)
        return jnp.zeros(shape.shape, shape.dtype), jnp.ones((), bool)
