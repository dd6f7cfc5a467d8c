"""Retained states leave a run for the disk while it goes on, in half precision."""

import contextlib
import hashlib
import itertools
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.method import Kernel
from tacit.metrics.scores import Floats
from tacit.metrics.uncertainty import (
    DrawMoments,
    classification_moments,
    merge_moments,
    regression_moments,
)
from tacit.models import Model
from tacit.models.base import Moments
from tacit.processes import num_processes
from tacit.rng import seeded_key
from tacit.rounding import Rounding, reference_of, restored, rounded
from tacit.state_file import (
    FILE_NAME,
    StateFile,
    StateLayout,
    partial_of,
    state_file_of,
    unwritable,
)
from tacit.typing import Array, Key, Record, Tree

__all__ = ["Recording", "retained_layout"]

_NUM_INPUTS = 64

_MOST_BYTES = 2**26
"""Of states that are on the device, waiting to be written."""

_Numbers = NDArray[Any]


class Recording:
    """The file that a run writes its retained states to, and what rounding them changes.

    Guarantee:
      Post-processing of released states. The predictions that are compared are of random inputs,
      of which only the shape is that of the records.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        kernel: Kernel,
        model: Model,
        record: Record,
        *,
        num_chains: int,
        num_rows: int,
        before: Tree = None,
    ) -> None:
        """Takes the disk space of all rows where the system can do so, before a record is read.

        Args:
          directory: for the file; one that is there stays until the first row is written.
          kernel: makes the states.
          model: which they are of.
          record: the shapes of one.
          num_chains: of the plan.
          num_rows: how often states will have been retained in all.
          before: the states that were retained before, on disk or in memory.
        """
        if num_processes() > 1:
            raise InvalidArgumentError(
                "half_precision must be left out where several processes share a run: one process"
                " alone writes the states. Retain fewer, by a larger thinning."
            )
        folder = Path(directory)
        _check.writable_directory(half_precision=folder)
        self._layout = retained_layout(kernel, num_chains)
        self._predict = _predictions(kernel, model, record, self._layout)
        self._path, self._digest, self._num_kept = folder / FILE_NAME, hashlib.sha256(), 0
        self._references: list[_Numbers | None] | None = None
        self._rounding: Rounding | None = None
        self._is_placed = False
        with contextlib.ExitStack() as stack:
            try:
                self._file = partial_of(self._path).open("wb")
                stack.callback(self.close)
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(self._file.fileno(), 0, self._layout.num_bytes(num_rows))
            except OSError as error:
                raise unwritable(self._path, error) from None
            if before is not None:
                self._take_over(before)
            stack.pop_all()

    def most_steps(self, kept_steps: Sequence[int]) -> int:
        """Returns how many steps may be made before their states leave the device, 64 MB or one.

        Args:
          kept_steps: after which states are retained.
        """
        leaves, num_chains = self._layout.leaves, self._layout.num_chains
        sizes = [math.prod(leaf.shape) * np.dtype(leaf.dtype).itemsize for leaf in leaves]
        between = min((b - a for a, b in itertools.pairwise(kept_steps)), default=kept_steps[-1])
        return between * max(1, _MOST_BYTES // max(1, num_chains * sum(sizes)))

    def add(self, states: Tree, rows: Sequence[int]) -> None:
        """Writes what all chains retained.

        Args:
          states: leaves are ``(num_chains, num_rows, ...)``, in the memory of the host.
          rows: which of them.
        """
        for row in rows:
            self._add([np.asarray(leaf[:, row]) for leaf in jax.tree.leaves(states)])

    def _add(self, states: list[_Numbers]) -> None:
        leaves = [
            leaf.reshape(self._layout.num_chains, *shape.shape)
            for leaf, shape in zip(states, self._layout.leaves, strict=True)
        ]
        if self._references is None:
            self._references = [
                None if block is None else reference_of(leaf)
                for leaf, block in zip(leaves, self._layout.references, strict=True)
            ]
            self._write(*(each for each in self._references if each is not None))
        found = []
        for leaf, reference in zip(leaves, self._references, strict=True):
            if reference is None:
                self._write(leaf)
                found.append(leaf)
            else:
                scales, halves = rounded(leaf, reference)
                self._write(scales, halves)
                ones = (1 for _ in leaf.shape[1:])
                found.append(restored(halves, scales.reshape(-1, *ones), reference))
        self._compare(leaves, found)
        self._num_kept += 1

    @property
    def states(self) -> Tree:
        """What was written so far, on disk for good; None before the first row."""
        if self._num_kept == 0:
            return None
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
            if not self._is_placed:
                partial_of(self._path).replace(self._path)
                self._is_placed = True
        except OSError as error:
            raise unwritable(self._path, error) from None
        return StateFile(
            self._path,
            self._layout,
            num_kept=self._num_kept,
            digest=self._digest.hexdigest(),
            rounding=self._rounding,
            is_checked=True,
        ).states

    def close(self) -> None:
        """Ends the writing; nothing stays of a file that has no row."""
        self._file.close()
        if not self._is_placed:
            partial_of(self._path).unlink(missing_ok=True)

    def _take_over(self, before: Tree) -> None:
        file = state_file_of(before)
        if file is None:
            self.add(before, range(jax.tree.leaves(before)[0].shape[1]))
            return
        if file.layout.description != self._layout.description:
            raise InvalidArgumentError(
                f"resume does not fit the plan and model: its retained states are"
                f" {file.layout.description}, where {self._layout.description} is wanted."
            )
        for piece in file.pieces():
            self._write(np.frombuffer(piece, np.uint8))
        self._num_kept, self._rounding = file.num_kept, file.rounding
        self._references = [
            None if block is None else np.array(file.reference(number))
            for number, block in enumerate(self._layout.references)
        ]

    def _compare(self, exact: list[_Numbers], near: list[_Numbers]) -> None:
        def predicted(leaves: list[_Numbers]) -> DrawMoments[Floats]:
            found = self._predict(jax.tree.unflatten(self._layout.treedef, leaves))
            return DrawMoments(*(np.asarray(leaf, np.float64) for leaf in found))

        both = Rounding(predicted(exact), predicted(near))
        if self._rounding is not None:
            both = Rounding(*map(merge_moments, self._rounding, both))
        self._rounding = both

    def _write(self, *arrays: _Numbers) -> None:
        try:
            for array in arrays:
                content = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
                self._file.write(content)
                self._digest.update(content)
        except OSError as error:
            raise unwritable(self._path, error) from None


def retained_layout(kernel: Kernel, num_chains: int) -> StateLayout:
    """Returns how a file holds what a kernel retains; members of a state are chains of their own.

    Args:
      kernel: of the method.
      num_chains: of the plan.
    """
    template = jax.eval_shape(lambda key: kernel.retain(kernel.init(key)), seeded_key(0))
    if kernel.num_members is None:
        return StateLayout(template, num_chains)
    return StateLayout(_tree.row_shapes(template), num_chains * kernel.num_members)


def _predictions(
    kernel: Kernel, model: Model, record: Record, layout: StateLayout
) -> Callable[[Tree], DrawMoments[Array]]:
    """Returns what all chains' states predict of random inputs, compiled once."""

    def made_up(shape: jax.ShapeDtypeStruct, key: Key) -> Array:
        # Of somebody with several rows, one.
        rest = shape.shape if record.mask is None else shape.shape[1:]
        if jnp.issubdtype(shape.dtype, jnp.floating):
            return jax.random.normal(key, (_NUM_INPUTS, *rest)).astype(shape.dtype)
        return jnp.ones((_NUM_INPUTS, *rest), shape.dtype)

    input_key, draw_key = jax.random.split(seeded_key(0))
    leaves, treedef = jax.tree.flatten(record.x)
    keys = jax.random.split(input_key, len(leaves))
    inputs = jax.tree.unflatten(treedef, [*map(made_up, leaves, keys)])

    def of_chain(state: Tree) -> Array | Moments:
        params = kernel.sampler.draw(draw_key, state)
        return jax.vmap(model.predict, in_axes=(None, 0, None))(params, inputs, draw_key)

    @jax.jit
    def of_all(states: Tree) -> DrawMoments[Array]:
        outputs = lax.map(of_chain, states)
        if isinstance(outputs, Moments):
            return regression_moments(outputs.mean, outputs.variance)
        return classification_moments(outputs)

    shapes = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((layout.num_chains, *leaf.shape), leaf.dtype),
        layout.template,
    )
    jax.eval_shape(of_all, shapes)  # what cannot be predicted is found out now
    return of_all
