"""Measures everything in one run: ``results.json``, the tables of the page and curves."""

import argparse
import datetime
import json
import os
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from benchmarks import curves, rows, scaling_page
from benchmarks.methods import measure_methods
from benchmarks.page import RESULTS, Results, render, write_page
from benchmarks.peers import started
from benchmarks.programs import measure_programs
from benchmarks.scaling import FULL, QUICK, measure_scaling
from benchmarks.timing import Effort
from benchmarks.workloads import WORKLOADS

_HERE = Path(__file__).parent
_CURVES, _METHODS, _PROGRAMS, _SCALING = "curves", "methods", "programs", "scaling"
_ALL = [*WORKLOADS, _METHODS, _PROGRAMS, _CURVES, _SCALING]
_NUM_THREADS = 2

_FULL = Effort(rounds=7, visit_seconds=0.3, min_rounds=3, max_seconds=3.0)
_QUICK = Effort(rounds=2, visit_seconds=0.05, min_rounds=1, max_seconds=1.0)


def main() -> None:
    """Runs the benchmark."""
    arguments = _arguments()
    # Ours and, by inheritance, the peers' processes: all have the same cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_NUM_THREADS])
    effort = _QUICK if arguments.quick else _FULL
    is_whole = not arguments.only and not arguments.quick and arguments.peers is not None
    wanted = arguments.only or _ALL
    # Only a whole run replaces the published figures; that of scaling has no peers.
    is_whole = is_whole or (wanted == [_SCALING] and not arguments.quick)
    directory = _HERE if is_whole else _HERE.parent / "build" / "bench"
    directory.mkdir(parents=True, exist_ok=True)

    if wanted != [_SCALING]:
        found = _measure(wanted, arguments.peers, effort)
        (directory / RESULTS.name).write_text(json.dumps(found, indent=1) + "\n")
        print("\n" + render(found))
        for name, points in found["curves"].items():
            curves.draw(name, points).savefig(directory / f"cost-against-{name}.png")
        if is_whole:
            write_page()
    if _SCALING in wanted:
        scaling = measure_scaling(effort, QUICK if arguments.quick else FULL)
        (directory / "scaling.json").write_text(json.dumps(scaling, indent=1) + "\n")
        print("\n" + scaling_page.render_scaling(scaling))
        if is_whole:
            scaling_page.write_page()
    print(f"\nresults in {directory}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--peers",
        type=Path,
        metavar="PYTHON",
        help="the interpreter of the environment with the peers; without it they are left out",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=_ALL,
        help="measure only this; may be given several times",
    )
    parser.add_argument("--quick", action="store_true", help="a trial: few repetitions")
    return parser.parse_args()


def _measure(wanted: Sequence[str], python: Path | None, effort: Effort) -> Results:
    """Measures what the page shows; what is not wanted has no rows."""
    begin, load = time.monotonic(), os.getloadavg()
    steps = []
    for name in wanted:
        for batch in WORKLOADS[name].batches if name in WORKLOADS else ():
            with started(python, name, batch) as peers:
                steps.append(rows.measure(WORKLOADS[name], batch, peers, effort))
            _report(steps[-1])
    own = {name: metadata.version(name) for name in ("tacit", "jax", "jaxlib", "optax", "numpyro")}
    peers_own = {name: version for row in steps for name, version in row["peers"].items()}
    return {
        "steps": steps,
        "methods": measure_methods(effort) if _METHODS in wanted else [],
        "programs": measure_programs(effort) if _PROGRAMS in wanted else [],
        "curves": curves.measure_curves(effort) if _CURVES in wanted else {},
        "run": {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "minutes": (time.monotonic() - begin) / 60,
            "num_threads": len(os.sched_getaffinity(0)),
            "processor": _processor(),
            "load_average": {"before": load, "after": os.getloadavg()},
            "versions": {"Python": platform.python_version(), **own, **peers_own},
        },
    }


def _report(row: rows.Row) -> None:
    load = " to ".join(f"{row['load_average'][when][0]:.1f}" for when in ("before", "after"))
    missed = f"; missed {', '.join(row['missed'])}" if row["missed"] else ""
    ratio = f"{row['step_ratio']:.2f} of plain"
    print(f"{row['workload']}, {row['batch']}: {ratio}{missed} (load {load})", flush=True)


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
