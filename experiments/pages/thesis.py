"""The thesis (Ghitu): robust and private Hamiltonian Monte Carlo, its tables and figures."""

import statistics
from collections.abc import Sequence
from types import ModuleType

import dp_accounting

import tacit
from experiments import thesis_mnist, thesis_pneumonia, thesis_pneumonia_studies, thesis_studies
from experiments.cells import Experiment, Row, read_rows
from experiments.markdown import at, progress, summary, table
from experiments.pages import thesis_tables
from experiments.thesis_chains import RADIUS

__all__ = ["FIGURES", "section"]

FIGURES = thesis_tables.FIGURES

_GOAL_SCORES = ("accuracy", "certified accuracy")

_GOALS = {"DP-HMC": (0.85, None), "IBP-DP-HMC": (0.85, 0.55)}

_STUDY_SCORES = {
    "accuracy": "accuracy",
    "certified": "certified accuracy",
    "ECE": "ECE",
    "OOD AUROC, entropy": "OOD AUROC, entropy",
    "accepted": "acceptance",
}

_RUNS = {  # table 5.7, and the longest runs of table 5.8
    "MNIST, best": (60, 120, 0.05, 3),
    "PneumoniaMNIST, best": (80, 24, 0.1, 3),
    "MNIST, privacy study": (21, 10, 2.0, 1),
    "PneumoniaMNIST, privacy study": (21, 6, 2.0, 1),
}


def section() -> str:
    """Returns the section."""
    parts = [_goals(), thesis_tables.mnist(), thesis_tables.pneumonia(), _studies(), _privacy()]
    return "\n\n".join(parts)


def _goals() -> str:
    """Returns how far private chains came, in numbers."""
    experiment = thesis_mnist.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for row, goals in _GOALS.items():
        for settings in experiment.cells:
            if settings["row"] == row:
                found = at(rows, settings)
                lines.append(
                    [
                        f"{row}, {settings['network']}",
                        *(
                            f"{_mean(found, score)} (wanted {goal})" if goal else ""
                            for score, goal in zip(_GOAL_SCORES, goals, strict=True)
                        ),
                        _mean(found, "acceptance"),
                        _mean(found, "distinct states", digits=0),
                    ]
                )
    return "\n\n".join(
        [
            "### Private chains with a real epsilon",
            "Wanted at epsilon 8 or less, delta 1e-5, from a start that knows nothing of the data:",
            table(["", *_GOAL_SCORES, "accepted", "distinct states"], lines),
        ]
    )


def _mean(rows: Sequence[Row], score: str, *, digits: int = 3) -> str:
    values = [row["scores"][score] for row in rows if score in row["scores"]]
    return f"{statistics.mean(values):.{digits}f}" if values else "not run"


def _studies() -> str:
    """Returns what epsilon, radius and clip do to the robust chain."""
    on_digits = _study(
        "MNIST (figures 5.14 to 5.18, table 5.9)", thesis_mnist, thesis_studies, RADIUS
    )
    on_radiographs = _study(
        "PneumoniaMNIST (figures 5.19 to 5.22)", thesis_pneumonia, thesis_pneumonia_studies, 0.01
    )
    return f"{on_digits}\n\n{on_radiographs}"


def _study(title: str, main: ModuleType, varied: ModuleType, radius: float) -> str:
    experiment, rows = varied.EXPERIMENT, read_rows(varied.EXPERIMENT.name)
    unchanged = at(read_rows(main.EXPERIMENT.name), varied.BASE)
    names = (
        f"as in the main table: epsilon 8, radius {radius:g}",
        *thesis_studies.titles(varied.RADII),
    )
    found = (unchanged, *(at(rows, settings) for settings in experiment.cells))
    lines = [
        [name, *_study_line(experiment, each)] for name, each in zip(names, found, strict=True)
    ]
    return f"""### Studies of IBP-DP-HMC on {title}

{progress(experiment, rows)}

{table(["", *_STUDY_SCORES], lines)}"""


def _study_line(experiment: Experiment, rows: Sequence[Row]) -> list[str]:
    return [summary(experiment, rows, score, digits=3) for score in _STUDY_SCORES.values()]


def _privacy() -> str:
    lines = [
        [
            name,
            *(f"{value:g}" for value in run),
            *(f"{_thesis_epsilon(*run, scale=scale):,.0f}" for scale in (2, 1)),
        ]
        for name, run in _RUNS.items()
    ]
    header = ["", "proposals", "moves in each", "tau", "chains"]
    return f"""### Privacy of the thesis' own runs (tables 5.7 and 5.8)

What its runs would cost at delta 1e-5 if every gradient had looked at all records, as its own
formula supposes, with one clipped gradient a move. (The thesis counts two, of the clean and of
the robust loss; one is enough where the losses are added before the clip.) Not counted is that the
first chain started from a network that was trained without privacy, for which no epsilon holds.

{table([*header, "epsilon, zero-out", "epsilon, replace one"], lines)}

The thesis calls the first two vacuous, and they are. In the others it finds that chains stay where
they start. The reason: at equilibrium noisy gradients change the energy by a normal number of
mean s²/2 and variance s², with s = T c z √(d/L) for path length T, clip norm c, multiplier z, d
weights and L moves, and a proposal is accepted with probability 2 Φ(-s/2). So where s is 2, all
proposals together walk at random over a distance of 2 µ/c, whatever their number, with µ the
Gaussian privacy of all gradients. That is why the chains above go downhill in another way, cold and
clipped hard or by a burn-in that asks for no acceptance, and why they move so little afterwards."""


def _thesis_epsilon(
    num_proposals: float, num_leapfrog: float, tau: float, num_chains: float, *, scale: int
) -> float:
    """Returns the exact epsilon of full-batch releases with noise 2 tau times the clip norm."""
    count = num_chains * num_proposals * (num_leapfrog + 2)
    release = dp_accounting.GaussianDpEvent(scale * tau)
    return tacit.epsilon(dp_accounting.SelfComposedDpEvent(release, round(count)), 1e-5)
