"""Robust posteriors under privacy: certified accuracy on MNIST and on PneumoniaMNIST."""

import statistics

from experiments import choosing_robust, robust_mnist, robust_pneumonia
from experiments.cells import Row, read_rows
from experiments.markdown import at, progress, summary, table

__all__ = ["section"]

_SCORES = ("accuracy", "certified", "certified by intervals", "ECE", "NLL")
_THESIS_MNIST = (  # thesis, sections 5.3 and 5.5: figures 5.4, 5.5, 5.8, 5.9 and 5.12
    ("IBP-HMC, the thesis", "not private", "0.8947", "0.6868", "0.2437"),
    ("IBP-DP-HMC, the thesis", "about 1e6", "0.8712", "0.5747", "0.0671"),
)
_THESIS_PNEUMONIA = (  # figures 5.6, 5.7 and 5.13
    ("IBP-HMC, the thesis", "not private", "0.8574", "0.7804"),
    ("IBP-DP-HMC, the thesis", "about 1e6", "0.8381", "0.7388"),
)


_BALANCES = {
    "weights": "records are weighted by them, inside the clip",
    "shares": (
        "every draw's probabilities are divided by the shares, which shifts the biases of the last "
        "layer, and what is scored and certified is the shifted network"
    ),
}


def section() -> str:
    """Returns the section."""
    return "\n\n".join([_mnist(), _choice(), _pneumonia()])


def _mnist() -> str:
    experiment = robust_mnist.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = [
        [
            f"{settings['method']}, chosen on {key[0].replace('_', ' ')}",
            _epsilon(at(rows, settings), settings["epsilon"]),
            *(summary(experiment, at(rows, settings), score, digits=4) for score in _SCORES),
        ]
        for key, settings in zip(robust_mnist.CHOSEN, experiment.cells, strict=True)
    ]
    lines += [
        [name, epsilon, accuracy, "", certified, ece, ""]
        for name, epsilon, accuracy, certified, ece in _THESIS_MNIST
    ]
    header = ["posterior by", "epsilon", "accuracy", "certified", "by intervals", "ECE", "NLL"]
    radii = " or ".join(sorted({f"{each['training_radius']:g}" for each in experiment.cells}))
    return f"""### MNIST, certified at 0.075

The share of all 10 000 test images that the posterior classifies rightly, and the share for which
no image within 0.075 of each pixel, and within [0, 1], is given another class. Both are of the same
{robust_mnist.COMMON["num_draws"]} draws and the mean of their probabilities. `certified` takes an
image that interval or linear bounds certify; the thesis has interval bounds alone, and does not say
how it puts draws together. delta is 1e-5, adjacency is zero-out; mean ± standard deviation over
seeds.
{progress(experiment, rows)}

{table(header, lines)}

What differs: the network averages 2 x 2 pixels first and has fewer hidden units than the thesis'
784-512-10, since noise grows with the number of weights; the ball is on the 784 pixels as there.
It is trained at radius {radii} (there 0.1), by stochastic gradient Hamiltonian Monte Carlo or
variational inference instead of whole trajectories, from a start that depends on no data. The
thesis' epsilon is about a million by its own parameters, and its first chain starts at a network
that was trained without privacy."""


def _choice() -> str:
    experiment = choosing_robust.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for row in sorted(rows, key=lambda row: (_group(row), -choosing_robust.score(row))):
        rivals = [each["settings"] for each in rows if _group(each) == _group(row)]
        tried = ", ".join(
            f"{name.replace('_', ' ')} {value}"
            for name, value in row["settings"].items()
            if any(each.get(name) != value for each in rivals)
        )
        scores = (f"{row['scores'][score]:.4f}" for score in ("accuracy", "certified"))
        lines.append([*_group(row), tried or "one candidate", *scores])
    header = ["stand-in", "posterior by", "epsilon", "tried", "accuracy", "certified"]
    return f"""### What was tried

Settings of both tables are those with the largest sum of accuracy and certified accuracy on a
public stand-in, one seed each. For PneumoniaMNIST it is Fashion-MNIST's shirts. For MNIST it was
Fashion-MNIST first; its winners stop too early for digits, and moved digits, which are nearer, were
tried too. This was decided when the first winners had been run on MNIST; candidates are judged on
stand-ins alone. Of each group only what differs within it is shown.
{progress(experiment, rows)}

{table(header, lines)}"""


def _group(row: Row) -> tuple[str, str, str]:
    settings = row["settings"]
    return settings["data"], settings["method"], f"{settings['epsilon']:g}"


def _pneumonia() -> str:
    experiment = robust_pneumonia.EXPERIMENT
    rows = read_rows(experiment.name)
    scores = ("accuracy", "certified", "certified by intervals", "AUROC", "ECE")
    lines = []
    names = ("headline", "second choice", "first choice")
    for name, each in zip(names, experiment.cells, strict=True):
        own = at(rows, each)
        told = (summary(experiment, own, score, digits=4) for score in scores)
        lines.append([f"{each['method']}, {name}", _epsilon(own, each["epsilon"]), *told])
    settings = experiment.cells[0]
    found = at(rows, settings)
    lines += [[*row[:3], "", row[3], "", ""] for row in _THESIS_PNEUMONIA]
    header = ["posterior by", "epsilon", "accuracy", "certified", "by intervals", "AUROC", "ECE"]
    return f"""### PneumoniaMNIST, certified at 0.01

All 624 test images; training and validation images together are the 5232 private records, as in
the thesis. {_always_ill(found)}
{progress(experiment, rows)}

{table(header, lines)}

The first choice was run and fell a little short of the accuracy that was wanted, 0.85, and the
second of the certified accuracy, 0.77; the headline was then chosen among more candidates, again on
shirts. They see each image folded along its middle, where left and right meet in a mean: half of
the weights, in a network that is certified on all pixels as the others are.

What differs: dense layers on averages of 2 x 2 pixels instead of convolutions, and classes that
are made equal by the published numbers of images, which are taken as public:
{_BALANCES[settings["balance"]]}."""


def _always_ill(rows: list[Row]) -> str:
    text = "Who calls every image ill is right, with a certificate, for 0.625 of them."
    if not rows:
        return text
    balanced = statistics.mean(row["scores"]["certified balanced"] for row in rows)
    return f"{text} The mean over both classes of the certified share is {balanced:.4f} here."


def _epsilon(rows: list[Row], planned: float) -> str:
    return rows[0]["epsilon"] if rows else f"{planned:g}"
