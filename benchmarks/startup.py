"""How long it takes until something runs: ``python -m benchmarks.startup``, some minutes.

Each task is a process of its own, first with an empty folder for compiled programs and then with
the one that the first left behind. The least of several repetitions counts.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

__all__ = ["PAGE", "TASKS", "StartupRow", "measure_startup", "render_startup", "rendered"]

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
_ROOT, _RESULTS = Path(__file__).parents[1], Path(__file__).parent / "startup.json"
_BEGIN, _END = "<!-- startup: begin -->", "<!-- startup: end -->"

StartupRow: TypeAlias = dict[str, Any]
"""``what`` was done; seconds of processor and of the clock, cold and warm; ``steps`` of a process
by name, each with the same seconds."""

TASKS = {
    "demo": "`tacit demo`",
    "fit": "`tacit fit`, a table of 228 rows",
    "hierarchical": "`DPSVI`, hierarchical logistic regression",
    "vae": "`DPSVI`, variational auto-encoder",
    "autoguide": "`DPSVI`, Bayesian neural network with `AutoNormal`",
}
_NUM_ROWS, _NUM_NUMBERS, _NUM_CATEGORIES = 228, 6, 7


def measure_startup(names: Sequence[str], *, rounds: int) -> list[StartupRow]:
    """Returns a row for each task.

    Args:
      names: of tasks.
      rounds: how often each is repeated.
    """
    rows = []
    for name in names:
        found: dict[str, list[StartupRow]] = {"cold": [], "warm": []}
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                _write_table(Path(folder))
                for runs in found.values():
                    runs.append(_run(name, Path(folder)))
        row: StartupRow = {"task": name, "what": TASKS[name]}
        for when, runs in found.items():
            row[when] = _least(runs)
        rows.append(row)
        print(f"{name}: {row['cold']['cpu']:.1f} s cold, {row['warm']['cpu']:.1f} s warm")
    return rows


def _least(runs: Sequence[StartupRow]) -> StartupRow:
    """Returns the least seconds of a process, and of each of its steps."""
    least: StartupRow = {key: min(run[key] for run in runs) for key in ("cpu", "wall")}
    steps = runs[0]["steps"]
    least["steps"] = {
        name: {key: min(run["steps"][name][key] for run in runs) for key in ("cpu", "wall")}
        for name in steps
    }
    return least


def _run(name: str, folder: Path) -> StartupRow:
    """Runs a task in a process of its own, with the programs that are kept in the folder."""
    commands = {
        "demo": ["-m", "tacit", "demo", "--output", "demo"],
        "fit": [
            *("-m", "tacit", "fit", "data.csv", "--schema", "schema.toml", "--epsilon", "1"),
            *("--output", "run", "--overwrite"),
        ],
    }
    worker = ["-m", "benchmarks.startup_worker", name, str(time.monotonic())]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "TACIT_"))}
    environment = {**inherited, "TACIT_CACHE": str(folder / "kept"), "PYTHONPATH": str(_ROOT)}
    before, begin = _cpu(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, *commands.get(name, worker)],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    wall = time.perf_counter() - begin
    cpu = _cpu(resource.RUSAGE_CHILDREN) - before
    steps = json.loads(done.stdout.splitlines()[-1]) if name not in commands else {}
    return {"cpu": cpu, "wall": wall, "steps": steps}


def _cpu(whose: int) -> float:
    used = resource.getrusage(whose)
    return used.ru_utime + used.ru_stime


def _write_table(folder: Path) -> None:
    """Writes a made-up table with its schema: numbers, categories and five classes."""
    rng = np.random.default_rng(0)
    numbers = rng.uniform(0, 10, (_NUM_ROWS, _NUM_NUMBERS)).round(1)
    categories = rng.integers(4, size=(_NUM_ROWS, _NUM_CATEGORIES))
    classes = np.clip(numbers[:, 0] // 2 + rng.integers(2, size=_NUM_ROWS), 0, 4).astype(int)
    names = [
        *(f"number{i}" for i in range(_NUM_NUMBERS)),
        *(f"category{i}" for i in range(_NUM_CATEGORIES)),
    ]
    lines = [",".join([*names, "grade"])]
    lines += [
        ",".join(map(str, [*row, *kinds, grade]))
        for row, kinds, grade in zip(numbers, categories, classes, strict=True)
    ]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    schema = ["[target]", 'name = "grade"', "classes = [0, 1, 2, 3, 4]"]
    for name in names:
        is_number = name.startswith("number")
        said = "low = 0\nhigh = 10" if is_number else "categories = [0, 1, 2, 3]"
        schema += ["", f"[columns.{name}]", said]
    (folder / "schema.toml").write_text("\n".join(schema) + "\n")


def render_startup(found: Sequence[StartupRow]) -> str:
    """Returns the rows as a table in Markdown."""
    lines = [
        "| what | cold: CPU s | wall s | warm: CPU s | wall s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in found:
        lines.append(_line(row["what"], row["cold"], row["warm"]))
        lines += [
            _line(f"— {step}", row["cold"]["steps"][step], row["warm"]["steps"][step])
            for step in row["cold"]["steps"]
        ]
    return "\n".join(lines)


def _line(what: str, cold: StartupRow, warm: StartupRow) -> str:
    numbers = (cold["cpu"], cold["wall"], warm["cpu"], warm["wall"])
    return " | ".join([f"| {what}", *(f"{number:.2f}" for number in numbers)]) + " |"


def rendered(page: str, found: Sequence[StartupRow]) -> str:
    """Returns the page with the table renewed."""
    before, rest = page.split(_BEGIN)
    return f"{before}{_BEGIN}\n{render_startup(found)}\n{_END}{rest.split(_END)[1]}"


def main() -> None:
    """Measures; a whole run writes ``startup.json`` and the table of ``docs/performance.md``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.startup", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(TASKS), help="only this task")
    parser.add_argument("--rounds", type=int, default=3, help="how often each task is repeated")
    arguments = parser.parse_args()
    found = measure_startup(arguments.only or list(TASKS), rounds=arguments.rounds)
    print(render_startup(found))
    if arguments.only is None:
        _RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main()
