"""Curves: the cost of a step in a loop against the size of the batch and the width of layers."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from benchmarks import tasks
from benchmarks.loops import in_loop, private_step
from benchmarks.timing import Effort, interleave
from benchmarks.workloads import mlp
from tacit import _tree
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key

__all__ = ["Point", "draw", "measure_curves"]

_BATCH, _WIDTH = 256, 1200
_BATCHES = (32, 64, 128, 256, 512, 1024)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)

_MAX_PER_RECORD_BYTES = 3e9
"""Per-record gradients that would take more than this together are not measured."""

# Okabe and Ito's palette: told apart with any common colour blindness.
_LINES = {
    "per_record": ("one clipped gradient for each record, no noise", "#D55E00", "s"),
    "private": ("tacit, private step", "#0072B2", "o"),
    "plain": ("plain step", "#767676", "^"),
}

_LABELS = {
    "batch": f"records in a batch (784-{_WIDTH}-{_WIDTH}-10)",
    "width": f"width w of 784-w-w-10 ({_BATCH} records)",
}


class Point(NamedTuple):
    """The best milliseconds at one size; what was not measured is absent."""

    size: int
    best_ms: dict[str, float]


def measure_curves(effort: Effort) -> dict[str, list[Point]]:
    """Measures 784-w-w-10 at several batch sizes and at several widths w."""
    return {
        "batch": [_measure(_WIDTH, batch, batch, effort) for batch in _BATCHES],
        "width": [_measure(width, _BATCH, width, effort) for width in _WIDTHS],
    }


def _measure(width: int, batch: int, size: int, effort: Effort) -> Point:
    workload, key = mlp(width, width, batches={}), jax.random.key(0)
    data = workload.records(np.random.default_rng(0), workload.num_records)
    params = jax.jit(workload.init)(key)
    sampling = PoissonBatch(num_records=workload.num_records, batch_size=batch)
    kernel = tasks.method_of(workload, sampling).build(tasks.model_of(workload))
    visits = {
        "plain": in_loop(tasks.plain_step(workload, batch), params, key, data),
        "private": in_loop(
            private_step(kernel), jax.jit(kernel.init)(seeded_key(0)), seeded_key(0), data
        ),
    }
    if 4 * batch * _tree.size(params) <= _MAX_PER_RECORD_BYTES:
        visits["per_record"] = in_loop(tasks.per_record_step(workload, batch), params, key, data)
    return Point(size, {name: time.best for name, time in interleave(visits, effort).items()})


def draw(name: str, points: Sequence[Point]) -> Figure:
    """Returns a figure of milliseconds against size, both on logarithmic scales.

    Args:
      name: ``batch`` or ``width``, which differs from point to point.
      points: what was measured.
    """
    figure = Figure(figsize=(7, 4.4), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for line, (words, colour, marker) in _LINES.items():
        measured = [point for point in points if line in point.best_ms]
        sizes, times = [p.size for p in measured], [p.best_ms[line] for p in measured]
        axes.plot(sizes, times, color=colour, marker=marker, markersize=5, label=words)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([point.size for point in points]))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.set_title(f"Cost against {name}", fontsize=11, fontweight="bold", loc="left")
    axes.set_xlabel(_LABELS[name])
    axes.set_ylabel("milliseconds for one step in a loop")
    axes.grid(axis="y", color="#E4E7EA", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure
