"""Figures: pictures of metrics, drawn without a display and without global state."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.metrics import ReliabilityTable, wilson_interval
from tacit.privacy.trade_off import TradeOff

__all__ = ["reliability_diagram", "trade_off_figure"]

# Okabe and Ito's palette: told apart with any common colour blindness.
_OVER, _UNDER = "#D55E00", "#0072B2"
_INK, _GREY, _PALE = "#222222", "#767676", "#C9CED3"
_MAX_COLUMNS = 3


def reliability_diagram(tables: Mapping[str, ReliabilityTable]) -> Figure:
    """Returns a figure of how far each method's accuracy is from its confidence.

    There is one panel for each method, all on one scale. A dot is a bin: its mean confidence and
    its accuracy, with the 95 % Wilson interval of the accuracy. The bar from the diagonal to the
    dot is the calibration gap. Below, the share of records in each bin says which dots matter;
    the lines across it are mean confidence (dashed) and accuracy (solid).

    Args:
      tables: what ``tacit.metrics.reliability`` returned, by the title of the panel; the title
        of a private method should hold its epsilon.

    Example:
      >>> import io
      >>> from tacit.metrics import reliability
      >>> table = reliability([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]], [0, 1, 1])
      >>> figure = reliability_diagram({"DP-SGLD, ε = 1": table})
      >>> figure.savefig(io.BytesIO(), dpi=200)  # or a path: .png, .svg, .pdf
    """
    if not tables:
        raise InvalidArgumentError("tables must hold at least one method; got none.")
    columns = min(len(tables), _MAX_COLUMNS)
    rows = math.ceil(len(tables) / columns)
    figure = Figure(
        # Nearly square panels; three are 800 pixels wide, and one leaves room for the legend.
        figsize=((4.2, 5.8, 8.0)[columns - 1], 3.85 * rows + 0.6),
        dpi=100,
        facecolor="white",
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    grid = figure.add_gridspec(2 * rows, columns, height_ratios=[3, 1] * rows)
    lowest = min(_lowest(table) for table in tables.values())
    highest = max(table.counts.max() / table.counts.sum() for table in tables.values())
    for panel, (title, table) in enumerate(tables.items()):
        row, column = divmod(panel, columns)
        upper = figure.add_subplot(grid[2 * row, column])
        lower = figure.add_subplot(grid[2 * row + 1, column], sharex=upper)
        upper.set_title(f"{title}\n", fontsize=10.5, fontweight="bold", color=_INK, linespacing=1.5)
        upper.text(
            0.5,
            1.03,
            f"ECE {table.ece:.3f} · {table.counts.sum():,} records",
            transform=upper.transAxes,
            ha="center",
            va="bottom",
            fontsize=9.5,
            color=_INK,
        )
        _draw_gaps(upper, table, lowest)
        _draw_shares(lower, table, highest)
        if column == 0:
            upper.set_ylabel("accuracy", fontsize=9.5)
            lower.set_ylabel("records", fontsize=9.5)
        else:
            upper.tick_params(labelleft=False)
            lower.tick_params(labelleft=False)
    figure.align_ylabels()
    _draw_legend(figure, num_columns=2 if columns == 1 else 3)
    return figure


def _accuracy_interval(table: ReliabilityTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    filled = table.counts > 0
    counts = table.counts[filled]
    return wilson_interval(np.rint(table.accuracy[filled] * counts), counts)


def _lowest(table: ReliabilityTable) -> float:
    """Where the axes may start, in whole tenths, without hiding any bin or interval."""
    edge = table.edges[:-1][table.counts > 0].min()
    return math.floor(10 * float(min(edge, _accuracy_interval(table)[0].min()))) / 10


def _draw_gaps(axes: Axes, table: ReliabilityTable, lowest: float) -> None:
    filled = table.counts > 0
    confidence, accuracy, gap = table.confidence[filled], table.accuracy[filled], table.gap[filled]
    low, high = _accuracy_interval(table)
    axes.plot([lowest, 1], [lowest, 1], color=_GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    axes.bar(
        confidence,
        gap,
        bottom=confidence,
        width=0.5 * np.diff(table.edges)[filled],
        color=np.where(gap < 0, _OVER, _UNDER),
        alpha=0.5,
        zorder=2,
    )
    axes.vlines(confidence, low, high, color=_INK, linewidth=1, zorder=3)
    axes.plot(confidence, accuracy, color=_INK, linewidth=0, marker="o", markersize=4, zorder=4)
    margin = 0.02 * (1 - lowest)
    axes.set_xlim(lowest - margin, 1 + margin)
    axes.set_ylim(lowest - margin, 1 + margin)
    step = 0.25 if lowest == 0 else 0.2 if lowest < 0.5 else 0.1
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.tick_params(labelbottom=False)
    _tidy(axes)


def _draw_shares(axes: Axes, table: ReliabilityTable, highest: float) -> None:
    total = table.counts.sum()
    filled = table.counts > 0
    axes.bar(
        table.edges[:-1],
        table.counts / total,
        width=0.92 * np.diff(table.edges),
        align="edge",
        color=_PALE,
    )
    weights = table.counts[filled]
    for values, style in ((table.confidence, "--"), (table.accuracy, "-")):
        mean = np.average(values[filled], weights=weights)
        axes.axvline(mean, color=_INK, linewidth=1.2, linestyle=style)
    axes.set_ylim(0, 1.05 * highest)
    axes.yaxis.set_major_locator(MaxNLocator(2))
    axes.yaxis.set_major_formatter(PercentFormatter(xmax=1, decimals=0))
    axes.set_xlabel("confidence", fontsize=9.5)
    _tidy(axes)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["bottom", "left"]].set_color(_GREY)
    axes.tick_params(labelsize=9, color=_GREY)


def _draw_legend(figure: Figure, *, num_columns: int) -> None:
    dot = Line2D([], [], color=_INK, marker="o", markersize=4, linewidth=1)
    diagonal = Line2D([], [], color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
    dashed = Line2D([], [], color=_INK, linewidth=1.2, linestyle="--")
    solid = Line2D([], [], color=_INK, linewidth=1.2)
    entries = {
        "calibrated": diagonal,
        "bin, 95 % interval": dot,
        "overconfident": Patch(color=_OVER, alpha=0.5, linewidth=0),
        "underconfident": Patch(color=_UNDER, alpha=0.5, linewidth=0),
        "mean confidence": dashed,
        "overall accuracy": solid,
    }
    figure.legend(
        handles=list(entries.values()),
        labels=list(entries),
        loc="outside lower center",
        ncols=num_columns,
        fontsize=9,
        frameon=False,
        handlelength=1.8,
    )


# Okabe and Ito's palette: told apart with any common colour blindness.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")


def trade_off_figure(curves: Mapping[str, TradeOff]) -> Figure:
    """Returns a figure of trade-off curves, on plain axes and on logarithmic ones.

    The diagonal is an attack that guesses. The logarithmic panel shows what matters most: how many
    people can be found with hardly a false alarm.

    Args:
      curves: by the name in the legend; one to four.

    Example:
      >>> import io
      >>> curve = TradeOff.of_promise(epsilon=1.0, delta=1e-5)
      >>> trade_off_figure({"ε = 1": curve}).savefig(io.BytesIO())
    """
    if not 1 <= len(curves) <= len(_COLOURS):
        raise InvalidArgumentError(
            f"curves must hold one to {len(_COLOURS)} curves; got {len(curves)}."
        )
    figure = Figure(figsize=(8.0, 4.3), dpi=100, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    plain, logarithmic = figure.subplots(1, 2)
    rates = np.unique(np.concatenate([np.geomspace(1e-4, 1.0, 200), np.linspace(0.0, 1.0, 201)]))
    logarithmic.set(xscale="log", yscale="log")
    for axes in (plain, logarithmic):
        axes.plot(rates, rates, color=_GREY, linewidth=1, linestyle=(0, (4, 3)), label="guessing")
        for (name, curve), colour in zip(curves.items(), _COLOURS, strict=False):
            found = curve.true_positive_rate(rates)
            axes.plot(rates, found, color=colour, linewidth=2, label=name)
            axes.fill_between(rates, rates, found, color=colour, alpha=0.12, linewidth=0)
        axes.set_xlabel("false positives: absent people who are accused", fontsize=9.5, color=_INK)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda share, _: f"{100 * share:g}%"))
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["bottom", "left"]].set_color(_GREY)
        axes.tick_params(labelsize=9, color=_GREY)
        axes.set_aspect("equal")
    plain.set(xlim=(0, 1), ylim=(0, 1))
    logarithmic.set(xlim=(1e-4, 1), ylim=(1e-4, 1))
    plain.set_ylabel("true positives at most: present people found", fontsize=9.5, color=_INK)
    plain.set_title("what the best attack can do", fontsize=10.5, fontweight="bold", color=_INK)
    logarithmic.set_title("with few false alarms", fontsize=10.5, fontweight="bold", color=_INK)
    handles, labels = plain.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=9, frameon=False)
    return figure
