"""What is computed of ``docs/performance.md``, from the results of one run."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.markdown import Sections, markdown, number, ratio, renewed
from benchmarks.methods import render_methods
from benchmarks.peers import PEERS
from benchmarks.programs import render_programs
from benchmarks.rows import Row, meets, value_of
from benchmarks.workloads import WORKLOADS

__all__ = ["PAGE", "RESULTS", "SECTIONS", "Results", "render", "write_page"]

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
RESULTS = Path(__file__).parent / "results.json"

Results: TypeAlias = dict[str, Any]
"""``steps``, ``methods`` and ``programs``, rows each, and the ``run`` that measured them."""

_WORDS = {
    "step_ratio": "private over plain",
    "bound_ratio": "private over plain + normals",
    "peak_memory_ratio": "memory",
    **{f"speedup_over.{name}": f"times as fast as {name}" for name in PEERS},
}


def render(found: Results) -> str:
    """Returns all sections, one below the other."""
    return "\n\n".join(section(found) for section in SECTIONS.values())


def write_page() -> None:
    """Renews the page from the published results."""
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renewed(page, SECTIONS, found), encoding="utf-8")


def _steps(found: Results) -> str:
    head = [
        "workload",
        "batch (padded)",
        "plain ms",
        "rewritten ms",
        "private ms",
        "private over plain",
        "over plain + normals",
        "dispatched: plain ms",
        "rewritten ms",
        "private ms",
        "private over plain",
        "memory",
    ]
    return markdown(
        head,
        [
            [
                row["workload"],
                f"{row['batch']} ({row['capacity']})",
                number(row["ms"]["loop plain"]),
                number(row["ms"].get("loop rewritten")),
                number(row["ms"]["loop private"]),
                _judged(row, "step_ratio"),
                _judged(row, "bound_ratio"),
                number(row["ms"]["dispatched plain"]),
                number(row["ms"].get("dispatched rewritten")),
                number(row["ms"]["dispatched private"]),
                ratio(row["dispatched_ratio"]),
                _judged(row, "peak_memory_ratio"),
            ]
            for row in found["steps"]
        ],
    )


def _peers(found: Results) -> str:
    def cell(row: Row, name: str) -> str:
        times = {way: row["ms"].get(f"{way} {name}") for way in PEERS[name].ways}
        measured = {way: time for way, time in times.items() if time is not None}
        if not measured:
            return ""
        best = min(measured, key=measured.__getitem__)
        return f"{_judged(row, f'speedup_over.{name}')} ({number(measured[best])} ms, {best})"

    return markdown(
        ["workload", "batch", "tacit ms", *(f"× {name}" for name in PEERS)],
        [
            [
                row["workload"],
                str(row["batch"]),
                number(row["ms"]["loop private"]),
                *(cell(row, name) for name in PEERS),
            ]
            for row in found["steps"]
        ],
    )


def _judged(row: Row, name: str) -> str:
    """Returns a value, and where it misses its target, that."""
    value = ratio(value_of(row, name))
    missed = f" (missed: {_bound(name, row['targets'][name])})" if name in row["missed"] else ""
    return f"{value}{missed}"


def _bound(name: str, aim: float) -> str:
    return f"{'≥' if meets(name, aim + 1, aim) else '≤'} {aim:g}"


def _aims(found: Results) -> Iterator[tuple[str, float, str, bool]]:
    """Returns all targets: what, its value, its bound and whether it is met."""
    for row in found["steps"]:
        for name, aim in row["targets"].items():
            what = f"{row['workload']}, {row['batch']}: {_WORDS[name]}"
            yield what, value_of(row, name), _bound(name, aim), name not in row["missed"]
    for row in [*found["methods"], *found["programs"]]:
        if row["target"] is not None:
            what = row.get("what") or f"{row['network']}, {row['method']}: over SGLD"
            if "plain" in row:
                what = f"{what}: over {row['plain']}"
            yield what, row["ratio"], f"≤ {row['target']:.3g}", row["met"]


def _targets(found: Results) -> str:
    aims = list(_aims(found))
    missed = [
        f"* {what}: {ratio(value)}, aimed at {bound}" for what, value, bound, met in aims if not met
    ]
    said = f"{len(aims) - len(missed)} of {len(aims)} targets are met."
    return "\n".join([f"{said} Missed:\n" if missed else said, *missed])


def _run(found: Results) -> str:
    run = found["run"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    before, after = (run["load_average"][when][0] for when in ("before", "after"))
    return (
        f"Measured on {run['date']} in {run['minutes']:.0f} minutes, on {run['num_threads']} cores"
        f" of {run['processor']}; load average {before:.1f} before and {after:.1f} after."
        f" {versions}.{_absent(found)}"
    )


def _absent(found: Results) -> str:
    """Returns what a run of parts has not measured, or nothing."""
    wanted = {(name, batch) for name, workload in WORKLOADS.items() for batch in workload.batches}
    measured = {(row["workload"], row["batch"]) for row in found["steps"]}
    names = [f"{name} {batch}" for name, batch in sorted(wanted - measured)]
    names += [name for name in ("methods", "programs", "curves") if not found[name]]
    return f" **This run did not measure** {', '.join(names)}." if names else ""


SECTIONS: Sections = {
    "run": _run,
    "targets": _targets,
    "steps": _steps,
    "peers": _peers,
    "methods": lambda found: render_methods(found["methods"]),
    "programs": lambda found: render_programs(found["programs"]),
}
"""By the names of their marks, in the order of the page."""


if __name__ == "__main__":
    write_page()
