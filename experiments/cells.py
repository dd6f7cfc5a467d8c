"""Cells of a table: settings and a seed, measured once and kept as JSON."""

import argparse
import importlib.metadata
import json
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from examples.programs.command import Outcome

from tacit.errors import PrivacyWarning

__all__ = ["RESULTS", "Experiment", "Row", "Settings", "main", "read_rows"]

RESULTS = Path(__file__).parent / "results"

Settings: TypeAlias = dict[str, Any]
"""What a cell is run with, as plain values."""

Row: TypeAlias = dict[str, Any]
"""A measured cell: settings, seed, scores, what the statement says, seconds, versions."""


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
    measure: Callable[[Settings, int], Outcome]
    quick: Settings

    @property
    def path(self) -> Path:
        """Where the results are."""
        return RESULTS / f"{self.name}.json"


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
    arguments = parser.parse_args()
    # Known seeds mark every statement INSECURE; here they make the results repeatable.
    warnings.simplefilter("ignore", PrivacyWarning)
    if arguments.quick:
        print(_measured(experiment, {**experiment.cells[0], **experiment.quick}, seed=0))
        return
    rows = read_rows(experiment.name)
    for seed in range(arguments.seeds):
        for settings in experiment.cells[: arguments.cells]:
            if any(row["settings"] == settings and row["seed"] == seed for row in rows):
                continue
            rows.append(_measured(experiment, settings, seed))
            text = ",\n".join(json.dumps(row) for row in rows)
            experiment.path.write_text(f"[\n{text}\n]\n", encoding="utf-8")
            print(settings, seed, rows[-1]["scores"], rows[-1]["seconds"], flush=True)


def _measured(experiment: Experiment, settings: Settings, seed: int) -> Row:
    start = time.perf_counter()
    outcome = experiment.measure(settings, seed)
    return {
        "settings": settings,
        "seed": seed,
        "scores": outcome.scores,
        "epsilon": outcome.statement.epsilon_text,
        "delta": outcome.statement.delta,
        "adjacency": outcome.statement.adjacency,
        "accountant": outcome.statement.accountant,
        "releases": outcome.statement.releases,
        "seconds": round(time.perf_counter() - start, 1),
        "versions": {
            name: importlib.metadata.version(name)
            for name in ("tacit", "jax", "numpyro", "dp-accounting")
        },
    }
