"""Knolle et al.: is private training over-confident, and what repairs it? Tables 1, 2, figure 1."""

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.figure import Figure as Canvas

from experiments import knolle_mnist, knolle_pneumonia
from experiments.cells import Experiment, Row, Settings, read_rows
from experiments.figures import Figure
from experiments.markdown import progress, summary, table

__all__ = ["FIGURES", "section"]

_PUBLISHED = {  # tables 1 and 2: accuracy, AUC, ECE
    ("knolle_mnist", "SGD"): ("0.984", "0.999", "0.0020"),
    ("knolle_mnist", "DP-SGD"): ("0.967", "0.996", "0.0210"),
    ("knolle_mnist", "DP-SGLD"): ("0.963", "0.995", "0.0044"),
    ("knolle_pneumonia", "SGD"): ("0.857", "0.942", "0.0526"),
    ("knolle_pneumonia", "DP-SGD"): ("0.783", "0.910", "0.1790"),
    ("knolle_pneumonia", "DP-SGLD"): ("0.786", "0.920", "0.0833"),
}
_THREE = ("SGD", "DP-SGD", "DP-SGLD")
_TITLES = {"knolle_mnist": "MNIST", "knolle_pneumonia": "PneumoniaMNIST"}


def section() -> str:
    """Returns the section."""
    mnist, pneumonia = knolle_mnist.EXPERIMENT, knolle_pneumonia.EXPERIMENT
    rates = {
        f"DP-SGD, rate {settings['learning_rate']:g}": settings
        for settings in sorted(
            [knolle_pneumonia.DP_SGD, *knolle_pneumonia.RATES], key=lambda s: s["learning_rate"]
        )
    }
    return f"""### MNIST at epsilon 0.5 (table 1)

Mean ± standard deviation over runs; ECE with 15 bins. The gap is mean confidence less accuracy:
above zero is over-confident. Scores are those of the last iterate, which Knolle et al. keep, and in
the two last columns of the posterior: the states of the second half of the same run, for nothing
more.
{progress(mnist, read_rows(mnist.name))}

{_compared(mnist, knolle_mnist.ABLATION)}

Their network of five layers is not published; ours has two convolutions and two dense layers. The
rates of SGD and DP-SGD are chosen on stand-ins (`experiments/choosing_knolle.py`); DP-SGLD has
that of DP-SGD, halved after each third of the run, and pre-noise as long as the clip. SGD, whose
steps cost nothing, runs more of them.

### Pneumonia at epsilon 6 (table 2)

{progress(pneumonia, read_rows(pneumonia.name))}

{_compared(pneumonia, knolle_pneumonia.ABLATION)}

Theirs are radiographs in three classes and two dense layers on an EfficientNet that was trained on
ImageNet; ours are PneumoniaMNIST's small copies of them in two classes, and two dense layers on
the scattering front end. 74 % of the training part is ill and 62 % of the test part, which
alone puts probabilities off for every procedure, private or not.

### Is DP-SGD over-confident, and does DP-SGLD repair it?

{_answer(mnist, knolle_mnist.ABLATION)}
{_answer(pneumonia, knolle_pneumonia.ABLATION)}

How the gap of DP-SGD hangs on its learning rate, at the same epsilon, on PneumoniaMNIST:

{_ablation(pneumonia, rates)}

### What do temperature, pre-noise and decay each contribute?

All rows of a table have the same epsilon, and differ from DP-SGD or DP-SGLD in what they name. At
one epsilon the noise is given, so that the temperature of Knolle et al. is noise² / (2 rate): to
multiply it is to divide the learning rate. It is not the temperature of the posterior.

{_ablation(pneumonia, knolle_pneumonia.ABLATION)}

The same on MNIST:

{_ablation(mnist, knolle_mnist.ABLATION)}

{FIGURES[0].markdown}"""


def _rows(experiment: Experiment, settings: Settings) -> list[Row]:
    return [row for row in read_rows(experiment.name) if row["settings"] == settings]


def _mean(rows: Sequence[Row], score: str) -> float:
    return statistics.mean(row["scores"][score] for row in rows)


def _gap(rows: Sequence[Row], *, of: str = "") -> float:
    return _mean(rows, f"{of}mean confidence") - _mean(rows, f"{of}accuracy")


def _gap_text(rows: Sequence[Row], *, of: str = "") -> str:
    return f"{_gap(rows, of=of):+.4f}" if rows else "not run"


def _compared(experiment: Experiment, named: Mapping[str, Settings]) -> str:
    lines = []
    for name in _THREE:
        rows = _rows(experiment, named[name])
        lines.append(
            [
                name,
                rows[0]["epsilon"] if rows and named[name]["epsilon"] != "infinity" else "",
                summary(experiment, rows, "accuracy", digits=3),
                summary(experiment, rows, "AUROC", digits=3),
                summary(experiment, rows, "ECE", digits=4),
                _gap_text(rows),
                " / ".join(_PUBLISHED[experiment.name, name]),
                summary(experiment, rows, "posterior accuracy", digits=3),
                summary(experiment, rows, "posterior ECE", digits=4),
            ]
        )
    header = ["", "epsilon", "accuracy", "AUROC", "ECE", "gap", "Knolle: accuracy / AUC / ECE"]
    return table([*header, "posterior: accuracy", "posterior: ECE"], lines)


def _ablation(experiment: Experiment, named: Mapping[str, Settings]) -> str:
    lines = []
    for name, settings in named.items():
        if settings["epsilon"] == "infinity":
            continue
        rows = _rows(experiment, settings)
        lines.append(
            [
                name,
                *(
                    summary(experiment, rows, score, digits=digits)
                    for score, digits in (("accuracy", 3), ("NLL", 3), ("ECE", 4))
                ),
                _gap_text(rows),
                summary(experiment, rows, "posterior NLL", digits=3),
                summary(experiment, rows, "posterior ECE", digits=4),
                _gap_text(rows, of="posterior "),
            ]
        )
    header = ["", "accuracy", "NLL", "ECE", "gap"]
    return table([*header, "posterior: NLL", "posterior: ECE", "posterior: gap"], lines)


def _answer(experiment: Experiment, named: Mapping[str, Settings]) -> str:
    plain, langevin = (_rows(experiment, named[name]) for name in ("DP-SGD", "DP-SGLD"))
    title = _TITLES[experiment.name]
    if not plain or not langevin:
        return f"{title}: not run."
    told = [float(_PUBLISHED[experiment.name, name][2]) for name in ("DP-SGD", "DP-SGLD")]
    ours = [_mean(rows, "ECE") for rows in (plain, langevin)]
    return (
        f"On {title} the last iterate of DP-SGD is {_confidence(_gap(plain))} (its posterior"
        f" {_confidence(_gap(plain, of='posterior '))}), that of DP-SGLD"
        f" {_confidence(_gap(langevin))}. Their calibration errors are {ours[0]:.4f} and"
        f" {ours[1]:.4f}, a ratio of {ours[0] / ours[1]:.1f} where the paper has"
        f" {told[0] / told[1]:.1f}; the posterior of DP-SGD has"
        f" {_mean(plain, 'posterior ECE'):.4f}."
    )


def _confidence(gap: float) -> str:
    return f"{'over' if gap > 0 else 'under'}-confident by {abs(gap):.4f}"


def _paint(canvas: Canvas) -> None:
    panels = canvas.subplots(1, 2, sharey=True)
    tables = (
        (knolle_mnist.EXPERIMENT, knolle_mnist.ABLATION),
        (
            knolle_pneumonia.EXPERIMENT,
            knolle_pneumonia.ABLATION,
        ),
    )
    for panel, (experiment, named) in zip(panels, tables, strict=True):
        for name in _THREE:
            shown = [row for row in _rows(experiment, named[name]) if row["seed"] == 0]
            if shown:
                bins = shown[0]["series"]
                panel.plot(bins["confidence"], bins["accuracy"], marker="o", ms=3, label=name)
        panel.plot([0, 1], [0, 1], color="0.6", linestyle="--", linewidth=1)
        panel.set_title(_TITLES[experiment.name], fontsize=9)
        panel.set_xlabel("confidence", fontsize=8)
        panel.set_xlim(0.3 if experiment.name == "knolle_mnist" else 0.48, 1.01)
    panels[0].set_ylabel("accuracy", fontsize=8)
    panels[1].legend(fontsize=7)


FIGURES: Sequence[Figure] = (
    Figure(
        name="knolle_reliability",
        caption=(
            "Figure 1 of Knolle et al.: accuracy against confidence of the last iterate, in 15"
            " bins, first run. Below the dashed line is over-confident."
        ),
        sources=("knolle_mnist", "knolle_pneumonia"),
        paint=_paint,
        size=(7.5, 3.2),
    ),
)
"""The pictures of this section."""
