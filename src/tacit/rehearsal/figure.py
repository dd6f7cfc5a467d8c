"""A picture of rehearsals: one row for each, one panel for each measure that applies."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tacit.rehearsal.rehearsing import Rehearsal

__all__ = ["comparison"]

_PANELS: Mapping[str, tuple[str, str | None]] = {
    "accuracy": ("accuracy", "best_accuracy"),
    "rmse": ("root mean square error", "best_rmse"),
    "nll": ("negative log likelihood", "best_nll"),
    "ece": ("calibration error", None),
    "coverage": ("coverage of intervals", None),
    "width": ("width, without privacy 1", None),
    "clipped": ("clipped records", None),
    "acceptance": ("accepted proposals", None),
}
"""Titles, and the score given the true parameters, if there is one."""

_INK, _GREY, _BLUE = "#222222", "#767676", "#0072B2"


def comparison(rehearsals: Mapping[str, Rehearsal]) -> Figure:
    """Returns means with two standard errors, beside a dashed line.

    The line is the score given the true parameters, the level of intervals, or a width of one.

    Args:
      rehearsals: by the names that rows get.
    """
    names = list(rehearsals)
    found = list(rehearsals.values())
    panels = [name for name in _PANELS if any(name in each.shown for each in found)]
    size = (1.2 + 1.9 * len(panels), 1.3 + 0.34 * len(names))
    picture = Figure(figsize=size, dpi=120, layout="constrained")
    FigureCanvasAgg(picture)
    all_axes = picture.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    for axes, name in zip(all_axes, panels, strict=True):
        _panel(axes, found, name)
    all_axes[0].set_yticks(range(len(names)), names)
    all_axes[0].set_ylim(len(names) - 0.5, -0.5)
    return picture


def _panel(axes: Axes, found: Sequence[Rehearsal], name: str) -> None:
    title, best = _PANELS[name]
    for row, each in enumerate(found):
        if name not in each.shown:
            continue
        mean, error = each.mean(name), 2 * np.nan_to_num(each.error(name))
        axes.hlines(row, mean - error, mean + error, color=_BLUE, linewidth=1.2)
        axes.plot(mean, row, "o", color=_BLUE, markersize=5)
    if best is not None or name in ("coverage", "width"):
        target = 1.0 if name == "width" else found[0].level if best is None else found[0].mean(best)
        axes.axvline(target, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.set_title(title, fontsize=9, color=_INK, loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GREY)
    axes.tick_params(labelsize=8.5, color=_GREY)
    axes.tick_params(axis="y", length=0)
