"""Curves: the cost of a clipped gradient against the size of the batch and the width of layers."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator, ScalarFormatter

from benchmarks import tasks
from benchmarks.rows import visit_of
from benchmarks.timing import Effort, interleave
from benchmarks.workloads import Workload, mlp
from tacit import _tree
from tacit.privacy.clipping import Flat, bounds
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["Point", "draw", "measure_batches", "measure_widths"]

_BATCH, _WIDTH = 256, 1200
_BATCHES = (32, 64, 128, 256, 512, 1024)
_WIDTHS = (64, 128, 256, 512, 1024, 2048)

_MAX_PER_RECORD_BYTES = 3e9
"""Per-record gradients that would take more than this together are not measured."""

# Okabe and Ito's palette: told apart with any common colour blindness.
_LINES = {
    "per_record": ("one gradient for each record", "#D55E00", "s"),
    "clipped": ("tacit, clipped sum", "#0072B2", "o"),
    "plain": ("plain gradient", "#767676", "^"),
}


class Point(NamedTuple):
    """The best milliseconds at one size; what was not measured is absent."""

    size: int
    best_ms: dict[str, float]


def measure_batches(effort: Effort) -> list[Point]:
    """Measures 784-1200-1200-10 at several batch sizes."""
    return [_measure(_WIDTH, batch, batch, effort) for batch in _BATCHES]


def measure_widths(effort: Effort) -> list[Point]:
    """Measures 784-w-w-10 at several widths w."""
    return [_measure(width, _BATCH, width, effort) for width in _WIDTHS]


def _measure(width: int, batch: int, size: int, effort: Effort) -> Point:
    workload, key = mlp(width, width, batches=(), targets={}), jax.random.key(0)
    params, records = workload.init(key), workload.records(np.random.default_rng(0), batch)
    inputs = (params, None, records, jax.random.split(key, batch), jnp.ones(batch, bool))
    gradients = {
        "plain": tasks.plain_gradient(workload),
        "clipped": tasks.clipped_gradient(workload),
    }
    if 4 * batch * _tree.size(params) <= _MAX_PER_RECORD_BYTES:
        gradients["per_record"] = _per_record_gradient(workload)
    visits = {name: visit_of(jax.jit(g), *inputs) for name, g in gradients.items()}
    return Point(size, {name: time.best for name, time in interleave(visits, effort).items()})


def _per_record_gradient(workload: Workload) -> tasks.Gradient:
    """The same clipped sum by its definition, as most libraries compute it."""

    def gradient(params: Params, shared: Tree, records: Record, keys: Key, mask: Array) -> Tree:
        def loss(params: Params, record: Record, key: Key) -> Scalar:
            return workload.loss(params, shared, record, key)

        return bounds.reference_gradient_sum(
            loss, params, records, keys, mask, clipping=Flat(), clip_norm=tasks.CLIP_NORM
        )

    return gradient


def draw(points: Sequence[Point], *, title: str, label: str) -> Figure:
    """Returns a figure of milliseconds against size, both on logarithmic scales."""
    figure = Figure(figsize=(7, 4.4), dpi=150, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (words, colour, marker) in _LINES.items():
        measured = [point for point in points if name in point.best_ms]
        sizes, times = [p.size for p in measured], [p.best_ms[name] for p in measured]
        axes.plot(sizes, times, color=colour, marker=marker, markersize=5, label=words)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(FixedLocator([point.size for point in points]))
    axes.xaxis.set_minor_locator(NullLocator())
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(ScalarFormatter())
    axes.set_title(title, fontsize=11, fontweight="bold", loc="left")
    axes.set_xlabel(label)
    axes.set_ylabel("milliseconds for one gradient")
    axes.grid(axis="y", color="#E4E7EA", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    return figure
