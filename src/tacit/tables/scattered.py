"""A sum that lies in slices on the devices of a mesh, until its noise is on it.

A sum over shards ends in an all-reduce, which is a reduce-scatter and an all-gather. Between the
two each device holds one slice of the whole sum and nobody holds all of it: that is where noise is
added, to each number once, by the one device that holds it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import lax
from jax.flatten_util import ravel_pytree

from tacit.typing import Array, Tree

__all__ = ["NUM_ROWS", "RECORDS", "Scattered", "scattered_sum"]

RECORDS = "records"
"""The axis of a mesh over which a table is spread."""

NUM_ROWS = 4
"""Noise is made in four rows, so the numbers of a sum are laid out in as many."""


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """A device's slice of a sum, on each device of the axis another.

    Attributes:
      own: the slice, some columns of the sum's numbers, which are laid out row after row in an
        array of four rows and filled up to a multiple of the number of devices.
      size: how many numbers the whole sum has.
      unravel: makes the tree of a vector of them.
    """

    own: Array
    size: int
    unravel: Callable[[Array], Tree]

    @property
    def num_columns(self) -> int:
        """Of the whole sum."""
        return -(-self.size // NUM_ROWS)

    @property
    def first_column(self) -> Array:
        """Of this device's slice."""
        return lax.axis_index(RECORDS) * self.own.shape[1]

    def with_own(self, own: Array) -> "Scattered":
        """Returns the sum with this slice for its own."""
        return replace(self, own=own)

    def gathered(self) -> Tree:
        """Returns the sum, whole on every device."""
        whole = lax.all_gather(self.own, RECORDS, axis=1, tiled=True)
        return self.unravel(whole[:, : self.num_columns].reshape(-1)[: self.size])


def scattered_sum(part: Tree) -> Scattered:
    """Returns the sum of all devices' parts; to be called inside of a map over the axis."""
    vector, unravel = ravel_pytree(part)
    rows = jnp.pad(vector, (0, -len(vector) % NUM_ROWS)).reshape(NUM_ROWS, -1)
    rows = jnp.pad(rows, ((0, 0), (0, -rows.shape[1] % lax.axis_size(RECORDS))))
    own = lax.psum_scatter(rows, RECORDS, scatter_dimension=1, tiled=True)
    return Scattered(own=own, size=len(vector), unravel=unravel)
