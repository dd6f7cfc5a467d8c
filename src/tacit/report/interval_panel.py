"""The panel of credible intervals: coefficients, and what privacy noise adds to their widths."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tacit.report.figures import CARD, DASHED, ONE, SOFT, Chart, chart, chart_axes
from tacit.studies.coefficients import INTERCEPT, NOISE
from tacit.studies.run_folder import FinishedRun

__all__ = ["IntervalPanel", "interval_panel"]

_MOST_DRAWN = 30
_ROW, _LETTER, _LONGEST = 17, 6.8, 24
_MOST_BESIDE = 15


class IntervalPanel(NamedTuple):
    """What is known about the intervals of a run.

    Attributes:
      words: one paragraph of explanation.
      caveats: why the intervals are not to be trusted.
      columns: headings of the table of coefficients.
      rows: of the table, as text; empty where there are no coefficients.
      charts: forest plots of the same, one for each class where there are several.
    """

    words: str
    caveats: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    charts: Sequence[Chart]

    @property
    def first_number(self) -> int:
        """The place of the first column that is aligned to the right."""
        return self.columns.index("change by")

    @property
    def is_long(self) -> bool:
        """Whether the table is too long to stand beside a drawing."""
        return len(self.rows) > _MOST_BESIDE


def interval_panel(run: FinishedRun) -> IntervalPanel | None:
    """Returns the panel; None where the run says nothing about its intervals."""
    facts, table = run.intervals, run.coefficients
    if table is None and not facts.rows:
        return None
    is_private = not math.isinf(float(run.statement["epsilon"]))
    if facts.is_corrected:
        words = (
            "Each interval holds its coefficient with a posterior probability of 90 %, given all"
            " that was released. The size of the privacy noise is known, and it is counted in the"
            " widths. The thick part of a line is about as wide as the interval would be without"
            " that noise; the last column is the share of the width that the noise accounts for."
        )
    elif is_private:
        words = (
            "These are 90 % intervals of the draws as the method made them. They were not corrected"
            " for privacy noise, and may be too narrow or too wide."
        )
    else:
        words = "Each interval holds its coefficient with a posterior probability of 90 %."
    if table is None:
        words = "Single parameters of a network have no meaning, so no intervals of them are shown."
        return IntervalPanel(words, facts.caveats, (), (), ())
    charts = [_forest(name, own) for name, own in _by_output(table)]
    if len(table) > _MOST_DRAWN:
        words += f" The drawing shows the {_MOST_DRAWN} farthest from zero for their width."
    several = table.index.nlevels > 1
    columns = (str(table.index.names[0]),) * several + (
        "coefficient",
        "change by",
        "mean",
        "90 % interval",
    )
    return IntervalPanel(
        words,
        facts.caveats,
        columns + ("privacy",) * facts.is_corrected,
        [
            _cells(row, is_corrected=facts.is_corrected)
            for row in table.reset_index().to_dict("records")
        ],
        charts,
    )


def _by_output(table: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    if table.index.nlevels == 1:
        return [("", table)]
    return [(str(name), own.droplevel(0)) for name, own in table.groupby(level=0, sort=False)]


def _cells(row: dict[Any, Any], *, is_corrected: bool) -> list[str]:
    places = _places(row["std"])
    unit = "" if np.isnan(row["unit"]) else f"{row['unit']:.4g}"
    cells = [str(row[name]) for name in ("class", "output") if name in row]
    cells += [str(row["coefficient"]), unit, f"{row['mean']:.{places}f}"]
    cells.append(f"{row['low']:.{places}f} to {row['high']:.{places}f}")
    if is_corrected:
        cells.append(f"{100 * row['privacy_share']:.0f} %")
    return cells


def _places(std: float) -> int:
    """How many decimals are worth showing: two digits of the standard deviation."""
    return int(np.clip(1 - np.floor(np.log10(std)), 0, 8)) if std > 0 else 3


def _forest(output: str, table: pd.DataFrame) -> Chart:
    """Returns one line for each coefficient, with a dot at its mean."""
    table = table.drop(index=[name for name in (NOISE,) if name in table.index])
    if len(table) > _MOST_DRAWN:
        distance = (table["mean"].abs() / table["std"]).drop(index=INTERCEPT, errors="ignore")
        table = table[table.index.isin(distance.nlargest(_MOST_DRAWN).index)]
    elif len(table) > 1:
        # The place of an intercept says nothing beside those of coefficients, but sets the scale.
        table = table.drop(index=INTERCEPT, errors="ignore")
    names = [_short(str(name)) for name in table.index]
    low, high, mean = (table[name].to_numpy(float) for name in ("low", "high", "mean"))
    edge = 0.04 * max(float(high.max() - low.min()), 1e-9)
    axes = chart_axes(
        "coefficient",
        "",
        x_limits=(min(0.0, float(low.min()) - edge), max(0.0, float(high.max()) + edge)),
        y_limits=(-0.7, len(names) - 0.3),
        height=72 + _ROW * len(names),
        left=round(16 + _LETTER * max(map(len, names))),
    )
    places = np.arange(len(names))[::-1]
    axes.set_yticks(places, names)
    axes.axvline(0.0, color=SOFT, linewidth=1.3, linestyle=DASHED)
    axes.hlines(places, low, high, color=ONE, linewidth=1.4)
    share = table["privacy_share"].to_numpy(float)
    legend = [("one", "90 % interval"), ("dot", "mean")]
    if not np.isnan(share).any():
        axes.hlines(
            places, mean - (1 - share) * (mean - low), mean + (1 - share) * (high - mean),
            color=ONE, linewidth=5, alpha=0.35,
        )  # fmt: skip
        legend.insert(1, ("area", "without privacy noise"))
    axes.scatter(mean, places, s=26, color=CARD, edgecolor=ONE, linewidth=1.8, zorder=3)
    return chart(
        axes,
        title=f"Coefficients of {output}" if output else "Coefficients",
        caption="On the dashed line a coefficient is zero. The intercept is in the table.",
        legend=legend,
        columns=(),
        rows=(),
    )


def _short(name: str) -> str:
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 9]}…{name[-8:]}"
