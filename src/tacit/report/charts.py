"""Charts as inline SVG: crisp, themed by CSS variables of the page, each with a table behind it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Protocol

from tacit.errors import InvalidArgumentError

__all__ = ["Area", "Axis", "Bars", "Chart", "Dots", "Frame", "Line", "Mark", "Rule", "draw"]

_WIDTH, _HEIGHT = 380, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 20, 30, 42


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis: what it shows, from where to where.

    Attributes:
      label: what it shows.
      low: its start.
      high: its end, above the start.
      is_share: whether numbers are shown as percentages.
    """

    label: str
    low: float
    high: float
    is_share: bool = False

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise InvalidArgumentError(
                f"low must be below high, both finite; got {self.low!r} and {self.high!r}."
            )

    @property
    def ticks(self) -> list[float]:
        """About five round numbers.

        Example:
          >>> Axis(label="epsilon", low=0.0, high=0.83).ticks
          [0.0, 0.2, 0.4, 0.6, 0.8]
        """
        rough = (self.high - self.low) / 4
        power = 10.0 ** math.floor(math.log10(rough))
        step = min((m * power for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - rough))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        return [round(i * step, 12) for i in range(first, last + 1)]

    def text(self, value: float) -> str:
        """A number as it stands beside the axis."""
        return f"{100 * value:g}%" if self.is_share else f"{value:,g}"


@dataclass(frozen=True)
class Frame:
    """Where values of two axes are on the drawing."""

    x: Axis
    y: Axis

    def across(self, value: float) -> float:
        """The horizontal place of a value."""
        share = (value - self.x.low) / (self.x.high - self.x.low)
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 2)

    def up(self, value: float) -> float:
        """The vertical place of a value."""
        share = (value - self.y.low) / (self.y.high - self.y.low)
        return round(_HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM), 2)

    @property
    def ends(self) -> tuple[float, float]:
        """Where the drawing begins and ends horizontally."""
        return self.across(self.x.low), self.across(self.x.high)

    def path(self, x: Sequence[float], y: Sequence[float]) -> str:
        """Points as the data of a path."""
        points = (f"{self.across(a)},{self.up(b)}" for a, b in zip(x, y, strict=True))
        return "M" + "L".join(points)


class Mark(Protocol):
    """Something that is drawn into a frame."""

    @property
    def name(self) -> str:
        """Its entry in the legend; empty for none."""

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""

    def svg(self, frame: Frame) -> str:
        """Its elements."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A drawing for the page, and the same as a table.

    Attributes:
      title: what is shown, in a few words.
      svg: the drawing.
      caption: how to read it.
      legend: pairs of a class and a name.
      columns: headings of the table.
      rows: of the table, as text.
    """

    title: str
    svg: str
    caption: str
    legend: list[tuple[str, str]] = field(default_factory=list)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def draw(
    *,
    title: str,
    caption: str,
    x: Axis,
    y: Axis,
    marks: Sequence[Mark],
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
) -> Chart:
    """Returns a chart of marks on two axes.

    Example:
      >>> from tacit.report.charts import Line
      >>> share = Axis(label="share", low=0.0, high=1.0, is_share=True)
      >>> chart = draw(title="Squares", caption="", x=share, y=share, columns=(), rows=(),
      ...              marks=[Line(x=[0.0, 1.0], y=[0.0, 1.0], name="line")])
      >>> chart.svg[:4], chart.legend
      ('<svg', [('one', 'line')])
    """
    frame = Frame(x, y)
    body = "".join(mark.svg(frame) for mark in marks)
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{_grid(frame)}{body}</svg>"
    )
    legend = [(mark.key, mark.name) for mark in marks if mark.name]
    return Chart(title=title, svg=svg, caption=caption, legend=legend, columns=columns, rows=rows)


def _grid(frame: Frame) -> str:
    right, bottom = _WIDTH - _RIGHT, _HEIGHT - _BOTTOM
    parts = []
    for tick in frame.y.ticks:
        y = frame.up(tick)
        parts.append(
            f'<path class="grid" d="M{_LEFT},{y}H{right}"/>'
            f'<text class="tick end" x="{_LEFT - 7}" y="{y + 4:g}">{frame.y.text(tick)}</text>'
        )
    for tick in frame.x.ticks:
        x = frame.across(tick)
        parts.append(f'<text class="tick" x="{x}" y="{bottom + 17}">{frame.x.text(tick)}</text>')
    middle = (_LEFT + right) / 2
    parts.append(
        f'<path class="axis" d="M{_LEFT},{bottom}H{right}"/>'
        f'<text class="label" x="{middle:g}" y="{_HEIGHT - 6}">{escape(frame.x.label)}</text>'
        f'<text class="label start" x="4" y="13">{escape(frame.y.label)}</text>'
    )
    return "".join(parts)


@dataclass(frozen=True, kw_only=True)
class Line:
    """Points joined by a line."""

    x: Sequence[float]
    y: Sequence[float]
    name: str = ""
    style: str = "one"

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""
        return self.style

    def svg(self, frame: Frame) -> str:
        """A path."""
        return f'<path class="line {self.style}" d="{frame.path(self.x, self.y)}"/>'


@dataclass(frozen=True, kw_only=True)
class Area:
    """What lies between two lines."""

    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str = ""
    style: str = "one"

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""
        return "area"

    def svg(self, frame: Frame) -> str:
        """A closed path."""
        there = frame.path(self.x, self.high)
        back = frame.path(self.x[::-1], self.low[::-1])[1:]
        return f'<path class="area {self.style}" d="{there}L{back}Z"/>'


@dataclass(frozen=True, kw_only=True)
class Dots:
    """Points, each with the interval it may lie in."""

    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    name: str = ""
    style: str = "one"

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""
        return "dot"

    def svg(self, frame: Frame) -> str:
        """Circles and whiskers."""
        parts = []
        for x, y, low, high in zip(self.x, self.y, self.low, self.high, strict=True):
            at = frame.across(x)
            parts.append(
                f'<path class="whisker {self.style}" d="M{at},{frame.up(low)}V{frame.up(high)}"/>'
                f'<circle class="dot {self.style}" cx="{at}" cy="{frame.up(y)}" r="3.6"/>'
            )
        return "".join(parts)


@dataclass(frozen=True, kw_only=True)
class Bars:
    """A histogram: ``len(edges) == len(heights) + 1``."""

    edges: Sequence[float]
    heights: Sequence[float]
    name: str = ""
    style: str = "one"

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""
        return self.style

    def svg(self, frame: Frame) -> str:
        """Rectangles with a hair of space between them."""
        floor = frame.up(frame.y.low)
        parts = []
        for left, right, height in zip(self.edges, self.edges[1:], self.heights, strict=False):
            start, stop = frame.across(left) + 0.5, frame.across(right) - 0.5
            top = frame.up(height)
            parts.append(
                f'<rect class="bar {self.style}" x="{start:g}" y="{top:g}"'
                f' width="{max(stop - start, 0.5):g}" height="{floor - top:g}"/>'
            )
        return "".join(parts)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A horizontal line at one value, with a few words on it."""

    at: float
    words: str
    name: str = ""
    style: str = "rule"

    @property
    def key(self) -> str:
        """The class of its entry in the legend."""
        return self.style

    def svg(self, frame: Frame) -> str:
        """A line and a text above it."""
        y, (left, right) = frame.up(self.at), frame.ends
        return (
            f'<path class="line {self.style}" d="M{left},{y}H{right}"/>'
            f'<text class="note" x="{left + 6:g}" y="{y - 6:g}">{escape(self.words)}</text>'
        )
