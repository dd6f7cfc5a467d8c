"""Zhang et al.: private Bayesian networks on MNIST, all their tables and figures."""

from collections.abc import Sequence

from experiments import zhang_family
from experiments.cells import read_rows
from experiments.figures import Figure
from experiments.markdown import at, progress, table
from experiments.pages import zhang_accuracy, zhang_figures, zhang_own

__all__ = ["FIGURES", "section"]

FIGURES: Sequence[Figure] = zhang_figures.FIGURES


def section() -> str:
    """Returns the section."""
    return "\n\n".join(
        [
            zhang_own.headline(),
            zhang_own.choices(),
            zhang_accuracy.accuracy(),
            zhang_accuracy.calibration(),
            _family(),
            _posteriors(),
            _table_5(),
        ]
    )


def _family() -> str:
    experiment = zhang_family.EXPERIMENT
    return f"""### DP-SGLD inside the DP-SGD family (figures 1 and 2)

Theorem 1 is checked by a test, step by step: with the same keys DP-SGLD and the DP-SGD that it
equals make the same releases and iterates. So to be inside the family is no advantage by
itself: a DP-SGLD is a DP-SGD whose noise was not chosen but follows from batch size, learning rate
and clip. A network of 784-100-10 on pixels, 5 epochs, one run each, judged by the last iterate.
{progress(experiment, read_rows(experiment.name))}

{FIGURES[0].markdown}

{_opposites()}"""


def _opposites() -> str:
    rows = read_rows(zhang_family.EXPERIMENT.name)
    lines = []
    for name in ("batch_size", "learning_rate"):
        pairs = zip(*(zhang_family.swept(method, name) for method in ("SGD", "SGLD")), strict=True)
        for pair in pairs:
            line = [f"{name.replace('_', ' ')} {pair[0][name]:g}"]
            for settings in pair:
                found = at(rows, settings)
                line += [
                    found[0]["epsilon"].split()[0] if found else "not run",
                    f"{found[0]['scores']['accuracy']:.4f}" if found else "not run",
                ]
            lines.append(line)
    header = ["", "DP-SGD: epsilon", "accuracy", "DP-SGLD: epsilon", "accuracy"]
    return f"""{table(header, lines)}

At a given noise multiplier a larger batch costs DP-SGD more; for DP-SGLD the multiplier grows with
the batch, and it costs less. The learning rate does not enter the cost of DP-SGD; that of DP-SGLD
grows with it."""


def _posteriors() -> str:
    return f"""### Posteriors of single digits (figures 5, 6 and 7)

What the draws of each posterior say of two test images, from the runs of table 1 with the Gaussian
prior. The paper does not tell which images it shows; these are the second and the nineteenth.

{FIGURES[2].markdown}"""


def _table_5() -> str:
    lines = [
        ["variational inference", "no", "yes", "yes"],
        ["sampling approach", "yes", "no", "no"],
        ["optimises a KL divergence", "no", "yes", "no"],
        ["general network structure", "yes", "**yes** (no there)", "yes"],
        ["general optimisers", "**momentum, SGHMC** (n/a there)", "yes", "yes"],
        ["general weight prior", "yes", "yes", "no"],
        ["memory", "high: one copy a state", "low: two copies", "low: one copy"],
        ["computation", "low", "**low** (high there): see the seconds above", "low"],
        ["analytic posterior", "no", "yes", "no"],
    ]
    return f"""### Algorithmic comparison (table 5)

The paper's table, with what differs here in bold.

{table(["", "DP-SGLD", "DP-BBP", "DP-MC-dropout"], lines)}"""
