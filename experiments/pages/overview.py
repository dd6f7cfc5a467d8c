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
_NEAREST = "moved_digits"
"""The stand-in that is most like MNIST."""

_NETWORKS = {"mlp": "two hidden layers of 1200", "cnn": "Zhang's CNN"}


class _Line(NamedTuple):
    task: str
    experiment: Experiment
    cell: Settings
    scores: tuple[str, ...]
    published: str


def section() -> str:
    """Returns the section."""
    lines, adjacencies = [], set()
    for line in _lines():
        found = at(read_rows(line.experiment.name), line.cell)
        ours = ", ".join(
            f"{score} {summary(line.experiment, found, score, digits=4)}" for score in line.scores
        )
        adjacencies |= {row["adjacency"] for row in found}
        lines.append(
            [
                line.task,
                found[0]["epsilon"].split()[0] if found else "",
                ours if found else "not run",
                line.published,
            ]
        )
    return f"""Posteriors under privacy at delta 1e-5, mean ± standard deviation over seeds (in
brackets how many, where some are missing). Adjacency is {" or ".join(sorted(adjacencies))}.
Each has its own part below, with the choices that earlier stand-ins led to, and what was tried.

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
        if stand_in == _NEAREST and front_end.startswith("whitened")
    ]
    pixels = [
        _Line(
            f"MNIST, {_NETWORKS[cell['network']]} ({cell['activation']}) on "
            f"{'upright images' if cell['inputs'] == 'upright' else 'pixels'}, chosen on "
            + stand_in.replace("_", " "),
            zhang_headline.EXPERIMENT,
            cell,
            calibrated,
            {"mlp": "0.90 (Zhang)", "cnn": "0.95 (Zhang)"}[cell["network"]],
        )
        for (stand_in, network), choice in zhang_headline.CHOSEN.items()
        for cell in [zhang_headline.cell("mnist", network, choice)]
        if stand_in == _NEAREST
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
        if key[0] == _NEAREST or cell["method"] == "VI"
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
                ("plain features, best on shirts", pneumonia.HEADLINE),
                ("plain features, an earlier choice on shirts", pneumonia.SECOND_CHOICE),
                ("mirrored features, best on shirts", pneumonia.MIRRORED),
            )
        ),
        _Line(
            "PneumoniaMNIST, certified at 0.01, best on shirts",
            robust_pneumonia.EXPERIMENT,
            robust_pneumonia.EXPERIMENT.cells[0],
            certified,
            "0.838, certified 0.739 at a vacuous epsilon (thesis)",
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
