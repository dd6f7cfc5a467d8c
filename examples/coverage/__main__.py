"""Measures how often private credible intervals hold: ``python -m examples.coverage``.

Each cell is written as soon as it is measured, so that a run can go on where another stopped.
"""

import argparse
import json
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from examples.coverage.cells import Cell, measured_cell
from examples.coverage.methods import DELTA, METHODS
from examples.coverage.pages import figure, tables
from examples.coverage.problems import PROBLEMS

PICTURES = Path(__file__).parents[2] / "docs/pictures"
EPSILONS = (0.5, 1.0, 2.0, 8.0)
BATCHES = ("full", "Poisson")


WHOLE_NETWORK = "network, n 1000"
"""Nothing corrects its weights; its last layer is a problem of its own."""

RECOMMENDED = {
    name: "DPSVI" if "program" in name else "Laplace" for name in PROBLEMS if name != WHOLE_NETWORK
}


def cells() -> Iterator[Cell]:
    """Yields the recommended method at every epsilon, and all others at epsilon 1."""
    for batches in BATCHES:
        for epsilon in EPSILONS:
            for problem, method in RECOMMENDED.items():
                yield Cell(problem, method, epsilon, batches)
    for problem in PROBLEMS:
        for method in METHODS:
            is_served = "program" in problem or not method.startswith("DPSVI")
            if is_served and method != RECOMMENDED.get(problem):
                yield Cell(problem, method, 1.0, "full")


def run(path: Path, *, num_sets: int, only: str, num_jobs: int = 2) -> dict[str, Any]:
    """Measures what the file does not have yet, some cells at a time, and returns all there is."""
    settings = {"num_sets": num_sets, "delta": DELTA, "recommended": RECOMMENDED}
    results: dict[str, Any] = {**settings, "exact": {}, "cells": {}}
    if path.exists():
        found = json.loads(path.read_text(encoding="utf-8"))
        if found.get("num_sets") == num_sets and "cells" in found:
            results = found | settings
    waiting = [cell for cell in cells() if only in cell.name and cell.name not in results["cells"]]

    start = time.perf_counter()
    # Processes and not threads: NumPyro's handlers are global, and two programs that run side by
    # side in one process have been seen to wait for each other for ever.
    with ProcessPoolExecutor(num_jobs, mp_context=get_context("spawn")) as pool:
        measured = pool.map(partial(measured_cell, num_sets=num_sets), waiting)
        for number, (cell, rows, exact) in enumerate(measured, 1):
            results["cells"][cell.name] = rows
            results["exact"][cell.problem] = exact
            text = json.dumps(results, indent=1, ensure_ascii=False)
            path.write_text(text + "\n", encoding="utf-8")
            minutes = (time.perf_counter() - start) / 60
            shown = ", ".join(f"{row['version']} {row['coverage_90']:.3f}" for row in rows)
            print(f"{number}/{len(waiting)} {minutes:.1f} min  {cell.name}: {shown}", flush=True)
    return results


def main() -> None:
    """Prints the tables and writes them, and the figure, below ``docs/pictures``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-sets", type=int, default=200, help="simulated data sets; 200")
    parser.add_argument("--only", default="", help="cells whose names have this text")
    parser.add_argument("--quick", action="store_true", help="20 data sets, kept apart")
    parser.add_argument("--jobs", type=int, default=2, help="cells measured at a time; 2")
    arguments = parser.parse_args()
    num_sets = 20 if arguments.quick else arguments.num_sets
    name = "coverage-quick" if arguments.quick else "coverage"
    path = PICTURES / f"{name}.json"
    results = run(path, num_sets=num_sets, only=arguments.only, num_jobs=arguments.jobs)
    print(tables(results))
    figure(results).savefig(PICTURES / f"{name}.png", dpi=200)


if __name__ == "__main__":
    main()
