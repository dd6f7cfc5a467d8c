"""The results page: what was measured, beside what was published."""

import argparse
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from experiments import d3p_hierarchical, d3p_mixture, d3p_vae
from experiments.cells import Experiment, Row, read_rows

__all__ = ["PAGE", "d3p_section", "replaced"]

PAGE = Path(__file__).parents[1] / "docs" / "results.md"
_BEGIN, _END = "<!-- d3p: begin -->", "<!-- d3p: end -->"

_PUBLISHED_LOSS = {  # d3p, table 2: mean over 20 runs
    ("mnist", 1.5): "174.06 ± 0.59",
    ("mnist", 0.0): "99.63 ± 0.30",
    ("fashion_mnist", 1.5): "304.74 ± 0.68",
    ("fashion_mnist", 0.0): "243.99 ± 0.29",
}


def replaced(page: str, section: str) -> str:
    """Returns the page with its part about d3p renewed."""
    before, after = page.split(_BEGIN, maxsplit=1)[0], page.split(_END)[1]
    return f"{before}{_BEGIN}\n{section}\n{_END}{after}"


def d3p_section() -> str:
    """Returns the part about d3p, from the files of results."""
    return "\n\n".join([_hierarchical(), _mixture(), _vae()])


def _hierarchical() -> str:
    experiment = d3p_hierarchical.EXPERIMENT
    rows = read_rows(experiment.name)
    baselines = {n: d3p_hierarchical.baseline(n) for n in d3p_hierarchical.NUM_RECORDS}

    def line(title: str, **chosen: int) -> list[str]:
        wanted = {"num_records": 500, "num_steps": 100_000} | chosen
        cells = [
            _summary(experiment, _at(rows, epsilon=epsilon, **wanted), "AUC", digits=3)
            for epsilon in d3p_hierarchical.EPSILONS
        ]
        return [title, *cells, f"{baselines[wanted['num_records']]:.3f}"]

    lines = [line("figure 4: 500 records, 100 000 steps")]
    for n in d3p_hierarchical.NUM_RECORDS:
        if n != 500:
            lines.append(line(f"figure 5: {n} records", num_records=n))
    for n in d3p_hierarchical.NUM_STEPS:
        if n != 100_000:
            lines.append(line(f"figure 6: {n} steps", num_steps=n))
    header = ["", *map(_epsilon, d3p_hierarchical.EPSILONS), "plain logistic regression"]
    return f"""### Hierarchical logistic regression (figures 4, 5 and 6)

AUC on as many test records as training records, mean ± standard deviation over runs. delta is one
over the number of records, as there. {_progress(experiment, rows)}

{_table(header, lines)}

Plain logistic regression is scikit-learn's, neither hierarchical nor private. The paper shows boxes
and no numbers. It reads from them that at epsilon 4 and 8 the AUC is close to the one without
privacy, at 2 it falls short of it and still beats plain logistic regression; that below 500 records
it drops fast; and that more steps never hurt."""


def _mixture() -> str:
    experiment = d3p_mixture.EXPERIMENT
    rows = read_rows(experiment.name)
    cells = [
        _summary(experiment, _at(rows, epsilon=epsilon), "log likelihood", digits=2)
        for epsilon in d3p_mixture.EPSILONS
    ]
    return f"""### Gaussian mixture (figure 7)

Mean log predictive density of 100 test points, mean ± standard deviation over runs. delta is 1e-3,
as there. The mixture that drew the points has {d3p_mixture.best_possible():.2f}.
{_progress(experiment, rows)}

{_table(["", *map(_epsilon, d3p_mixture.EPSILONS)], [["ours", *cells]])}

The paper's figure gives no numbers, and its epsilons are bounds of an older accountant."""


def _vae() -> str:
    experiment = d3p_vae.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = []
    for settings in experiment.cells:
        found = _at(rows, **settings)
        noise = settings["noise_multiplier"]
        lines.append(
            [
                {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST"}[settings["data"]],
                "private" if noise else "not private",
                _summary(experiment, found, "loss", digits=2),
                found[0]["epsilon"] if found and noise else "",
                _PUBLISHED_LOSS[settings["data"], noise],
                "0.5 stated, 1.99 as run" if noise else "",
            ]
        )
    return f"""### Variational auto-encoder (table 2)

Negative ELBO per test image after 20 epochs, mean ± standard deviation over runs; lower is better.
delta is 1/60000. {_progress(experiment, rows)}

{_table(["images", "", "ours", "epsilon", "d3p", "epsilon"], lines)}

Batches here are drawn by Poisson sampling, which the accounting supposes. d3p draws batches of
fixed size and accounts for Poisson ones; what it runs costs 1.99 when a record is added or
removed."""


def _at(rows: Iterable[Row], **chosen: Any) -> list[Row]:
    return [row for row in rows if chosen.items() <= row["settings"].items()]


def _summary(experiment: Experiment, rows: Sequence[Row], score: str, *, digits: int) -> str:
    """Returns mean and spread, with the number of runs where some are missing."""
    if not rows:
        return "not run"
    values = [row["scores"][score] for row in rows]
    text = f"{statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text if len(values) >= experiment.num_seeds else f"{text} ({len(values)})"


def _progress(experiment: Experiment, rows: Sequence[Row]) -> str:
    planned = len(experiment.cells) * experiment.num_seeds
    seconds = statistics.median(row["seconds"] for row in rows) if rows else 0
    text = f"Made by `python -m experiments.{experiment.name}`, {seconds:.0f} seconds a run"
    if len(rows) >= planned:
        return f"{text}."
    return (
        f"{text}; {len(rows)} of {planned} runs are made, and in brackets is how many of "
        f"{experiment.num_seeds} stand behind a number."
    )


def _epsilon(epsilon: float | str) -> str:
    return "not private" if epsilon == "infinity" else f"epsilon {epsilon:g}"


def _table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *lines)
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(replaced(PAGE.read_text(encoding="utf-8"), d3p_section()), encoding="utf-8")
