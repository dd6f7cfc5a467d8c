"""How much of a batch a shard has room for at once."""

import functools

from scipy import stats

__all__ = ["room_in_shard"]

_TOO_SMALL = 1e-9


@functools.lru_cache(maxsize=64)
def room_in_shard(num_rows: int, rate: float) -> int:
    """Returns a number of rows that a shard owns more than of a batch once in 1e9 draws.

    It is a matter of time and memory only: what does not fit is summed in another turn.

    Args:
      num_rows: of the shard.
      rate: the chance that a given record is drawn.

    Example:
      >>> room_in_shard(15_000, 256 / 60_000)
      117
    """
    if rate >= 1:
        return num_rows
    return min(num_rows, max(1, int(stats.binom.isf(_TOO_SMALL, num_rows, rate))))
