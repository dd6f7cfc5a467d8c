"""What charts are made of: lines, areas, dots, bars and rules."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from tacit.report.charts import Frame

__all__ = ["Area", "Bars", "Dots", "Line", "Rule"]


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
