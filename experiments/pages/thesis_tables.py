"""The thesis' tables 5.1 to 5.6 and their figures: ours beside what it prints."""

import math
import statistics
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure as Canvas

from experiments import thesis_mnist, thesis_pneumonia
from experiments.cells import Experiment, Row, Settings, read_rows
from experiments.figures import Figure
from experiments.markdown import at, progress, summary, table
from experiments.pages.thesis_printed import ROWS, printed
from experiments.thesis_fitting import is_burn_in
from experiments.thesis_scores import NUM_EXAMINED

__all__ = ["FIGURES", "mnist", "pneumonia"]

_MNIST_NOTE = f"""In square brackets is what the thesis prints. Certified accuracy here is sound for
the mean of the draws' probabilities, whose accuracy is reported: linear bounds between intervals;
the thesis averages worst cases, which certifies nothing. Attacks (PGD with 20 steps, on the mean
loss of all draws) and certificates are on {NUM_EXAMINED} test images, all else on all. Its "OOD
AUROC" is the balanced accuracy of a threshold at 0.5 on the largest probability; ours ranks the raw
scores of MNIST's and Fashion-MNIST's test images. Its "OOD ECE" is no calibration error, and it
does not say how it is computed: it is left out. All chains are short: see the last table. A robust
private posterior without Metropolis correction, by Langevin dynamics or by variational inference,
is in the section on robust training."""

_CHAIN_NOTE = """The chains, judged by what they moved. Temperatures are those of the phases; a
burn-in is stochastic gradient Hamiltonian Monte Carlo, private, from the same start that knows
nothing of the data, and counted in the same epsilon; without privacy it is stochastic gradient
descent. The share of accepted proposals is that of the phases before the last, and of the last,
whose states are the posterior. Effective sizes are medians over the weights. All are small: no
chain has come to rest. Where one is larger than the number of distinct states, the estimate has
failed, and where few states are distinct or moves are far shorter than the weights, the posterior
is hardly more than a point."""

_PNEUMONIA_NOTE = f"""As above, at radius 0.01, with thresholds at 0.65; {NUM_EXAMINED} of 624 test
images are attacked and certified. The thesis prints 0.801 as SGD's certified accuracy, where its
own records say 0. Its CNN is too large for the noise on 5232 records, and for certificates within
minutes: all rows have dense layers on averages of 2 x 2 pixels, and divide their probabilities by
the classes' public shares. Robust and private posteriors of these images by other methods are in
the sections below."""

_ROBUSTNESS = {
    "accuracy": "accuracy",
    "FGSM": "accuracy under FGSM",
    "PGD": "accuracy under PGD",
    "certified": "certified accuracy",
}

_UNCERTAINTY = {
    "ECE": "ECE",
    "AUROC": "AUROC",
    'their OOD "AUROC"': "OOD balanced accuracy",
    "OOD AUROC, largest probability": "OOD AUROC, max probability",
    "entropy": "OOD AUROC, entropy",
    "mutual information": "OOD AUROC, mutual information",
    "OOD FPR95, entropy": "OOD FPR95, entropy",
}

_CHAIN = {
    "accepted before": "acceptance before",
    "accepted": "acceptance",
    "kept proposals": "proposals kept",
    "distinct states": "distinct states",
    "effective size": "effective size",
    "distance of a move": "distance of a move",
    "norm of the weights": "norm of the weights",
}

_FEW_DIGITS = {"proposals kept": 0, "distinct states": 0, "effective size": 1}


def mnist() -> str:
    """Returns the tables of MNIST."""
    return _tables(thesis_mnist.EXPERIMENT, "MNIST (tables 5.1, 5.3 and 5.5)", _MNIST_NOTE)


def pneumonia() -> str:
    """Returns the tables of PneumoniaMNIST."""
    title = "PneumoniaMNIST (tables 5.2, 5.4 and 5.6)"
    return _tables(thesis_pneumonia.EXPERIMENT, title, _PNEUMONIA_NOTE)


def _tables(experiment: Experiment, title: str, note: str) -> str:
    rows = read_rows(experiment.name)
    parts = [
        f"### {title}",
        note,
        progress(experiment, rows),
        _table(experiment, rows, _ROBUSTNESS),
        _table(experiment, rows, _UNCERTAINTY),
        _CHAIN_NOTE,
        _table(experiment, rows, _CHAIN),
        *(figure.markdown for figure in FIGURES if experiment.name in figure.sources),
    ]
    return "\n\n".join(parts)


def _table(experiment: Experiment, rows: Sequence[Row], columns: dict[str, str]) -> str:
    """Returns ours, with the thesis' number in brackets where it has one."""
    is_chain = columns is _CHAIN
    lines = []
    for settings in _in_order(experiment):
        if is_chain and "phases" not in settings:
            continue
        found = at(rows, settings)
        line = [settings["row"], settings["network"]]
        if is_chain:
            line += [" → ".join(map(_temperature, settings["phases"]))]
        else:
            line += [_epsilon(settings, found)]
        for score in columns.values():
            digits = _FEW_DIGITS.get(score, 3)
            scored = [row for row in found if score in row["scores"]]
            line.append(
                ("" if found and not scored else summary(experiment, scored, score, digits=digits))
                + _published(experiment.name, settings["row"], score)
            )
        lines.append(line)
    second = "temperature" if is_chain else "epsilon"
    return table(["", "network", second, *columns], lines)


def _in_order(experiment: Experiment) -> list[Settings]:
    return sorted(experiment.cells, key=lambda each: ROWS.index(each["row"]))


def _temperature(phase: Settings) -> str:
    return "burn-in" if is_burn_in(phase) else f"{phase['temperature']:.2g}"


def _published(name: str, row: str, score: str) -> str:
    there = printed(name, row, score)
    return "" if math.isnan(there) else f" [{there:.3f}]"


def _epsilon(settings: dict[str, object], found: Sequence[Row]) -> str:
    if "epsilon" not in settings:
        return "not private"
    return found[0]["epsilon"] if found else f"at most {settings['epsilon']:g}"


def _bars(experiment: Experiment) -> Callable[[Canvas], None]:
    """Returns what draws the robustness profiles: bars are ours, marks the thesis' numbers."""

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        rows = read_rows(experiment.name)
        cells = [
            settings  # features that are not attacked have no profile
            for settings in _in_order(experiment)
            if settings["test_radius"] and at(rows, settings)
        ]
        for number, (title, score) in enumerate(_ROBUSTNESS.items()):
            places = [place + 0.2 * number - 0.3 for place in range(len(cells))]
            found = [
                statistics.mean(row["scores"][score] for row in at(rows, settings))
                for settings in cells
            ]
            axes.bar(places, found, width=0.18, label=title)
            there = [printed(experiment.name, each["row"], score) for each in cells]
            axes.plot(places, there, "k_", markersize=9, label=None if number else "thesis")
        names = ["\n".join([each["row"], *each["network"].split()]) for each in cells]
        axes.set_xticks(range(len(cells)), names, fontsize=6)
        axes.set_ylim(0, 1)
        axes.legend(ncols=5, fontsize=7, loc="lower center", bbox_to_anchor=(0.5, 1.0))

    return paint


FIGURES: Sequence[Figure] = (
    Figure(
        name="thesis_mnist",
        caption=(
            "MNIST at radius 0.075, after the thesis' figures 5.4, 5.5 and 5.12: accuracy, under "
            "attack, and certified. Bars are ours, black marks the thesis' numbers."
        ),
        sources=("thesis_mnist",),
        paint=_bars(thesis_mnist.EXPERIMENT),
    ),
    Figure(
        name="thesis_pneumonia",
        caption=(
            "PneumoniaMNIST at radius 0.01, after the thesis' figures 5.6, 5.7 and 5.13: "
            "accuracy, under attack, and certified. Bars are ours, black marks the thesis' numbers."
        ),
        sources=("thesis_pneumonia",),
        paint=_bars(thesis_pneumonia.EXPERIMENT),
    ),
)
