"""Contributions: how a batch's gradients for one parameter are bounded, and how they are summed."""

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import squared_norms
from tacit.privacy.clipping.rules import Lookup, Read
from tacit.privacy.lattice import block_rows, largest_spread, materialised, num_blocks
from tacit.typing import Array

__all__ = ["Contribution", "Formed", "InBlocks", "LookedUp", "Unused", "Way", "best_chunk_size"]

_MAX_FORMED, _MAX_HELD = 2**26, 2**28
"""How many numbers may be formed at once, 256 MB in float32, and how many operands and cotangents
may be held; more is done in chunks."""

_IN_CACHE, _LEAST_ROWS = 2**22, 64
"""With at most so many numbers, 16 MB, a chunk stays in a processor's cache, which can halve the
time of a step. Chunks with fewer rows would spend theirs on adding up sums."""


class Way(NamedTuple):
    """How one leaf's gradients are clipped and summed; known from shapes.

    Attributes:
      words: the same for people.
      num_formed: how many numbers are formed for each record.
      rounding: by how many lattice units rounding may move the leaf's sum.
      positions: how many positions of a record add up in float32; None where records are rounded
        one by one.
      num_reads: how many functions of the leaf are read.
      num_looked_up: how many numbers a record may add to one of the leaf's.
    """

    words: str
    num_formed: int
    rounding: float
    positions: int | None = None
    num_reads: int = 1
    num_looked_up: int = 1


class Contribution(Protocol):
    """What a batch of records adds to the gradient of one leaf.

    Attributes:
      squared: an upper bound on the squared norm of each record's gradient.
      spread: one on its squared spread over the square of kappa; None where that cannot exceed it.
    """

    squared: Array
    spread: Array | None

    @property
    def way(self) -> Way:
        """How it is clipped and summed."""
        ...

    def total(self, weights: Array, adding: Adding) -> Array:
        """Returns the sum of the records' gradients times weights, with a first axis of limbs."""
        ...


class Unused:
    """A leaf that the loss does not read."""

    spread: Array | None = None

    def __init__(self, shape: tuple[int, ...], num_records: int, dtype: Any) -> None:
        self.shape, self.dtype = shape, dtype
        self.squared = jnp.zeros(num_records)
        self.way = Way("not used by the loss", 0, 0.0)

    def total(self, weights: Array, adding: Adding) -> Array:
        """Returns zeros."""
        del weights
        return adding.total(jnp.zeros((1, *self.shape), self.dtype))


class Formed:
    """Gradients that are held for each record, ``(batch, ...)`` in the order of a value."""

    spread: Array | None = None

    def __init__(
        self, formed: Array, back: Callable[[Array], Array], words: str, num_formed: int
    ) -> None:
        # Norm and sum must be those of the same floats.
        self.formed, self.back = materialised(formed), back
        self.squared = jax.vmap(squared_norms)(self.formed)
        # Only the record itself is rounded.
        self.way = Way(words, num_formed, 0.5 * math.sqrt(formed[0].size))

    def total(self, weights: Array, adding: Adding) -> Array:
        """Rounds each record's gradient by itself."""
        return self.back(adding.weighted_total(self.formed, weights))


class LookedUp:
    """Rows of a table that records read."""

    spread: Array | None = None

    def __init__(
        self,
        part: Lookup,
        weight: Array | None,
        shape: tuple[int, ...],
        back: Callable[[Array], Array],
        words: str,
    ) -> None:
        self.part, self.shape, self.back = part, shape, back
        self.cotangents = materialised(part.weighted(weight))
        self.squared = replace(part, cotangents=self.cotangents).squared_norm(None)
        _, positions, features = self.cotangents.shape
        rounding = 0.5 * positions * math.sqrt(features)
        self.way = Way(words, 0, rounding, num_looked_up=positions)

    def total(self, weights: Array, adding: Adding) -> Array:
        """Rounds each cotangent by itself and adds it to its row."""
        along = weights[:, None, None]
        values = jnp.where(along > 0, self.cotangents * along, 0.0)
        # Where nothing is looked up the row is beyond the table, and dropped.
        rows = jnp.where(self.part.rows < 0, self.shape[0], self.part.rows)
        table = adding.scattered(values, rows, num_rows=self.shape[0])
        return self.back(table.reshape(-1, *self.shape))


class InBlocks:
    """Matrix products, summed over blocks of records in float32."""

    def __init__(  # noqa: PLR0917
        self,
        reads: list[Read],
        squared: Array,
        spread: Array | None,
        sums: list[Callable[[Array, int], Array]],
        shape: tuple[int, ...],
        words: str,
    ) -> None:
        self.sums = sums
        self.positions = sum(read.part.num_positions for read in reads)
        self.squared, self.spread = squared, None
        if spread is not None:
            self.spread = spread / largest_spread(self.positions) ** 2
        self.way = Way(words, 0, math.sqrt(math.prod(shape)), self.positions, len(reads))

    def total(self, weights: Array, adding: Adding) -> Array:
        """Sums each block in float32, in the leaf's own space, and rounds it."""
        count = num_blocks(len(weights), self.positions) if adding.is_exact else 1
        sums = [of_read(weights, count) for of_read in self.sums]
        return adding.total(functools.reduce(jnp.add, sums))


def best_chunk_size(found: list[Way], held: int, *, length: int, has_loops: bool) -> int:
    """Returns how many records are looked at together; the least number of chunks, of equal size.

    Example:
      >>> best_chunk_size([Way("", 9_000, 0.0)], 24_000, length=1056, has_loops=False)
      118
    """
    formed = sum(way.num_formed for way in found)
    most = min(_MAX_FORMED // max(formed, 1), _MAX_HELD // max(held, 1))
    # Every chunk goes through all iterations of a loop, so there small chunks do not pay.
    if length * (formed + held) > _IN_CACHE and not has_loops:
        most = min(most, max(_LEAST_ROWS, _IN_CACHE // (formed + held)))
        if any(way.positions == 1 for way in found):  # one block is a plain product
            most = min(most, block_rows(1))
    return -(-length // -(-length // max(1, most)))
