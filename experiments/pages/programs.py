"""The shipped programs at their full size."""

from experiments import shipped_programs
from experiments.cells import read_rows
from experiments.markdown import at, epsilon_text, progress, summary, table

__all__ = ["section"]


def section() -> str:
    """Returns the section."""
    experiment = shipped_programs.EXPERIMENT
    rows = read_rows(experiment.name)
    lines = [
        [
            program,
            score,
            *(
                summary(
                    experiment,
                    at(rows, {"program": program, "epsilon": epsilon}),
                    score,
                    digits=3,
                )
                for epsilon in shipped_programs.EPSILONS
            ),
        ]
        for program, scores in shipped_programs.SCORES.items()
        for score in scores
    ]
    header = ["program", "score", *map(epsilon_text, shipped_programs.EPSILONS)]
    return f"""The first two are of the census, tested on its official test part; the third is of
simulated counts, whose true weights are known. Mean ± standard deviation over runs; delta is a
tenth of one over the number of records.
{progress(experiment, rows)}

{table(header, lines)}"""
