"""The page in one table: the best honest posterior for each task, and what was published."""

from typing import NamedTuple

from experiments import (
    mnist_front_end,
    pneumonia,
    robust_mnist,
    robust_pneumonia,
    thesis_mnist,
    zhang_headline,
)
from experiments.cells import Experiment, Settings, read_rows
from experiments.markdown import at, summary, table

__all__ = ["section"]


_THESIS = {"DP-HMC": "0.774", "IBP-DP-HMC": "0.871, certified 0.575"}
_NETWORKS = {"mlp": "two hidden layers of 1200", "cnn": "Zhang's CNN"}


class _Line(NamedTuple):
    task: str
    experiment: Experiment
    cell: Settings
    scores: tuple[str, ...]
    published: str


def section() -> str:
    """Returns the section."""
    lines = []
    for line in _lines():
        found = at(read_rows(line.experiment.name), line.cell)
        ours = ", ".join(
            f"{score} {summary(line.experiment, found, score, digits=4)}" for score in line.scores
        )
        lines.append(
            [
                line.task,
                found[0]["epsilon"].split()[0] if found else "",
                ours if found else "not run",
                line.published,
            ]
        )
    return f"""Posteriors under privacy at delta 1e-5, mean ± standard deviation over seeds (in
brackets how many, where some are missing); each has its own part below.

{table(["task", "epsilon", "ours", "published"], lines)}"""


def _lines() -> list[_Line]:
    calibrated, certified = ("accuracy", "ECE"), ("accuracy", "certified")
    fixed = [
        _Line(
            f"MNIST, linear on {front_end}, chosen on {stand_in.replace('_', ' ')}",
            mnist_front_end.EXPERIMENT,
            {"front_end": front_end, "epsilon": epsilon} | choice,
            calibrated,
            "0.963, ECE 0.0044 (Knolle, a CNN)" if epsilon == 0.5 else "",
        )
        for (stand_in, front_end, epsilon), choice in mnist_front_end.CHOSEN.items()
    ]
    pixels = [
        _Line(
            f"MNIST, {_NETWORKS[cell['network']]} ({cell['activation']}) on "
            f"{'upright images' if cell['inputs'] == 'upright' else 'pixels'}, chosen on "
            + key[0].replace("_", " "),
            zhang_headline.EXPERIMENT,
            cell,
            calibrated,
            {"mlp": "0.90 (Zhang)", "cnn": "0.95 (Zhang)"}[cell["network"]],
        )
        for key, cell in zip(zhang_headline.CHOSEN, zhang_headline.EXPERIMENT.cells, strict=True)
    ]
    robust = [
        _Line(
            f"MNIST, certified at 0.075, by {cell['method']}, chosen on {key[0].replace('_', ' ')}",
            robust_mnist.EXPERIMENT,
            cell,
            certified,
            "0.871, certified 0.575 at a vacuous epsilon (thesis)",
        )
        for key, cell in zip(robust_mnist.CHOSEN, robust_mnist.EXPERIMENT.cells, strict=True)
    ]
    ill = [
        *(
            _Line(
                f"PneumoniaMNIST, linear on scattering, {name}",
                pneumonia.EXPERIMENT,
                settings,
                ("accuracy", "AUROC"),
                "0.786, AUROC 0.920 at epsilon 6 (Knolle)",
            )
            for name, settings in (
                ("best of all candidates on shirts", pneumonia.HEADLINE),
                ("second choice", pneumonia.SECOND_CHOICE),
                ("mirrored features", pneumonia.MIRRORED),
            )
        ),
        *(
            _Line(
                f"PneumoniaMNIST, certified at 0.01, {name}",
                robust_pneumonia.EXPERIMENT,
                settings,
                certified,
                "0.838, certified 0.739 at a vacuous epsilon (thesis)",
            )
            for name, settings in zip(
                ("best of all candidates on shirts", "second choice", "first choice"),
                robust_pneumonia.EXPERIMENT.cells,
                strict=True,
            )
        ),
    ]
    chains = [
        _Line(
            f"MNIST, {cell['row']}, {cell['network']}",
            thesis_mnist.EXPERIMENT,
            cell,
            ("accuracy", *(("certified accuracy",) if cell["adversary"] == "intervals" else ())),
            f"{_THESIS[cell['row']]} at a vacuous epsilon (thesis)",
        )
        for cell in thesis_mnist.EXPERIMENT.cells
        if "epsilon" in cell
    ]
    return [*fixed, *pixels, *robust, *ill, *chains]
