"""One private posterior, all its properties at once, and the coverage of its intervals."""

import statistics

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas

from experiments import together, together_coverage
from experiments.cells import Row, read_rows
from experiments.figures import Figure
from experiments.markdown import at, epsilon_text, progress, summary, table

__all__ = ["FIGURES", "section"]

_PANELS = {
    "accuracy": "accuracy",
    "ECE": "calibration error",
    "certified": "certified at 0.075",
    "OOD AUROC, entropy": "AUROC, foreign images",
    "audited epsilon": "audited epsilon",
}
_BLUE, _GREY = "#0072B2", "#767676"


def section() -> str:
    """Returns the section."""
    return "\n\n".join([_properties(), _coverage()])


def _properties() -> str:
    experiment = together.EXPERIMENT
    rows = read_rows(experiment.name)
    epsilons = sorted(together.EPSILONS)
    lines = [
        [
            title,
            *(
                summary(experiment, at(rows, {"epsilon": epsilon}), score, digits=3)
                for epsilon in epsilons
            ),
        ]
        for score, title in _PANELS.items()
    ]
    return f"""### All properties at once

The certified posterior of MNIST by stochastic gradient Hamiltonian Monte Carlo: its accuracy,
15-bin ECE, certified accuracy, how well the entropy of its predictive tells Fashion-MNIST from
MNIST, and a lower bound of epsilon from an attack, with 95 % confidence. Mean ± standard deviation
over seeds; delta is 1e-5.
{progress(experiment, rows)}

{_FIGURE.markdown}

{table(["", *map(epsilon_text, epsilons)], lines)}

The settings are those chosen on Fashion-MNIST for epsilon 1 and 3, whichever is nearer; they are
cheaper than those of the best certified rows. The attack sees
{together.NUM_CANARIES} canaries that only the noise hides, in one run of the same method, with the
same noise and as many steps. {_verdict(rows)} A lower bound below epsilon is no sign of slack: one
run with so few canaries cannot show much more."""


def _verdict(rows: list[Row]) -> str:
    if not rows:
        return "It has not been run."
    broken = [row for row in rows if row["scores"]["audited epsilon"] > row["settings"]["epsilon"]]
    return f"It contradicts the promised epsilon in {len(broken)} of {len(rows)} runs."


def _coverage() -> str:
    experiment = together_coverage.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = [
        [
            way,
            *(
                summary(
                    experiment, at(rows, {"way": way, "epsilon": epsilon}), "coverage", digits=2
                )
                + _width(at(rows, {"way": way, "epsilon": epsilon}))
                for epsilon in together_coverage.EPSILONS
            ),
        ]
        for way in together_coverage.WAYS
    ]
    return f"""### Coverage of credible intervals

Of images no true probabilities are known, so the task is simulated: three classes, 16 inputs in
[0, 1], 10 000 records, and a truth that is drawn from the prior. A number is the share of test
inputs and classes whose true probability lies in the interval between the
{(1 - together_coverage.LEVEL) / 2:.0%} and {(1 + together_coverage.LEVEL) / 2:.0%} quantiles of the
draws' probabilities, which should be {together_coverage.LEVEL:.2f}; after it the mean width of the
interval. Every row takes one thing away from the one above.
{progress(experiment, rows)}

{table(["", *map(epsilon_text, together_coverage.EPSILONS)], lines)}

The first row is the method of the certified posterior. Interval training and a small clip both
change what is inferred: a robust loss wants probabilities nearer to the middle, and clipped
gradients add up to zero elsewhere than plain ones do. Intervals can then be as narrow as the noise
makes them and lie beside the truth. At temperature one a small budget means short steps, and the
chain may end before it has arrived; with noise that follows from the budget, it is the temperature
that gives way."""


def _width(rows: list[Row]) -> str:
    if not rows:
        return ""
    return f", {statistics.mean(row['scores']['width'] for row in rows):.2f} wide"


def _paint(canvas: Canvas) -> None:
    rows = read_rows(together.EXPERIMENT.name)
    panels = canvas.subplots(1, len(_PANELS), sharex=True)
    for axes, (score, title) in zip(panels, _PANELS.items(), strict=True):
        _panel(axes, rows, score)
        axes.set_title(title, fontsize=9)
    ends = min(together.EPSILONS), max(together.EPSILONS)
    panels[-1].plot(ends, ends, color=_GREY, linestyle="--")
    panels[-1].set_yscale("symlog", linthresh=0.1)


def _panel(axes: Axes, rows: list[Row], score: str) -> None:
    """Every run is a dot, and the line is their mean."""
    epsilons = [e for e in sorted(together.EPSILONS) if at(rows, {"epsilon": e})]
    values = [[row["scores"][score] for row in at(rows, {"epsilon": e})] for e in epsilons]
    for epsilon, each in zip(epsilons, values, strict=True):
        axes.plot([epsilon] * len(each), each, ".", color=_BLUE, alpha=0.5)
    axes.plot(epsilons, [statistics.mean(each) for each in values], color=_BLUE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(together.EPSILONS), [f"{e:g}" for e in sorted(together.EPSILONS)])
    axes.set_xlabel("epsilon", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


_FIGURE = Figure(
    name="together",
    caption=(
        "One private posterior of MNIST against epsilon; dots are runs, the dashed line is what was"
        " promised."
    ),
    sources=(together.EXPERIMENT.name,),
    paint=_paint,
    size=(11.0, 2.4),
)
FIGURES = (_FIGURE,)
