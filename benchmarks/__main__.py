"""Measures everything in one run: a table, curves and ``results.json``."""

import argparse
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import curves, rows, table
from benchmarks.methods import measure_methods, render_methods
from benchmarks.peers import started
from benchmarks.programs import measure_programs, render_programs
from benchmarks.scaling import FULL, QUICK, measure_scaling
from benchmarks.scaling_page import PAGE, render_scaling, rendered
from benchmarks.timing import Effort
from benchmarks.workloads import WORKLOADS

_HERE = Path(__file__).parent
_CURVES, _METHODS, _PROGRAMS, _SCALING = "curves", "methods", "programs", "scaling"
_NUM_THREADS = 2

_FULL = Effort(rounds=7, visit_seconds=0.2, min_rounds=3, max_seconds=3.0)
_QUICK = Effort(rounds=2, visit_seconds=0.05, min_rounds=1, max_seconds=1.0)


def main() -> None:
    """Runs the benchmark."""
    arguments = _arguments()
    # Ours and, by inheritance, the peers' processes: all have the same cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:_NUM_THREADS])
    effort = _QUICK if arguments.quick else _FULL
    is_whole = not arguments.only and not arguments.quick and arguments.peers is not None
    wanted = arguments.only or [*WORKLOADS, rows.NOISE_ROW, _METHODS, _PROGRAMS, _CURVES, _SCALING]
    # Only a whole run replaces the published figures; that of scaling has no peers.
    is_whole = is_whole or (wanted == [_SCALING] and not arguments.quick)
    directory = _HERE if is_whole else _HERE.parent / "build" / "bench"
    directory.mkdir(parents=True, exist_ok=True)

    begin = time.monotonic()
    results = _measure_rows(wanted, arguments.peers, effort)
    if results:
        (directory / "results.json").write_text(json.dumps(results, indent=1) + "\n")
        (directory / "results.md").write_text(table.render(results) + "\n")
        print("\n" + table.render(results))
    if _METHODS in wanted:
        _publish(directory, _METHODS, measure_methods(effort), render_methods)
    if _PROGRAMS in wanted:
        _publish(directory, _PROGRAMS, measure_programs(effort), render_programs)
    if _CURVES in wanted:
        _measure_curves(directory, effort)
    if _SCALING in wanted:
        found = measure_scaling(effort, QUICK if arguments.quick else FULL)
        _publish(directory, _SCALING, found, render_scaling)
        if is_whole:
            PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    minutes = (time.monotonic() - begin) / 60
    print(f"\n{minutes:.1f} minutes; results in {directory}")


def _publish(
    directory: Path,
    name: str,
    found: Any,
    render: Callable[[Any], str],
) -> None:
    (directory / f"{name}.json").write_text(json.dumps(found, indent=1) + "\n")
    (directory / f"{name}.md").write_text(render(found) + "\n")
    print("\n" + render(found))


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
        choices=[*WORKLOADS, rows.NOISE_ROW, _METHODS, _PROGRAMS, _CURVES, _SCALING],
        help="measure only this; may be given several times",
    )
    parser.add_argument("--quick", action="store_true", help="a trial: few repetitions")
    return parser.parse_args()


def _measure_rows(wanted: Sequence[str], python: Path | None, effort: Effort) -> list[rows.Row]:
    results = []
    for name in wanted:
        for batch in WORKLOADS[name].batches if name in WORKLOADS else ():
            with started(python, name, batch) as peers:
                results.append(rows.measure(WORKLOADS[name], batch, peers, effort))
            _report(results[-1])
        if name == rows.NOISE_ROW:
            results.append(rows.measure_noise(effort))
            _report(results[-1])
    return results


def _report(row: rows.Row) -> None:
    load = " to ".join(f"{row['load_average'][when][0]:.1f}" for when in ("before", "after"))
    missed = f"; missed {', '.join(row['missed'])}" if row["missed"] else ""
    ratio = f"{row['gradient_ratio']:.2f} of plain"
    print(f"{row['workload']}, {row['batch']}: {ratio}{missed} (load {load})", flush=True)


def _measure_curves(directory: Path, effort: Effort) -> None:
    for name, label, points in (
        ("batch", "records in a batch (784-1200-1200-10)", curves.measure_batches(effort)),
        ("width", "width w of 784-w-w-10 (256 records)", curves.measure_widths(effort)),
    ):
        (directory / f"cost-against-{name}.json").write_text(
            json.dumps([point._asdict() for point in points], indent=1) + "\n"
        )
        figure = curves.draw(points, title=f"Cost against {name}", label=label)
        figure.savefig(directory / f"cost-against-{name}.png")


if __name__ == "__main__":
    main()
