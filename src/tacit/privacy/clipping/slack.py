"""Slack: counting records by the norm of their contribution, in the room that the clip leaves.

A contribution whose norm ``r`` is below the clip norm ``C`` leaves room: it may be extended by one
more number of size up to ``sqrt(C**2 - r**2)`` and still has norm at most ``C``. So each record
adds a fixed height to one of a few counters, the one for the bin that its norm lies in:

    h_k = sqrt(1 - e_k**2) C        where  e_{k-1} C < r <= e_k C,   0 = e_0 < e_1 < ... < e_K < 1

The contribution itself is unchanged, ``sqrt(r**2 + h_k**2) <= C``, and the counters are more
coordinates of the same clipped sum: same clip, same noise, same event. Their noisy sums are a
histogram of the norms. A record that is clipped has no room and is in no counter, so what is
missing from the counters bounds the share of the records that were clipped.

In the machine's arithmetic: bins are decided by the proven upper bound on the norm that clips the
record, compared with edges that are rounded down; both are computed once, so that a record at an
edge is in one bin only. Heights are whole numbers of lattice units,
rounded down, so counters add up without any rounding, and the sensitivity of the sum is what
`tacit.privacy.lattice` says of contributions alone. A record whose contribution is zero is in no
counter: a record that weighs nothing leaves no trace.

Reference:
  Zou et al., "SlaClip: gradient norm slacks can be indicator for adaptive clipping in DP-SGD"
  (2026), for slack that is released within the clip. Counters of bins are ours.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from tacit.privacy.lattice import Lattice, materialised
from tacit.typing import Array, Scalar, Tree

__all__ = ["EDGES", "Counted", "NormHistogram", "counted", "heights_on"]

EDGES = (0.25, 0.5, 0.75, 0.96875)
"""The upper ends of the bins, in clip norms. The higher the last one, the less of what is not
clipped is missing from the counters, and the more noise its counter has: here four times that of a
counter at zero."""

_ONE_SIDED_95 = 1.645
"""Standard errors: a normal number exceeds its mean by more with a probability of 5 %."""

_ROUNDED_DOWN = 1 - 2.0**-20
"""More than the few float32 roundings of an edge, and of the root in a norm, can take away."""


def heights_on(lattice: Lattice) -> tuple[int, ...]:
    """Returns what a record adds to the counter of its bin, in lattice units.

    Example:
      >>> heights_on(Lattice(rounding=1.0))
      (253818, 227022, 173391, 65021)
    """
    whole = lattice.share * 2**lattice.exponent
    return tuple(math.floor(math.sqrt(1 - edge**2) * whole) for edge in EDGES)


def counted(
    norm: Array, keep: Array, *, clip_norm: float | Scalar, heights: tuple[int, ...]
) -> Array:
    """Returns what records add to the counters, ``(..., len(heights))``: at most one height each.

    Args:
      norm: computed upper bounds on the norms of the records' contributions, up to one rounding.
      keep: which rows are records.
      clip_norm: what contributions are clipped to.
      heights: from `heights_on`, or none.

    Example:
      >>> norms, keep = jnp.array([0.0, 0.1, 0.6, 0.99, jnp.inf]), jnp.ones(5, bool)
      >>> print(counted(norms, keep, clip_norm=1.0, heights=(9, 8, 6, 2)))
      [[0. 0. 0. 0.]
       [9. 0. 0. 0.]
       [0. 0. 6. 0.]
       [0. 0. 0. 0.]
       [0. 0. 0. 0.]]
    """
    if not heights:
        return jnp.zeros((*norm.shape, 0))
    # Neighbouring bins must compare the same numbers, or a record at an edge could be in both.
    norm, ends = materialised((norm, clip_norm * jnp.asarray((0.0, *EDGES)) * _ROUNDED_DOWN))
    is_in_bin = (norm[..., None] > ends[:-1]) & (norm[..., None] <= ends[1:])
    return jnp.where(keep[..., None] & is_in_bin, jnp.asarray(heights, jnp.float32), 0.0)


class Counted(NamedTuple):
    """A release, and how its clip met the records; all of it may be published.

    Attributes:
      estimate: of the sum over all records.
      shares: noisy shares of all records, one for each of `EDGES`: those whose norm is at most so
        many clip norms, and more than the edge before. Records that are clipped, or nearly, are in
        none, nor are those that contribute nothing. Empty without noise, and for rules other than
        `Flat`.
      variances: of the noise on each share; public.
    """

    estimate: Tree
    shares: Array
    variances: Array


@dataclass(frozen=True, kw_only=True)
class NormHistogram:
    """How large the contributions of records were beside the clip norm, as the run released it.

    Post-processing of noisy sums, and as public as they are.

    Attributes:
      shares: of all records, one for each of `EDGES`: those whose norm is at most so many clip
        norms, and more than the edge before. Noisy, so some may be negative.
      errors: standard errors, from the privacy noise and from the batches.
      clipped: the share that is in no bin: records that were clipped, or had more than 97 % of the
        clip norm, or contributed nothing at all.
      clipped_error: its standard error.
    """

    shares: tuple[float, ...]
    errors: tuple[float, ...]
    clipped: float
    clipped_error: float

    @classmethod
    def of(cls, shares: ArrayLike, variances: ArrayLike, *, batch_noise: float) -> Self:
        """Returns the histogram of averaged shares.

        Args:
          shares: averages of noisy ones.
          variances: of their noise.
          batch_noise: the variance that batches give to an average share of one.

        Example:
          >>> found = NormHistogram.of([0.2, 0.4, 0.3, 0.09], [1e-6] * 4, batch_noise=0.0)
          >>> f"{found.clipped:.3f}, at most {found.at_most:.3f}"
          '0.010, at most 0.013'
        """
        found, noise = np.asarray(shares, np.float64), np.asarray(variances, np.float64)
        errors = np.sqrt(noise + batch_noise * np.maximum(found, 0))
        total = float(found.sum())
        return cls(
            shares=tuple(map(float, found)),
            errors=tuple(map(float, errors)),
            clipped=1 - total,
            clipped_error=math.sqrt(float(noise.sum()) + batch_noise * max(total, 0.0)),
        )

    @property
    def at_most(self) -> float:
        """At most this share of the records was clipped, with 95 % confidence."""
        return float(np.clip(self.clipped + _ONE_SIDED_95 * self.clipped_error, 0.0, 1.0))

    @property
    def at_least(self) -> float:
        """At least this share was clipped, likewise, as far as records just below the clip tell.

        Records between the last edge and the clip norm are in no bin and are not clipped; they are
        taken to be as dense as those of the last bin.
        """
        unclipped = max(self.shares[-1], 0.0) * (1 - EDGES[-1]) / (EDGES[-1] - EDGES[-2])
        low = self.clipped - unclipped - _ONE_SIDED_95 * self.clipped_error
        return float(np.clip(low, 0.0, 1.0))

    def quantile(self, share: float) -> float:
        """Returns the norm, in clip norms, that this share of the records does not exceed.

        Infinite where more are clipped; linear within a bin.

        Example:
          >>> NormHistogram.of([0.2, 0.4, 0.3, 0.09], [0.0] * 4, batch_noise=0.0).quantile(0.4)
          0.375
        """
        total, start = 0.0, 0.0
        for edge, own in zip(EDGES, self.shares, strict=True):
            if own > 0 and total + own >= share:
                return start + (edge - start) * (share - total) / own
            total, start = total + max(own, 0.0), edge
        return math.inf

    def to_json(self) -> dict[str, Any]:
        """Returns the numbers for a document, with the bound that the statement prints."""
        return {
            "edges": list(EDGES),
            "shares": list(self.shares),
            "errors": list(self.errors),
            "clipped": self.clipped,
            "clipped_error": self.clipped_error,
            "at_most": self.at_most,
        }
