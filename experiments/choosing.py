"""Choices made on public stand-ins: the settings whose runs scored best there."""

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable

from experiments.cells import Row, Settings

__all__ = ["winner"]


def winner(rows: Iterable[Row], score: Callable[[Row], float]) -> Settings:
    """Returns the settings with the highest mean of a score over their runs.

    Args:
      rows: measured on a stand-in, at least one.
      score: of one run; for an error, its negative.
    """
    scores: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        scores[json.dumps(row["settings"])].append(score(row))
    best = max(scores, key=lambda settings: statistics.mean(scores[settings]))
    found: Settings = json.loads(best)
    return found
