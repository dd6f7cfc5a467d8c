"""Timing on a machine that does other things too: interleaved repetitions, minimum of many.

Whatever else runs can only add time, so the minimum is the figure. Every candidate is visited
in every round, so that a slow minute falls on all of them and not on one.
"""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Effort", "Times", "Visit", "interleave", "repeat"]

Visit: TypeAlias = Callable[[float], list[float]]
"""Runs something, once or for as many seconds as given, and returns the milliseconds of each run;
none if it cannot run any more. Runs that are timed together have their mean each."""


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much is measured.

    Attributes:
      rounds: how often every candidate is visited.
      visit_seconds: how long a visit repeats a run that is shorter.
      min_rounds: the same for a candidate whose runs are long, ...
      max_seconds: ... that is, which has taken so long in all; after five times as long it is not
        visited again at all.
    """

    rounds: int
    visit_seconds: float
    min_rounds: int
    max_seconds: float

    def goes_on(self, times: list[float], *, done: int) -> bool:
        """Whether a candidate with these times is visited after so many rounds."""
        seconds = sum(times) / 1e3
        limit = 5 * self.max_seconds if done < self.min_rounds else self.max_seconds
        return not times or seconds < limit


@dataclass(frozen=True)
class Times:
    """The milliseconds of all runs of one candidate."""

    runs: list[float]

    @property
    def best(self) -> float:
        """The figure."""
        return min(self.runs)

    @property
    def median(self) -> float:
        """How far the machine was from quiet, beside the best."""
        return statistics.median(self.runs)


def repeat(run: Callable[[], None]) -> Visit:
    """Returns the visit that calls ``run``, which must not return before its work is done."""

    def visit(seconds: float) -> list[float]:
        times: list[float] = []
        while sum(times) < 1e3 * seconds or not times:
            start = time.perf_counter()
            run()
            times.append(1e3 * (time.perf_counter() - start))
        return times

    return visit


def interleave(candidates: Mapping[str, Visit], effort: Effort) -> dict[str, Times]:
    """Visits the candidates in turn, again and again, after one run each to warm up.

    A candidate that could never run is missing from the result.
    """
    first = {name: visit(0.0) for name, visit in candidates.items()}
    able = {name: candidates[name] for name, runs in first.items() if runs}
    times: dict[str, list[float]] = {name: [] for name in able}
    for done in range(effort.rounds):
        for name, visit in able.items():
            if effort.goes_on(times[name], done=done):
                times[name] += visit(effort.visit_seconds)
    # The first run is all there is of a candidate that ended right after it.
    return {name: Times(runs or first[name]) for name, runs in times.items()}
