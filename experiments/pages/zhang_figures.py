"""The pictures of Zhang et al.'s section."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from experiments import zhang_digits, zhang_family, zhang_headline, zhang_tables
from experiments.cells import Row, read_rows
from experiments.figures import Figure
from experiments.markdown import at

__all__ = ["FIGURES"]

_METHODS = ("SGLD", "BBP", "MC dropout", "SGD")


def _paint_family(canvas: Canvas) -> None:
    rows = read_rows("zhang_family")
    everyone, batches, rates = canvas.subplots(1, 3)
    for method, colour in (("SGD", "0.6"), ("SGLD", "C3")):
        found = at(rows, {"method": method})
        everyone.scatter(*_points(found), color=colour, s=14, label=f"DP-{method}")
        for panel, name in ((batches, "batch_size"), (rates, "learning_rate")):
            cells = zhang_family.swept(method, name)
            swept = [row for cell in cells for row in at(rows, cell)]
            panel.plot(*_points(swept), "o-", color=colour, markersize=3)
            panel.margins(x=0.15)  # room for the numbers
            for row in swept:
                panel.annotate(
                    f"{row['settings'][name]:g}", _point(row), fontsize=6, xytext=(2, 2),
                    textcoords="offset points",
                )  # fmt: skip
    for panel, title in ((everyone, "all"), (batches, "batch size"), (rates, "learning rate")):
        panel.set(title=title, xlabel="epsilon", xscale="log")
        panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_formatter(NullFormatter())
    everyone.set_ylabel("accuracy")
    everyone.legend(fontsize=6)


def _point(row: Row) -> tuple[float, float]:
    return row["scores"]["epsilon"], row["scores"]["accuracy"]


def _points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    points = [_point(row) for row in rows]
    return [x for x, _ in points], [y for _, y in points]


def _paint_reliability(canvas: Canvas) -> None:
    rows = read_rows("zhang_tables")
    panels = canvas.subplots(2, 4, sharex=True, sharey=True)
    for network, line in zip(("mlp", "cnn"), panels, strict=True):
        for method, panel in zip(_METHODS, line, strict=True):
            panel.plot([0, 1], [0, 1], color="0.8", linewidth=1)
            for prior, style in (("gaussian", "-"), ("none", ":")):
                for is_private, colour in ((True, "C3"), (False, "C0")):
                    cell = zhang_tables.cell(network, method, prior, is_private=is_private)
                    found = at(rows, cell)
                    if found:
                        label = ("DP" if is_private else "no DP", f"prior {prior}")
                        _paint_bins(panel, found[0], style, colour, ", ".join(label))
            panel.set_title(f"{method}, {network.upper()}", fontsize=8)
            panel.set_visible(len(panel.lines) > 1)  # the paper has no BBP for the CNN
    panels[0, 0].legend(fontsize=5)
    canvas.supxlabel("confidence", fontsize=8)
    canvas.supylabel("accuracy", fontsize=8)


def _paint_bins(panel: Axes, row: Row, style: str, colour: str, label: str) -> None:
    bins = row["series"]["reliability"]
    panel.plot(bins["confidence"], bins["accuracy"], style, color=colour, label=label, linewidth=1)


def _paint_headline(canvas: Canvas) -> None:
    rows = read_rows("zhang_headline")
    panels = canvas.subplots(2, 4)
    shown_rows: dict[str, list[Row]] = {"mlp": [], "cnn": []}
    for cell in reversed(zhang_headline.EXPERIMENT.cells):
        # The first choice of each network that was run.
        shown_rows[cell["network"]] = at(rows, cell) or shown_rows[cell["network"]]
    for line, digit, network in zip(panels, zhang_digits.DIGITS, ("mlp", "cnn"), strict=True):
        line[0].set_axis_off()
        for row in rows[:1]:
            image = zhang_digits.unpacked_image(row["series"]["images"][digit])
            line[0].imshow(image, cmap="gray_r")
        for panel, shown in zip(line[1:3], ("mlp", "cnn"), strict=True):
            for row in shown_rows[shown][:1]:
                _paint_histogram(panel, row["series"][digit])
            panel.set(xlim=(0, 1), title=f"{digit}, {shown.upper()}")
        line[3].plot([0, 1], [0, 1], color="0.8", linewidth=1)
        for row in shown_rows[network]:
            _paint_bins(line[3], row, "-", "C3", "")
        line[3].set_title(f"reliability, {network.upper()}")
    for panel in panels[:, 1:].flat:
        panel.title.set_fontsize(8)
        panel.tick_params(labelsize=6)


def _paint_digits(canvas: Canvas) -> None:
    rows = read_rows("zhang_tables")
    methods = ("SGLD", "BBP", "MC dropout")
    panels = canvas.subplots(4, 3, sharex=True)
    lines = [(digit, is_private) for digit in zhang_digits.DIGITS for is_private in (False, True)]
    for line, (digit, is_private) in zip(panels, lines, strict=True):
        for method, panel in zip(methods, line, strict=True):
            cell = zhang_tables.cell("mlp", method, "gaussian", is_private=is_private)
            for row in at(rows, cell)[:1]:
                _paint_histogram(panel, row["series"][digit])
            name = f"DP-{method}" if is_private else method
            panel.set_title(f"{digit}: {name}", fontsize=7)
            panel.set_xlim(0, 1)
            panel.tick_params(labelsize=5)
    handles, labels = panels[-1, 0].get_legend_handles_labels()
    canvas.legend(handles, labels, loc="outside right upper", fontsize=6, title="class")
    canvas.supxlabel("probability that a draw gives to the class", fontsize=8)
    canvas.supylabel("share of draws", fontsize=8)


def _paint_histogram(panel: Axes, counts: Sequence[Sequence[int]]) -> None:
    shares = np.asarray(counts) / np.sum(counts[0])
    centres = (np.arange(zhang_digits.NUM_BINS) + 0.5) / zhang_digits.NUM_BINS
    for digit, share in enumerate(shares):
        offset = (digit - 4.5) * 0.008
        panel.bar(centres + offset, share, width=0.008, color=f"C{digit}", label=f"{digit}")


FIGURES: Sequence[Figure] = (
    Figure(
        name="zhang_family",
        caption=(
            "Accuracy and epsilon of DP-SGD and DP-SGLD: all runs (figure 1), and those in which"
            " only the batch size or only the learning rate changes (figure 2)."
        ),
        sources=("zhang_family",),
        paint=_paint_family,
    ),
    Figure(
        name="zhang_reliability",
        caption=(
            "Reliability on MNIST with (red) and without (blue) DP, with the Gaussian prior (solid)"
            " and without (dotted); figures 3, 8 and 9. On the diagonal confidence is accuracy."
        ),
        sources=("zhang_tables",),
        paint=_paint_reliability,
        size=(8.0, 4.2),
    ),
    Figure(
        name="zhang_digits",
        caption=(
            "How often draws of the MLP's posterior give each class a probability in each tenth,"
            " for an easy 2 and a hard 3; figures 5, 6 and 7."
        ),
        sources=("zhang_tables",),
        paint=_paint_digits,
        size=(7.5, 6.0),
    ),
    Figure(
        name="zhang_headline",
        caption=(
            "Two test digits, how often draws of the posterior give each class (by colour) a"
            " probability in each tenth, and reliability with one line for each run. Of each"
            " network the first row of the table that was run."
        ),
        sources=("zhang_headline",),
        paint=_paint_headline,
        size=(8.0, 3.6),
    ),
)
