"""Charts of the report: matplotlib drawings as inline SVG in the colours of the page.

A drawing uses the colours below, which stand for CSS variables: the page's stylesheet decides what
they are in light, in dark and in print, and how large the text is.
"""

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from tacit.errors import InvalidArgumentError

__all__ = ["CARD", "DASHED", "DOTTED", "INK", "ONE", "SOFT", "TWO", "Chart", "chart", "chart_axes"]

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
) -> Axes:
    """Returns empty axes in the style of the page, about five ticks on each.

    Args:
      x_label: what the horizontal axis shows.
      y_label: what the vertical axis shows.
      x_limits: where the horizontal axis starts and ends.
      y_limits: where the vertical axis starts and ends.
      x_is_share: whether its numbers are shown as percentages.
      y_is_share: whether its numbers are shown as percentages.

    Example:
      >>> axes = chart_axes("steps", "epsilon", x_limits=(0, 430), y_limits=(0, 1))
      >>> [float(tick) for tick in axes.get_xticks()]
      [0.0, 100.0, 200.0, 300.0, 400.0]
    """
    figure = Figure(figsize=(_WIDTH / 72, _HEIGHT / 72), dpi=72)
    figure.patch.set_visible(False)
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    axes = figure.add_axes((_LEFT / _WIDTH, _BOTTOM / _HEIGHT, width / _WIDTH, height / _HEIGHT))
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
    axes.xaxis.set_major_formatter(FuncFormatter(_percent if x_is_share else _plain))
    axes.yaxis.set_major_formatter(FuncFormatter(_percent if y_is_share else _plain))
    across, below, above = (_LEFT + width / 2) / _WIDTH, 6 / _HEIGHT, 1 - 13 / _HEIGHT
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


def _percent(value: float, _: int) -> str:
    return f"{100 * value:g}%"


def _plain(value: float, _: int) -> str:
    return f"{value:,g}"


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
    svg.attrib = {"viewBox": f"0 0 {_WIDTH} {_HEIGHT}", "role": "img", "aria-label": title}
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
