"""The privacy loss distribution of a whole cost, on a grid that fits into memory."""

from functools import lru_cache

from tacit.privacy import _losses, _rules
from tacit.privacy._losses import LossDistribution
from tacit.privacy._releases import Counts, Release, Sampling
from tacit.privacy.adjacency import Adjacency

__all__ = ["compose_losses"]

_COARSEST = 1.0
"""Beyond this grid interval the distribution says no more than bounds in closed form."""


@lru_cache(maxsize=64)
def compose_losses(
    counts: Counts, adjacency: Adjacency, interval: float
) -> tuple[LossDistribution, ...]:
    """The loss distribution of all releases together, in each direction of the adjacency.

    The grid is coarsened, pessimistically, until it fits; the result is empty if none does.
    """
    merged = _merge_full_batches(counts)
    while interval <= _COARSEST:
        try:
            parts = [(_one_release(r, adjacency, interval), count) for r, count in merged]
            num_directions = max(len(directions) for directions, _ in parts)
            return tuple(
                # A release with one distribution has the same in both directions.
                _losses.compose([(d[i % len(d)], count) for d, count in parts])
                for i in range(num_directions)
            )
        except _losses.TooWideError as error:
            interval *= error.factor
    return ()


@lru_cache(maxsize=1024)
def _one_release(
    release: Release, adjacency: Adjacency, interval: float
) -> tuple[LossDistribution, ...]:
    pairs = _rules.look_up(_rules.PLD, release, adjacency, "PLD")(release)
    return tuple(_losses.discretise(pair, interval) for pair in pairs)


def _merge_full_batches(counts: Counts) -> Counts:
    """Replaces all Gaussians on the full batch by the one that tells exactly as much."""
    full = [(r.noise_multiplier, c) for r, c in counts if r.sampling is Sampling.FULL]
    rest = tuple((r, c) for r, c in counts if r.sampling is not Sampling.FULL)
    if not full:
        return rest
    noise = sum(count / s**2 for s, count in full) ** -0.5
    return (*rest, (Release(sampling=Sampling.FULL, noise_multiplier=noise), 1))
