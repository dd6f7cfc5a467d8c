"""MNIST on features that were learnt from nobody, and what a posterior adds to one state."""

from experiments import choosing_front_end, mnist_front_end
from experiments.cells import Row, read_rows
from experiments.markdown import at, progress, summary, table

__all__ = ["section"]

_STAND_INS = {"moved_digits": "moved digits", "fashion_mnist": "Fashion-MNIST"}
_SCORES = ("accuracy", "NLL", "ECE", "OOD AUROC, entropy")


def section() -> str:
    """Returns the section."""
    return "\n\n".join([_results(), _choice()])


def _results() -> str:
    experiment = mnist_front_end.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for (stand_in, front_end, epsilon), choice in mnist_front_end.CHOSEN.items():
        found = at(rows, {"front_end": front_end, "epsilon": epsilon} | choice)
        for name, suffix in (("posterior", ""), ("its last state alone", ", last state")):
            lines.append(
                [
                    front_end,
                    _STAND_INS[stand_in],
                    found[0]["epsilon"] if found else f"{epsilon:g}",
                    name,
                    *(
                        summary(experiment, found, f"{score}{suffix}", digits=4)
                        for score in _SCORES
                    ),
                    summary(experiment, found, "temperature", digits=1) if not suffix else "",
                ]
            )
    lines.append(["published: Knolle, DP-SGLD", "", "0.5", "", "0.963", "", "0.0044", "", ""])
    header = ["features", "chosen on", "epsilon", "", "accuracy", "NLL", "ECE", "OOD AUROC", "heat"]
    return f"""A linear model on 3969 scattering features of each image, or on their 1000 whitened
components, sampled by stochastic gradient Hamiltonian Monte Carlo: batches of 4096 by Poisson
sampling, the last third of the states. Wavelets are fixed, and components are those of drawings
made by chance, so both are free. So is what `upright` stands for: every image is sheared by its own
moments until it does not lean, and put in the middle. ECE has 15 bins; foreign images are those of
Fashion-MNIST, told by the entropy of the predictive; heat is the temperature of the chain. delta is
1e-5, adjacency is zero-out, by the PLD accountant; mean ± standard deviation over seeds.
{progress(experiment, rows)}

{table(header, lines)}

{_what_it_adds(rows)}"""


def _what_it_adds(rows: list[Row]) -> str:
    """Says in numbers what the average over states adds to the last one."""
    if not rows:
        return ""

    def mean_gain(score: str) -> float:
        gains = [row["scores"][score] - row["scores"][f"{score}, last state"] for row in rows]
        return sum(gains) / len(gains)

    return f"""What the posterior adds to its last state, on average over all runs of the table:
{mean_gain("accuracy"):+.4f} accuracy, {mean_gain("NLL"):+.4f} NLL, {mean_gain("ECE"):+.4f} ECE and
{mean_gain("OOD AUROC, entropy"):+.4f} OOD AUROC."""


def _choice() -> str:
    experiment = choosing_front_end.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = [
        [
            _STAND_INS[settings["data"]],
            settings["front_end"],
            f"{settings['epsilon']:g}",
            *(f"{settings[name]:g}" for name in ("learning_rate", "clip_norm", "num_steps")),
            *(
                summary(experiment, at(rows, settings), score, digits=4)
                for score in ("NLL", "accuracy", "ECE")
            ),
        ]
        for settings in experiment.cells
    ]
    header = [
        "stand-in",
        "features",
        "epsilon",
        "learning rate",
        "clip norm",
        "steps",
        "NLL",
        "accuracy",
        "ECE",
    ]
    return f"""#### What was tried

One seed; the best NLL for each stand-in, kind of features and epsilon is taken. Moved digits are
scikit-learn's, of another source than MNIST's. They were tried after the settings that won on
Fashion-MNIST had been seen to be under-confident on MNIST, and stronger whitening after settings
for moved digits had been seen on MNIST too, and upright images last, when all others had fallen
short of 0.982 at epsilon 0.5: that they were tried at all is not blind, which of them is taken is.
Moved digits were made by leaning, among other things, so that they gain more from it than MNIST.
Whitening keeps 1000 components with ridge 0.001, and power 0.5, or 0.8 where it is strong; 1000,
0.5 and 0.001 were settled on Fashion-MNIST, in trials that were not kept.
{progress(experiment, rows)}

{table(header, lines)}"""
