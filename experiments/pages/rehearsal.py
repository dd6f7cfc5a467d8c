"""What rehearsals chose and predicted, beside what came out on six tables."""

import statistics
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D

from experiments import rehearsed_coverage, rehearsed_predictions, rehearsed_tables
from experiments.cells import Row, read_rows
from experiments.figures import Figure
from experiments.markdown import at, table
from experiments.rehearsed_predictions import PRIOR_EPSILON
from experiments.rehearsed_tables import DEFAULT, EPSILONS, LARGE, NETWORK
from experiments.small_tables import TABLES

__all__ = ["FIGURES", "methods_section", "section"]

_METHODS = {
    "SGLD": ("sgld",),
    "VI": ("vi",),
    "Laplace": ("laplace",),
    "Laplace, 10 steps": ("laplace, 10 steps, 2 x clip norm",),
}


class _Candidate(NamedTuple):
    """Scores on the real table, and what a rehearsal predicted."""

    name: str
    real: dict[str, float]
    predicted: dict[str, float]


class _Place(NamedTuple):
    """All candidates of one table and epsilon, and those that are compared."""

    table: str
    epsilon: float
    candidates: list[_Candidate]

    @property
    def default(self) -> _Candidate:
        """The library's own."""
        name = NETWORK if self.table == LARGE else DEFAULT
        return next(each for each in self.candidates if each.name == name)

    @property
    def rehearsed(self) -> _Candidate:
        """The one that a rehearsal chooses."""
        return min(self.candidates, key=lambda each: each.predicted["nll"])

    @property
    def tuned(self) -> _Candidate:
        """The best on the real records."""
        return min(self.candidates, key=lambda each: each.real["nll"])


def _places() -> list[_Place]:
    """Returns the tables and epsilons of which all candidates are measured."""
    real = read_rows(rehearsed_tables.EXPERIMENT.name)
    predictions = read_rows(rehearsed_predictions.EXPERIMENT.name)
    found = []
    for name in TABLES:
        for epsilon in EPSILONS:
            place = {"table": name, "epsilon": epsilon}
            names = [
                cell["candidate"]
                for cell in rehearsed_tables.EXPERIMENT.cells
                if place.items() <= cell.items()
            ]
            rows = [
                (
                    each,
                    at(real, place | {"candidate": each}),
                    at(predictions, place | {"candidate": each}),
                )
                for each in names
            ]
            if all(one and other for _, one, other in rows):
                candidates = [
                    _Candidate(each, one[0]["scores"], other[0]["scores"])
                    for each, one, other in rows
                ]
                found.append(_Place(name, epsilon, candidates))
    return found


def section() -> str:
    """Returns what rehearsals chose, how it did, and what they predicted."""
    places = _places()
    lines = [
        [
            place.table,
            f"{place.epsilon:g}",
            _scores(place.default.real),
            place.rehearsed.name,
            _scores(place.rehearsed.real),
            place.tuned.name,
            _scores(place.tuned.real),
            _scores(place.default.real, "not private: "),
            _anchor(place.default.real),
        ]
        for place in places
    ]
    header = [
        *("", "ε", "defaults", "chosen by rehearsal", "its score"),
        *("best on the real records", "its score", "not private", "majority, mean"),
    ]
    return f"""{table(header, lines)}

{_verdict(places)}

{_FIGURE.markdown}

{_from_prior(places)}"""


def _verdict(places: list[_Place]) -> str:
    if not places:
        return "Nothing is measured yet."

    def gap(place: _Place, other: _Candidate) -> float:
        return other.real["nll"] - place.default.real["nll"]

    gains = [gap(place, place.rehearsed) for place in places]
    tuned = [gap(place, place.tuned) for place in places]
    worst = max(zip(gains, places, strict=True), key=lambda pair: pair[0])
    better = sum(value < -0.005 for value in gains)
    worse = sum(value > 0.005 for value in gains)
    others = [gain for gain, place in zip(gains, places, strict=True) if place.table != "Pima"]
    hits = sum(place.rehearsed.name == place.tuned.name for place in places)
    return (
        f"In {len(places)} cases the settings chosen by rehearsal had a smaller negative log"
        f" likelihood (by more than 0.005) than the defaults {better} times, a larger one {worse}"
        f" times, and about the same {len(places) - better - worse} times. The mean difference is"
        f" {statistics.mean(gains):+.3f}, that of the best candidate on the real records"
        f" {statistics.mean(tuned):+.3f}; on the tables without Pima the former is"
        f" {statistics.mean(others):+.3f}. The rehearsal found the best candidate {hits} times. Its"
        f" largest loss is {worst[0]:+.3f} ({worst[1].table}, ε {worst[1].epsilon:g})."
    )


def _from_prior(places: list[_Place]) -> str:
    """Returns what is predicted of the defaults, also with truths from the prior as it is."""
    lines = []
    for place in places:
        if place.epsilon != PRIOR_EPSILON:
            continue
        real, predicted = place.default.real, place.default.predicted
        if "accuracy" not in real or not all(
            "prior: nll" in each.predicted for each in place.candidates
        ):
            continue
        chosen = min(place.candidates, key=lambda each: each.predicted["prior: nll"])
        lines.append(
            [
                place.table,
                *(
                    f"{predicted[f'{kind}accuracy']:.3f} of {predicted[f'{kind}best_accuracy']:.3f}"
                    for kind in ("", "prior: ")
                ),
                f"{real['accuracy']:.3f} of {real['not private: accuracy']:.3f}",
                f"{place.rehearsed.name}: {place.rehearsed.real['nll']:.3f}",
                f"{chosen.name}: {chosen.real['nll']:.3f}",
            ]
        )
    header = [
        f"ε = {PRIOR_EPSILON:g}",
        "defaults: predicted accuracy, of that given the truth",
        "the same, truths from the prior",
        "realised, of that without privacy",
        "chosen, its score",
        "chosen with truths from the prior, its score",
    ]
    return table(header, lines)


def _scores(scores: dict[str, float], kind: str = "") -> str:
    first = "accuracy" if "accuracy" in scores else "R2"
    return f"{scores[kind + first]:.3f} · {scores[f'{kind}nll']:.3f}"


def _anchor(scores: dict[str, float]) -> str:
    return f"{scores.get('majority: accuracy', scores.get('mean: R2', 0.0)):.3f}"


def methods_section() -> str:
    """Returns the scores of SGLD, VI and Laplace on the same tables."""
    everything = read_rows(rehearsed_tables.EXPERIMENT.name)
    lines = []
    for name in TABLES:
        for title, candidates in _METHODS.items():
            rows = [
                row
                for candidate in candidates
                for row in at(everything, {"table": name, "candidate": candidate})
            ]
            if rows:
                cells = [_all_scores(at(rows, {"epsilon": epsilon})) for epsilon in EPSILONS]
                lines.append([name, title, *cells])
        some = at(everything, {"table": name})
        if some:
            lines.append([name, "*not private*", *[_plain(some[0])] * len(EPSILONS)])
    header = ["", "", *(f"ε = {epsilon:g}" for epsilon in EPSILONS)]
    return table(header, lines)


def _all_scores(rows: list[Row]) -> str:
    if not rows:
        return "not run"
    scores = rows[0]["scores"]
    names = ("accuracy", "nll", "ece") if "accuracy" in scores else ("R2", "nll")
    return " · ".join(f"{scores[name]:.3f}" for name in names)


def _plain(row: Row) -> str:
    scores = row["scores"]
    names = ("accuracy", "nll", "ece") if "accuracy" in scores else ("R2", "nll")
    return " · ".join(f"{scores[f'not private: {name}']:.3f}" for name in names)


_COLOURS = dict(
    zip(TABLES, ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"), strict=True)
)
_MARKERS = {"defaults": "o", "chosen by rehearsal": "D"}
_GREY = "#767676"


def _paint(canvas: Canvas) -> None:
    accuracy, coverage = canvas.subplots(1, 2)
    real = read_rows(rehearsed_coverage.EXPERIMENT.name)
    for place in _places():
        for marker, each in (("D", place.rehearsed), ("o", place.default)):
            if "accuracy" in each.real:
                _dot(accuracy, each.predicted["accuracy"], each.real["accuracy"], place, marker)
            same = {"table": place.table, "epsilon": place.epsilon, "candidate": each.name}
            for row in at(real, same):
                found = row["scores"]["coverage"]
                _dot(coverage, each.predicted["coverage"], found, place, marker)
    for axes, title, low in (
        (accuracy, "accuracy", 0.5),
        (coverage, "coverage of 90 % intervals", 0),
    ):
        axes.plot([low, 1], [low, 1], color=_GREY, linewidth=1, linestyle="--", zorder=0)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("predicted by the rehearsal", fontsize=9)
        axes.set_ylabel("on the real table", fontsize=9)
        axes.set_aspect("equal")
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    handles = [
        Line2D([], [], linestyle="", marker="s", color=colour, label=name)
        for name, colour in _COLOURS.items()
    ] + [
        Line2D([], [], linestyle="", marker=marker, color=_GREY, label=name)
        for name, marker in _MARKERS.items()
    ]
    canvas.legend(handles=handles, loc="outside right center", fontsize=8, frameon=False)


def _dot(axes: Axes, predicted: float, found: float, place: _Place, marker: str) -> None:
    size = {0.5: 4, 1.0: 6, 3.0: 8}[place.epsilon]
    axes.plot(
        predicted,
        found,
        marker,
        color=_COLOURS[place.table],
        markersize=size,
        alpha=0.75,
        markeredgewidth=0,
    )


_FIGURE = Figure(
    name="rehearsed_tables",
    caption=(
        "What rehearsals predicted, and what came out on the real tables. Larger marks have a"
        " larger epsilon (0.5, 1, 3); on the dashed line both agree."
    ),
    sources=tuple(
        module.EXPERIMENT.name
        for module in (rehearsed_tables, rehearsed_predictions, rehearsed_coverage)
    ),
    paint=_paint,
    size=(9.2, 3.8),
)
FIGURES = (_FIGURE,)
