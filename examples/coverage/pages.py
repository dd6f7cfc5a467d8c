"""Tables and the figure of the coverage study, made from its file of results."""

from collections.abc import Iterable, Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

__all__ = ["figure", "tables"]

Row = Mapping[str, Any]

# The palette of the reliability diagrams: orange for too narrow, blue for too wide.
_OVER, _UNDER = "#D55E00", "#0072B2"
_INK, _GREY = "#222222", "#767676"


def _recommended(results: Mapping[str, Any]) -> list[Row]:
    """The rows of the recommended method of each problem, corrected."""
    chosen = results["recommended"]
    return [row for row in _rows(results) if chosen.get(row["problem"]) == row["method"]]


def _rows(results: Mapping[str, Any]) -> Iterable[Row]:
    for rows in results["cells"].values():
        yield from rows


def _published(rows: Iterable[Row]) -> list[Row]:
    """Of each cell the corrected row, or the raw one where nothing is corrected."""
    best: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = (row["problem"], row["method"], row["epsilon"], row["batches"])
        if key not in best or row["version"] == "corrected":
            best[key] = row
    return list(best.values())


def _cell(row: Row | None) -> str:
    if row is None:
        return "–"
    if row["std"] is None:
        return "no numbers"
    return (
        f"{100 * row['coverage_90']:.0f} ± {100 * row['error_90']:.1f} ·"
        f" {100 * row['coverage_50']:.0f} ± {100 * row['error_50']:.1f} ·"
        f" {row['over_optimum']:.2f}× · {row['over_exact']:.2f}×"
    )


def tables(results: Mapping[str, Any]) -> str:
    """Returns the tables in Markdown: recommended methods, then all methods at epsilon 1."""
    return "\n\n".join([_recommended_table(results), _methods_table(results)])


def _recommended_table(results: Mapping[str, Any]) -> str:
    rows = _published(_recommended(results))
    epsilons = sorted({row["epsilon"] for row in rows})
    names = " | ".join(f"ε = {epsilon:g}" for epsilon in epsilons)
    lines = [f"| | batches | without privacy | {names} |", "|---|---|---|" + "---|" * len(epsilons)]
    found = {(row["problem"], row["batches"], row["epsilon"]): row for row in rows}
    for problem, batches in dict.fromkeys((row["problem"], row["batches"]) for row in rows):
        exact = results["exact"].get(problem)
        plain = "–" if exact is None else _plain(exact)
        cells = [_cell(found.get((problem, batches, epsilon))) for epsilon in epsilons]
        title = f"{problem}: {results['recommended'][problem]}"
        lines.append(f"| {title} | {batches} | {plain} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _plain(row: Row) -> str:
    return f"{100 * row['coverage_90']:.0f} · {100 * row['coverage_50']:.0f}"


def _methods_table(results: Mapping[str, Any]) -> str:
    rows = [row for row in _rows(results) if row["epsilon"] == 1 and row["batches"] == "full"]
    lines = [
        "| problem | method | as made | corrected | with a caution | 90 % intervals without one |",
        "|---|---|---|---|---|---|",
    ]
    found = {(row["problem"], row["method"], row["version"]): row for row in rows}
    for problem, method in dict.fromkeys((row["problem"], row["method"]) for row in rows):
        corrected = found.get((problem, method, "corrected"))
        raw = found.get((problem, method, "raw"))
        said, quiet = ("100 %", "–") if corrected is None else _cautions(corrected)
        texts = (problem, method, _cell(raw), _cell(corrected), said, quiet)
        lines.append(f"| {' | '.join(texts)} |")
    return "\n".join(lines)


def _cautions(row: Row) -> tuple[str, str]:
    quiet = "–"
    if "quiet_coverage_90" in row:
        quiet = f"{100 * row['quiet_coverage_90']:.0f} ± {100 * row['quiet_error_90']:.1f}"
    return f"{100 * row['cautioned']:.0f} %", quiet


def figure(results: Mapping[str, Any]) -> Figure:
    """Returns a panel for each epsilon: the coverage of the recommended method of each problem."""
    rows = _published(_recommended(results))
    problems = list(dict.fromkeys(row["problem"] for row in rows))
    epsilons = sorted({row["epsilon"] for row in rows})
    picture = Figure(figsize=(9.0, 0.9 + 0.36 * len(problems)), dpi=100, layout="constrained")
    FigureCanvasAgg(picture)
    panels = picture.subplots(1, len(epsilons), sharex=True, sharey=True, squeeze=False)[0]
    for axes, epsilon in zip(panels, epsilons, strict=True):
        _panel(axes, [row for row in rows if row["epsilon"] == epsilon], problems)
        axes.set_title(f"ε = {epsilon:g}", fontsize=10.5, fontweight="bold", color=_INK)
    panels[0].set_yticks(range(len(problems)), problems)
    panels[0].set_ylim(len(problems) - 0.5, -0.5)
    picture.supxlabel("share of intervals that hold the truth, ± 2 standard errors", fontsize=9.5)
    entries = {
        "90 % interval": Line2D([], [], color=_INK, marker="o", markersize=5, linewidth=1),
        "50 % interval": Line2D([], [], color=_INK, marker="D", markersize=4, linewidth=1),
        "Poisson batches": Line2D(
            [], [], color=_INK, marker="o", markersize=5, linewidth=0, markerfacecolor="white"
        ),
        "holds it too seldom": Line2D([], [], color=_OVER, marker="o", markersize=5, linewidth=0),
        "too often": Line2D([], [], color=_UNDER, marker="o", markersize=5, linewidth=0),
    }
    picture.legend(
        handles=list(entries.values()),
        labels=list(entries),
        loc="outside upper center",
        ncols=len(entries),
        fontsize=9,
        frameon=False,
    )
    return picture


def _panel(axes: Axes, rows: list[Row], problems: list[str]) -> None:
    axes.axvline(0.9, color=_GREY, linewidth=1, linestyle=(0, (4, 3)))
    axes.axvline(0.5, color=_GREY, linewidth=1, linestyle=(0, (1, 2)))
    for row in rows:
        y = problems.index(row["problem"]) + (0.16 if row["batches"] == "Poisson" else -0.16)
        for level, marker in ((90, "o"), (50, "D")):
            _dot(axes, row, level, y, marker)
    axes.set_xlim(0.3, 1.02)
    axes.set_xticks([0.5, 0.7, 0.9], [".5", ".7", ".9"])
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(_GREY)
    axes.tick_params(labelsize=9, color=_GREY)
    axes.tick_params(axis="y", length=0)


def _dot(axes: Axes, row: Row, level: int, y: float, marker: str) -> None:
    coverage, error = row[f"coverage_{level}"], 2 * row[f"error_{level}"]
    low, high = coverage - error, coverage + error
    colour = _OVER if high < level / 100 else _UNDER if low > level / 100 else _INK
    axes.hlines(y, low, high, color=colour, linewidth=1)
    face = "white" if row["batches"] == "Poisson" else colour
    size = 5 if marker == "o" else 4
    axes.plot(coverage, y, color=colour, marker=marker, markersize=size, markerfacecolor=face)
