"""Refits: telling a user what several fits of the same records cost together.

A search or a cross-validation fits many times, on parts of one table that overlap, and each fit has
a statement of its own. Where a ledger is charged, that is counted; where none is, all that can be
done is to notice, within one process, and to say so.
"""

import secrets
import warnings
from dataclasses import dataclass

import numpy as np
import pandas as pd
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.errors import PrivacyWarning
from tacit.privacy.accounting import RDP, round_up
from tacit.privacy.events import composed

__all__ = ["forget_fits", "warn_of_refits"]

_SKETCH = 2048
_OVERLAP = 0.1
_SALT = secrets.token_hex(8)


@dataclass(frozen=True)
class _Seen:
    """A fit: its smallest row hashes, below a limit that depends on how many rows there were."""

    hashes: NDArray[np.uint64]
    limit: np.uint64
    cost: DpEvent


_seen: list[_Seen] = []


def forget_fits() -> None:
    """Forgets all fits of this process; for tests, and for data that are public."""
    _seen.clear()


def warn_of_refits(frame: pd.DataFrame, cost: DpEvent, *, delta: float) -> None:
    """Remembers a fit, and warns when earlier ones shared a tenth of its rows.

    Guarantee:
      None: it reads rows to warn their owner, keeps hashes under a secret salt in memory, and
      notices nothing across processes. The warning is not for publication. Epsilon is that of all
      fits which share rows, by Rényi divergences, which permit choosing a fit after seeing others.

    Args:
      frame: inputs and target.
      cost: what the fit is about to spend.
      delta: at which epsilon is reported.
    """
    now = _sketch(frame, cost)
    earlier = [fit for fit in _seen if _overlap(now, fit) >= _OVERLAP]
    _seen.append(now)
    if not earlier:
        return
    total = RDP().epsilon(composed(*(fit.cost for fit in earlier), cost), delta=delta)
    warnings.warn(
        f"this is fit number {len(earlier) + 1} on many of the same records in this process, and"
        f" every fit costs: together epsilon {round_up(total)} at delta {delta:g} for a record that"
        " is in all of them. What `privacy_` says is for this fit alone. Pass ledger= to count"
        " and limit them, or use tacit.estimators.tune instead of a search.",
        PrivacyWarning,
        stacklevel=4,
    )


def _sketch(frame: pd.DataFrame, cost: DpEvent) -> _Seen:
    rows = pd.util.hash_pandas_object(frame, index=False, hash_key=_SALT)
    hashes: NDArray[np.uint64] = np.unique(np.asarray(rows, np.uint64))
    if len(hashes) <= _SKETCH:
        return _Seen(hashes, np.uint64(2**64 - 1), cost)
    return _Seen(hashes[:_SKETCH], hashes[_SKETCH - 1], cost)


def _overlap(now: _Seen, before: _Seen) -> float:
    """Returns which part of the rows was there before, estimated from hashes both would keep."""
    limit = min(now.limit, before.limit)
    comparable = now.hashes[now.hashes <= limit]
    return float(np.isin(comparable, before.hashes).mean()) if len(comparable) else 0.0
