"""Figures: pictures of metrics and charts of a report, drawn by matplotlib without a display.

A drawing uses the colours below, which stand for CSS variables: the page's stylesheet decides what
they are in light, in dark and in print, and how large the text is.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator, PercentFormatter
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.metrics.calibration import ReliabilityTable
from tacit.metrics.confidence import wilson_interval
from tacit.privacy.interpretation import TradeOff

__all__ = [
    "CARD",
    "DASHED",
    "DOTTED",
    "INK",
    "ONE",
    "SOFT",
    "TWO",
    "Chart",
    "chart",
    "chart_axes",
    "reliability_diagram",
    "trade_off_figure",
]

ONE, TWO, SOFT, INK, CARD, _LINE = "#01fe01", "#01fe02", "#01fe03", "#01fe04", "#01fe05", "#01fe06"
_VARIABLES = {ONE: "one", TWO: "two", SOFT: "soft", INK: "ink", CARD: "card", _LINE: "line"}
DASHED, DOTTED = (0, (3, 3)), (0, (1.5, 2.3))
_WIDTH, _HEIGHT, _TEXT = 380, 260, 11.5
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 20, 30, 42


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing for the page, and the same numbers as a table.

    Attributes:
      title: what is shown, in a few words.
      svg: the drawing.
      caption: how to read it.
      legend: pairs of a class of the stylesheet and a name.
      columns: headings of the table.
      rows: of the table, as text.
    """

    title: str
    svg: str
    caption: str
    legend: Sequence[tuple[str, str]] = ()
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def chart_axes(
    x_label: str,
    y_label: str,
    *,
    x_limits: tuple[float, float],
    y_limits: tuple[float, float],
    x_is_share: bool = False,
    y_is_share: bool = False,
    height: int = _HEIGHT,
    left: int = _LEFT,
) -> Axes:
    """Returns empty axes in the style of the page, about five ticks on each.

    Args:
      x_label: what the horizontal axis shows.
      y_label: what the vertical axis shows.
      x_limits: where the horizontal axis starts and ends.
      y_limits: where the vertical axis starts and ends.
      x_is_share: whether its numbers are shown as percentages.
      y_is_share: whether its numbers are shown as percentages.
      height: of the drawing; all are equally wide.
      left: room for what is written beside the vertical axis.

    Example:
      >>> axes = chart_axes("steps", "epsilon", x_limits=(0, 430), y_limits=(0, 1))
      >>> [float(tick) for tick in axes.get_xticks()]
      [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    figure = Figure(figsize=(_WIDTH / 72, height / 72), dpi=72)
    figure.patch.set_visible(False)
    width, tall = _WIDTH - left - _RIGHT, height - _TOP - _BOTTOM
    axes = figure.add_axes((left / _WIDTH, _BOTTOM / height, width / _WIDTH, tall / height))
    axes.patch.set_visible(False)
    axes.spines[["top", "left", "right"]].set_visible(False)
    axes.spines["bottom"].set_color(SOFT)
    axes.spines["bottom"].set_linewidth(1)
    axes.set(xlim=_checked(x_limits), ylim=_checked(y_limits), axisbelow=True)
    axes.grid(axis="y", color=_LINE, linewidth=1)
    axes.tick_params(left=False, bottom=False, labelsize=_TEXT, labelcolor=SOFT, pad=7, length=0)
    axes.tick_params(axis="x", pad=9)
    axes.set_xticks(_ticks(*x_limits))
    axes.set_yticks(_ticks(*y_limits))
    share, plain = (
        FuncFormatter(lambda x, _: f"{100 * x:g}%"),
        FuncFormatter(lambda x, _: f"{x:,g}"),
    )
    axes.xaxis.set_major_formatter(share if x_is_share else plain)
    axes.yaxis.set_major_formatter(share if y_is_share else plain)
    across, below, above = (left + width / 2) / _WIDTH, 6 / height, 1 - 13 / height
    for x, y, label, place in (
        (across, below, x_label, "center"),
        (4 / _WIDTH, above, y_label, "left"),
    ):
        figure.text(x, y, label, ha=place, fontsize=_TEXT, color=SOFT, parse_math=False)
    return axes


def chart(
    axes: Axes,
    *,
    title: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    legend: Sequence[tuple[str, str]] = (),
) -> Chart:
    """Returns the chart of axes that `chart_axes` made and the caller has drawn on.

    Args:
      axes: with the drawing.
      title: what is shown, in a few words; its text alternative, too.
      caption: how to read it.
      columns: headings of the table.
      rows: the drawn numbers, as text.
      legend: pairs of a class of the stylesheet and a name.

    Example:
      >>> axes = chart_axes("x", "y", x_limits=(0, 1), y_limits=(0, 1))
      >>> _ = axes.plot([0, 1], [0, 1], color=ONE)
      >>> svg = chart(axes, title="A line", caption="", columns=(), rows=()).svg
      >>> svg[:4], "stroke: var(--one)" in svg
      ('<svg', True)
    """
    svg = _inline(axes.figure, title)  # type: ignore[arg-type]
    return Chart(title=title, svg=svg, caption=caption, legend=legend, columns=columns, rows=rows)


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers within the limits: no label beside an axis that ends before it."""
    edge = 1e-9 * (high - low)
    ticks = MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    return [float(tick) for tick in ticks if low - edge <= tick <= high + edge]


def _checked(limits: tuple[float, float]) -> tuple[float, float]:
    if not limits[0] < limits[1] < float("inf"):
        raise InvalidArgumentError(f"an axis must end above its finite start; got {limits!r}.")
    return limits


def _inline(figure: Figure, title: str) -> str:
    """SVG for inside a page: no style of its own but places, lines and the page's colours."""
    file = io.StringIO()
    # The salt makes the few names in the file the same each time, and different between charts.
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(file, metadata=nothing)  # type: ignore[no-untyped-call]
    text = file.getvalue()
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var(--{variable})")
    svg = ElementTree.fromstring(text)
    used = {value[1:] for part in svg.iter() for value in part.attrib.values() if value[:1] == "#"}
    for part in svg.iter():
        part.tag = part.tag.rpartition("}")[2]
        part.attrib = dict(_kept(part, used))
        part.tail = None
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    svg.attrib = {"viewBox": f"0 0 {width} {height}", "role": "img", "aria-label": title}
    for defs in svg.findall("defs"):  # a stylesheet, which would be that of the whole page
        svg.remove(defs)
    heading = ElementTree.Element("title")
    heading.text = title
    svg.insert(0, heading)
    return ElementTree.tostring(svg, encoding="unicode")


def _kept(part: ElementTree.Element, used: set[str]) -> Iterator[tuple[str, str]]:
    """The attributes of an element that the page needs; fonts are left to its stylesheet."""
    for name, value in part.attrib.items():
        if name == "style":
            yield "style", "; ".join(p for p in value.split("; ") if not p.startswith("font"))
            if "font-weight" in value:
                yield "class", "note"
        elif name == "id":
            if value in used:
                yield name, value
        elif name != "clip-path" and not value.startswith("rotate(-0 "):
            yield name.rpartition("}")[2], value


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
    rows = -(-len(tables) // columns)
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
    return int(10 * float(min(edge, _accuracy_interval(table)[0].min()))) / 10  # never negative


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
    entries = {
        "calibrated": Line2D([], [], color=_GREY, linewidth=1, linestyle=(0, (4, 3))),
        "bin, 95 % interval": Line2D([], [], color=_INK, marker="o", markersize=4, linewidth=1),
        "overconfident": Patch(color=_OVER, alpha=0.5, linewidth=0),
        "underconfident": Patch(color=_UNDER, alpha=0.5, linewidth=0),
        "mean confidence": Line2D([], [], color=_INK, linewidth=1.2, linestyle="--"),
        "overall accuracy": Line2D([], [], color=_INK, linewidth=1.2),
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
