"""Draws clipping.svg: a loss taken apart into parameter part, sites and record part."""

from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

INK, GREY = "#1f2933", "#7b8794"
PARAMETER, SITE, RECORD, RESULT = "#d9e8fb", "#ffd8a8", "#e3f1e3", "#f1e4f7"


def lane(axes: Axes, bottom: float, top: float, *, title: str, remark: str, colour: str) -> None:
    """Draws a band across the picture."""
    axes.axhspan(bottom, top, color=colour, alpha=0.45, linewidth=0)
    axes.text(0.15, top - 0.25, title, weight="bold", va="top", color=INK, fontsize=10)
    axes.text(0.15, top - 0.57, remark, va="top", color=GREY, fontsize=8.5)


def box(
    axes: Axes, x: float, y: float, text: str, *, colour: str = "white", width: float = 1.1
) -> None:
    """Draws an operation or a value."""
    shape = FancyBboxPatch(
        (x - width / 2, y - 0.24),
        width,
        0.48,
        boxstyle="round,pad=0.02,rounding_size=0.08",
        facecolor=colour,
        edgecolor=INK,
        linewidth=0.9,
    )
    axes.add_patch(shape)
    axes.text(x, y, text, ha="center", va="center", color=INK, fontsize=9)


def arrow(
    axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str = INK
) -> None:
    """Draws an arrow from one point to another."""
    style = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.0, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=end, xytext=start, arrowprops=style)


def draw() -> Figure:
    """Returns the picture."""
    figure = Figure(figsize=(9.6, 5.6), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 12), ylim=(0, 7))
    axes.set_axis_off()
    lane(axes, 4.9, 6.95, title="parameter part", remark="runs once", colour=PARAMETER)
    lane(
        axes,
        2.55,
        4.8,
        title="record part",
        remark="runs under vmap, once for each record",
        colour=RECORD,
    )
    lane(axes, 0.05, 2.45, title="clipping", remark="", colour=RESULT)

    # Parameter part: three leaves of a variational layer, a bias, an output layer.
    box(axes, 2.6, 6.45, "log_std")
    box(axes, 2.6, 5.45, "mean")
    box(axes, 4.25, 6.45, "exp, × draw", width=1.25)
    box(axes, 5.5, 5.45, "+", width=0.5)
    box(axes, 7.1, 5.45, "bias")
    box(axes, 9.3, 5.45, "out")
    arrow(axes, (3.17, 6.45), (3.6, 6.45))
    arrow(axes, (4.9, 6.45), (5.42, 5.71))
    arrow(axes, (3.17, 5.45), (5.23, 5.45))

    # Record part: sites are where the two meet.
    places = {"x · weights": 5.5, "+ bias": 7.1, "h · out": 9.3}
    box(axes, 3.6, 3.7, "x", width=0.6)
    for text, x in places.items():
        box(axes, x, 3.7, text, colour=SITE, width=1.1)
        arrow(axes, (x, 5.19), (x, 3.96))
    box(axes, 8.2, 3.7, "tanh", width=0.6)
    box(axes, 11.05, 3.7, "(· − y)²", width=0.9)
    for start, end in ((3.92, 4.93), (6.07, 6.53), (7.67, 7.88), (8.52, 8.73), (9.87, 10.58)):
        arrow(axes, (start, 3.7), (end, 3.7))
    axes.text(5.62, 4.55, "weights", color=GREY, fontsize=8.5, va="center")
    axes.text(4.42, 3.82, "a₁", color=GREY, fontsize=9, ha="center")
    axes.text(8.62, 3.95, "a₃", color=GREY, fontsize=9, ha="center")

    # What every site hands down: its record operand a and its cotangent d.
    for (_, x), what in zip(places.items(), ("a₁, d₁", "d₂", "a₃, d₃"), strict=True):
        arrow(axes, (x, 3.44), (x, 2.05), GREY)
        axes.text(x + 0.1, 2.85, what, color=INK, fontsize=9, va="center")
    axes.text(0.15, 2.85, "saved on the way:", color=GREY, fontsize=8.5, va="center")
    axes.text(1.6, 2.85, "record operands a, cotangents d", color=INK, fontsize=8.5, va="center")
    box(axes, 7.4, 1.78, "norm rules: |g|² of each record, leaf by leaf", colour=RESULT, width=5.0)
    box(axes, 2.0, 1.0, "clip factors c = min(1, C / |g|)", width=3.1)
    box(axes, 7.4, 1.0, "one derivative of  Σ ⟨c·d, site(a, parameters)⟩", colour=RESULT, width=5.0)
    box(axes, 11.05, 1.0, "clipped sum", width=1.3)
    arrow(axes, (4.86, 1.78), (2.0, 1.28))
    arrow(axes, (3.59, 1.0), (4.86, 1.0))
    arrow(axes, (9.94, 1.0), (10.36, 1.0))
    axes.text(
        6.0,
        0.36,
        "orange: sites, the only places where a record and a trained value meet",
        color=GREY,
        fontsize=8.5,
        ha="center",
    )
    return figure


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "clipping"  # the same file from the same code
    draw().savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None})
