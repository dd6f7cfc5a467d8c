"""Cells of a table: settings and a seed, measured once and kept as JSON."""

import argparse
import contextlib
import fcntl
import importlib.metadata
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from tacit.errors import PrivacyWarning, TacitError
from tacit.privacy.statement import Statement

__all__ = [
    "RESULTS",
    "Experiment",
    "Measured",
    "Row",
    "Settings",
    "main",
    "measure_missing",
    "read_rows",
    "run_quick",
]

RESULTS = Path(__file__).parent / "results"

Settings: TypeAlias = dict[str, Any]
"""What a cell is run with, as plain values."""

Row: TypeAlias = dict[str, Any]
"""A measured cell: settings, seed, scores, what the statement says, seconds, versions."""


class Measured(NamedTuple):
    """What one run gives.

    Attributes:
      scores: on public test records.
      statement: what was promised to the private ones.
      series: lists of plain numbers that a figure is drawn from; few and short.
    """

    scores: Mapping[str, float]
    statement: Statement
    series: Mapping[str, Any] = {}


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The cells of a figure or table.

    Attributes:
      name: of the script and of its file of results.
      cells: the settings, in the order of importance.
      num_seeds: how many runs each cell gets.
      measure: makes one run.
      quick: settings that shrink a cell to seconds; their results are not kept.
    """

    name: str
    cells: Sequence[Settings]
    num_seeds: int
    measure: Callable[[Settings, int], Measured]
    quick: Settings = field(default_factory=dict)

    @property
    def path(self) -> Path:
        """Where the results are."""
        return RESULTS / f"{self.name}.json"

    @property
    def num_planned(self) -> int:
        """How many runs fill the table."""
        return len(self.cells) * self.num_seeds


def read_rows(name: str) -> list[Row]:
    """Returns what was measured so far, in the order of measuring."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else []


def main(experiment: Experiment) -> None:
    """Measures the cells that are missing, and saves after each."""
    parser = argparse.ArgumentParser(description=f"Measures {experiment.name}.")
    parser.add_argument("--quick", action="store_true", help="one tiny cell, nothing is kept")
    parser.add_argument("--seeds", type=int, default=experiment.num_seeds, help="runs per cell")
    parser.add_argument("--cells", type=int, help="only so many, the first; by default all")
    parser.add_argument("--cell", type=int, help="only this one, counted from 0")
    parser.add_argument("--seed", type=int, help="only this one")
    parser.add_argument("--list", action="store_true", help="show the cells, and run nothing")
    arguments = parser.parse_args()
    if arguments.list:
        for number, settings in enumerate(experiment.cells):
            print(number, settings)
        return
    cells = experiment.cells[: arguments.cells]
    if arguments.cell is not None:
        cells = [experiment.cells[arguments.cell]]
    seeds = range(arguments.seeds) if arguments.seed is None else [arguments.seed]
    try:
        if arguments.quick:
            print(run_quick(experiment)["scores"])
        else:
            measure_missing(experiment, cells, seeds)
    except TacitError as error:  # data that is not there, in one line
        sys.exit(f"{experiment.name}: {error}")


def measure_missing(
    experiment: Experiment, cells: Sequence[Settings], seeds: Sequence[int]
) -> None:
    """Measures what is not in the file yet; several processes may do so at once."""
    for seed in seeds:
        for settings in cells:
            if _is_there(read_rows(experiment.name), settings, seed):
                continue
            row = _measured(experiment, settings, seed)
            with _alone():
                rows = read_rows(experiment.name)
                if not _is_there(rows, settings, seed):
                    text = ",\n".join(json.dumps(each) for each in [*rows, row])
                    experiment.path.write_text(f"[\n{text}\n]\n", encoding="utf-8")
            print(settings, seed, row["scores"], row["seconds"], flush=True)


def run_quick(experiment: Experiment) -> Row:
    """Returns one tiny cell, which shows that the script works and nothing else."""
    return _measured(experiment, {**experiment.cells[0], **experiment.quick}, seed=0)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Keeps other processes from writing results."""
    folder = os.open(RESULTS, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _is_there(rows: Sequence[Row], settings: Settings, seed: int) -> bool:
    return any(row["settings"] == settings and row["seed"] == seed for row in rows)


def _measured(experiment: Experiment, settings: Settings, seed: int) -> Row:
    start = time.perf_counter()
    with warnings.catch_warnings():
        # Known seeds mark every statement INSECURE; here they make the results repeatable.
        warnings.simplefilter("ignore", PrivacyWarning)
        measured = experiment.measure(settings, seed)
    statement = measured.statement
    return {
        "settings": settings,
        "seed": seed,
        "scores": dict(measured.scores),
        **({"series": dict(measured.series)} if measured.series else {}),
        "epsilon": statement.epsilon_text,
        "delta": statement.delta,
        "adjacency": statement.adjacency,
        "accountant": statement.accountant,
        "releases": statement.releases,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tacit", "jax", "numpyro", "dp-accounting")
        },
    }
