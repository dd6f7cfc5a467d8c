"""Adding contributions up, as integers on the lattice or as floats."""

from dataclasses import dataclass, replace

import jax.numpy as jnp

from tacit import native
from tacit.privacy.lattice import LIMB_BITS
from tacit.typing import Array, Scalar

__all__ = ["Adding"]


@dataclass(frozen=True, kw_only=True)
class Adding:
    """How the contributions of records, or of blocks of them, are added up.

    Guarantee:
      With limbs, every contribution is rounded to an integer by itself and integers are added, so
      the sum does not depend on their order, and one contribution moves it by nothing but itself.

    Attributes:
      units: how many lattice units one is; contributions are multiplied by it.
      num_limbs: how many integers hold a number of the sum, low ones first; None adds floats, for
        sums without noise, which promise nothing.
      heights: what a record adds to the counter of its norm, in lattice units, from
        `tacit.privacy.clipping.slack`; none where norms are not counted, as by rules other than
        `Flat`.
    """

    units: float | Scalar = 1.0
    num_limbs: int | None = None
    heights: tuple[int, ...] = ()

    @property
    def is_exact(self) -> bool:
        """Whether the sum is made of integers."""
        return self.num_limbs is not None

    def total(self, values: Array) -> Array:
        """Returns the sum over the first axis: ``(num_limbs, ...)``, or ``(1, ...)`` of floats."""
        if self.num_limbs is None:
            return values.sum(0, keepdims=True)
        return jnp.stack([limb.sum(0, dtype=jnp.int32) for limb in self._limbs(values)])

    def weighted_total(self, values: Array, weights: Array) -> Array:
        """Returns the sum of values times weights, one for each record, likewise.

        A record whose weight is zero is left out, whatever its values are.
        """
        flat = values.reshape(len(values), -1)
        if not (self.is_exact and flat.dtype == jnp.float32 and flat.size and native.is_loaded()):
            return self._weighted_in_jax(values, weights)
        (num_records, num_columns), num_limbs = flat.shape, self.num_limbs or 1
        (total,) = native.call(
            "tacit_rounded_sum",
            replace(self, units=1.0)._weighted_in_jax,
            flat,
            weights,
            results=(((num_limbs, num_columns), jnp.int32),),
            attributes={"num_records": num_records, "num_limbs": num_limbs},
            static={},
        )
        return total.reshape(num_limbs, *values.shape[1:])

    def _weighted_in_jax(self, values: Array, weights: Array) -> Array:
        along = weights.reshape(-1, *(1 for _ in values.shape[1:]))
        # A product with zero would let a NaN through; a selection does not.
        return self.total(jnp.where(along > 0, values * along, 0.0))

    def scattered(self, values: Array, rows: Array, *, num_rows: int) -> Array:
        """Returns a table with values ``(batch, position, feature)`` added to rows, likewise."""
        nothing = (num_rows, values.shape[-1])
        if self.num_limbs is None:
            return jnp.zeros((1, *nothing), values.dtype).at[0, rows].add(values, mode="drop")
        limbs = self._limbs(values)
        tables = [jnp.zeros(nothing, jnp.int32).at[rows].add(limb, mode="drop") for limb in limbs]
        return jnp.stack(tables)

    def carried(self, total: Array) -> Array:
        """Returns a sum with what the low limb has too much in the high one."""
        if self.num_limbs != 2:
            return total
        low, high = total
        return jnp.stack([low & (2**LIMB_BITS - 1), high + (low >> LIMB_BITS)])

    def largest_chunk(self, chunk_size: int | None, *, positions: int = 1) -> int | None:
        """Returns how many records may be added before limbs are carried; None for all.

        Args:
          chunk_size: how many were asked for; None for all.
          positions: how many times a record may add to one number.
        """
        if self.num_limbs != 2:
            return chunk_size
        most = max(1, 2 ** (30 - LIMB_BITS) // positions)
        return most if chunk_size is None else min(chunk_size, most)

    def _limbs(self, values: Array) -> list[Array]:
        whole = jnp.round(values).astype(jnp.int32)
        if self.num_limbs == 1:
            return [whole]
        return [whole & (2**LIMB_BITS - 1), whole >> LIMB_BITS]
