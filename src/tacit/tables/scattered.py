"""A sum that lies in slices on the devices of a mesh, until its noise is on it.

A sum over shards ends in an all-reduce, which is a reduce-scatter and an all-gather. Between the
two each device holds one slice of the whole sum and nobody holds all of it: that is where noise is
added, to each number once, by the one device that holds it.
"""

from dataclasses import dataclass, replace

import jax.numpy as jnp
from jax import lax

from tacit.typing import Array

__all__ = ["RECORDS", "Scattered", "in_rows", "out_of_rows", "scattered_sum"]

RECORDS = "records"
"""The axis of a mesh over which a table is spread."""

_NUM_ROWS = 2
"""Noise is made in pairs, so the numbers of a sum are laid out in two rows."""


@dataclass(frozen=True, kw_only=True)
class Scattered:
    """A device's slice of a sum, on each device of the axis another.

    Attributes:
      own: the slice, ``(num_limbs, 2, length)``: some columns of the sum's numbers, which are laid
        out row after row and filled up to a multiple of the number of devices.
      size: how many numbers the whole sum has.
    """

    own: Array
    size: int

    @property
    def first_column(self) -> Array:
        """Of this device's slice."""
        return lax.axis_index(RECORDS) * self.own.shape[-1]

    def with_own(self, own: Array) -> "Scattered":
        """Returns the sum with this slice for its own."""
        return replace(self, own=own)

    def gathered(self) -> Array:
        """Returns the sum, ``(num_limbs, size)``, whole on every device."""
        whole = lax.all_gather(self.own, RECORDS, axis=-1, tiled=True)
        return out_of_rows(whole, self.size)


def in_rows(total: Array) -> Array:
    """Lays out ``(num_limbs, size)`` numbers as ``(num_limbs, 2, num_columns)``."""
    num_limbs, size = total.shape
    return jnp.pad(total, ((0, 0), (0, -size % _NUM_ROWS))).reshape(num_limbs, _NUM_ROWS, -1)


def out_of_rows(rows: Array, size: int) -> Array:
    """Returns what `in_rows` laid out; further columns are ignored."""
    return rows[..., : -(-size // _NUM_ROWS)].reshape(len(rows), -1)[:, :size]


def scattered_sum(part: Array) -> Scattered:
    """Returns the sum of all devices' parts; to be called inside of a map over the axis."""
    rows = in_rows(part)
    rows = jnp.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[-1] % lax.axis_size(RECORDS))))
    own = lax.psum_scatter(rows, RECORDS, scatter_dimension=2, tiled=True)
    return Scattered(own=own, size=part.shape[1])
