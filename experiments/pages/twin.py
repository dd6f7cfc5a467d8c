"""A private synthetic twin of a census table."""

from experiments import adult_twin
from experiments.cells import read_rows
from experiments.markdown import at, epsilon_text, progress, summary, table

__all__ = ["section"]


def section() -> str:
    """Returns the section."""
    experiment = adult_twin.EXPERIMENT
    rows = read_rows(experiment.name)
    scores = ("AUC", "accuracy", "distance of marginals")
    lines = [
        [
            epsilon_text(epsilon),
            *(
                summary(experiment, at(rows, {"epsilon": epsilon}), score, digits=3)
                for score in scores
            ),
        ]
        for epsilon in sorted(adult_twin.EPSILONS)
    ]
    if rows:  # the same in all of them
        real = rows[0]["scores"]
        cells = [f"{real[f'{score} of real rows']:.3f}" for score in ("AUC", "accuracy")]
        lines.append(["real rows", *cells, ""])
    return f"""Logistic regression trained on a synthetic table as long as the real one, tested on
the 16281 real test rows; mean over three tables from three posterior draws, ± standard deviation
over runs. The last column is the mean distance of a column's marginal to the test rows, from 0 to
1. delta is 3.1e-6.
{progress(experiment, rows)}

{table(["trained on", *scores], lines)}"""
