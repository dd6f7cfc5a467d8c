"""The tables of the scaling measurements, and the page that shows them, ``docs/scale.md``."""

import json
import statistics
from pathlib import Path

from benchmarks.extrapolation import (
    CUT,
    Cluster,
    costs_of,
    exchanged_bytes,
    memory,
    parts_of_step,
    steps_in_chunk,
)
from benchmarks.markdown import Sections, markdown, number, renewed
from benchmarks.scaling import Scaling

__all__ = ["PAGE", "SECTIONS", "render_scaling", "write_page"]

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"

_SMALL, _LARGE = 1e6, 1e8
_SLOW, _FAST = 10, 100
_ACCELERATOR = 100


def render_scaling(found: Scaling) -> str:
    """Returns all tables, one below the other."""
    return "\n\n".join(section(found) for section in SECTIONS.values())


def write_page() -> None:
    """Renews the page from the published results."""
    found = json.loads((Path(__file__).parent / "scaling.json").read_text())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(renewed(page, SECTIONS, found), encoding="utf-8")


def _strong(found: Scaling) -> str:
    rows = []
    for row in found["strong"]:
        missed = "" if row["met"] else f" (missed: ≥ {row['target']:g})"
        one, two = (statistics.median(row["step_ms"][num]) for num in ("1", "2"))
        ratios = row["speedups"]
        rows.append(
            [
                f"{row['task']['batch']:,}",
                f"{row['rows']['1']:,}",
                f"{row['rows']['2']:,}",
                number(one),
                number(two),
                f"{number(1e3 / one)} and {number(1e3 / two)}",
                f"{row['speedup']:.2f}{missed}",
                f"{min(ratios):.2f} to {max(ratios):.2f}",
                f"{(1 - row['equal_params']) * row['num_params']:.0f}",
            ]
        )
    head = [
        "batch",
        "rows of one process",
        "rows of each of two",
        "step ms",
        "of two",
        "steps per second",
        "speedup",
        "in pairs of runs",
        "parameters that differ",
    ]
    last = found["strong"][-1]
    task = last["task"]
    network = "-".join(map(str, (task["num_columns"], *task["hidden"], task["num_classes"])))
    said = (
        f"{network}, {last['num_params']:,} parameters, Poisson batches from"
        f" {task['num_records']:,} records; {task['chunk_steps'] * task['num_chunks']} steps of"
        f" each run, in {len(last['speedups'])} pairs of runs. At the end parameters differ by at"
        f" most {max(row['largest_difference'] for row in found['strong']):.1g}, where the largest"
        f" is {last['largest_param']:.1g}."
    )
    return f"{markdown(head, rows)}\n\n{said}"


def _sizes(found: Scaling) -> str:
    head = ["records", "table MB", "where", "step ms", "peak MB", "of it anonymous"]
    rows = [
        [
            f"{row['num_records']:,}",
            number(row["table_mb"]),
            "on disk" if row["on_disk"] else "in memory",
            number(row["step_ms"]),
            f"{row['peak_mb']:,.0f}",
            f"{row['peak_anonymous_mb']:,.0f}",
        ]
        for row in found["sizes"]
    ]
    return markdown(head, rows)


def _parts(found: Scaling) -> str:
    ms, task = found["parts"]["ms"], found["parts"]["task"]
    names = ("draw", "gather", "clipped sum", "noise")
    rest = ms["step"] - sum(ms[name] for name in names)
    split = [[name, number(ms[name]), _share(ms[name], ms["step"])] for name in names]
    split.append(["what is left", number(rest), _share(rest, ms["step"])])
    split.append(["the step", number(ms["step"]), ""])
    costs = costs_of(found)
    drawn = f"{task['drawn_from']:,} records, and finding one's own"
    single = [
        ["clipped sum, one record and 1,000 parameters", f"{number(1e9 * costs.clipping)} ns"],
        ["noise, one number", f"{number(1e6 * costs.noise)} ns"],
        ["Adam, one parameter", f"{number(1e6 * costs.update)} ns"],
        ["a record read from files that the system caches", f"{number(1e3 * costs.read)} µs"],
        *[
            [f"drawing {size:,} of {drawn}", f"{number(time)} ms"]
            for size, time in costs.draw.items()
        ],
        [
            f"two processes summing and gathering {task['num_values']:,} numbers, over loopback",
            f"{number(ms['exchange'])} ms",
        ],
        ["two processes: a word of the coordinator", f"{number(ms['agree'])} ms"],
        ["a charge in a ledger, with `fsync`", f"{number(ms['charge'])} ms"],
    ]
    return "\n\n".join(
        (
            markdown(["part of a step", "ms", "share"], split),
            markdown(["on one core", "takes"], single),
        )
    )


def _network(found: Scaling) -> str:
    del found  # nothing here was measured
    rows = []
    for num_params in (_SMALL, _LARGE):
        sent = exchanged_bytes(Cluster(num_params=num_params, gigabits=1))
        times = [number(sent / (gigabits * 1e6 / 8)) for gigabits in (_SLOW, _FAST)]
        rows.append([_power(num_params), number(sent / 1e6), *times])
    head = ["parameters", "MB sent by each host", f"ms at {_SLOW} Gbit/s", f"ms at {_FAST} Gbit/s"]
    return markdown(head, rows)


def _hosts(found: Scaling) -> str:
    costs = costs_of(found)
    clusters = [
        Cluster(num_params=num_params, gigabits=gigabits, speed=speed)
        for speed in (1, _ACCELERATOR)
        for num_params, gigabits in ((_SMALL, _SLOW), (_LARGE, _SLOW), (_LARGE, _FAST))
    ]
    steps = [parts_of_step(costs, cluster) for cluster in clusters]
    head = ["ms of a step"]
    for cluster in clusters:
        kind = "a core" if cluster.speed == 1 else f"{cluster.speed:g} cores' speed"
        head.append(f"{kind}, {_power(cluster.num_params)}, {cluster.gigabits:g} Gbit/s")
    rows = [[name, *(number(step[name]) for step in steps)] for name in steps[0]]
    largest = [max(list(step)[:-1], key=step.__getitem__) for step in steps]
    rows.append(["largest part", *(name.partition(",")[0] for name in largest)])
    shares = [sum(step[name] for name in CUT) / step["whole step"] for step in steps]
    rows.append(["share that is cut among hosts", *(f"{100 * share:.0f} %" for share in shares)])
    one = clusters[0]
    said = (
        f"Here {_power(one.num_records)} records of {one.num_columns} columns on disk,"
        f" {one.num_hosts} hosts, batches of {_power(one.batch)}: each host reads"
        f" {one.batch / one.num_hosts:,.0f} rows for a step, and {steps_in_chunk(one)} step is read"
        " ahead at once."
    )
    return f"{said}\n\n{markdown(head, rows)}"


def _memory(found: Scaling) -> str:
    del found
    small, large = (memory(Cluster(num_params=d, gigabits=1)) for d in (_SMALL, _LARGE))
    rows = [[name, number(small[name]), number(large[name])] for name in small]
    return markdown(["GB on each host", *map(_power, (_SMALL, _LARGE))], rows)


SECTIONS: Sections = {
    "strong": _strong,
    "sizes": _sizes,
    "parts": _parts,
    "network": _network,
    "hosts": _hosts,
    "memory": _memory,
}
"""What is computed of the page, by the names of its marks."""


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %"


def _power(value: float) -> str:
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{'' if mantissa == '1' else mantissa + '·'}10^{int(exponent)}"


if __name__ == "__main__":
    write_page()
