"""Tables in Markdown from measured cells, which say what is missing."""

import statistics
from collections.abc import Iterable, Sequence

from experiments.cells import Experiment, Row, Settings

__all__ = ["at", "epsilon_text", "progress", "summary", "table"]


def at(rows: Iterable[Row], chosen: Settings) -> list[Row]:
    """Returns the rows with these settings."""
    return [row for row in rows if chosen.items() <= row["settings"].items()]


def summary(experiment: Experiment, rows: Sequence[Row], score: str, *, digits: int) -> str:
    """Returns mean and spread, with the number of runs where some are missing."""
    if not rows:
        return "not run"
    values = [row["scores"][score] for row in rows]
    text = f"{statistics.mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" ± {statistics.stdev(values):.{digits}f}"
    return text if len(values) >= experiment.num_seeds else f"{text} ({len(values)})"


def progress(experiment: Experiment, rows: Sequence[Row]) -> str:
    """Returns by which command the runs were made, how long one takes, and how many are missing."""
    planned = len(experiment.cells) * experiment.num_seeds
    if not rows:
        return f"Not run yet: `python -m experiments.{experiment.name}`."
    seconds = statistics.median(row["seconds"] for row in rows)
    text = (
        f"Made by `python -m experiments.{experiment.name}`, {seconds:.0f} seconds a run on two "
        "shared cores"
    )
    if len(rows) >= planned:
        return f"{text}."
    return (
        f"{text}; {len(rows)} of {planned} runs are made, and in brackets is how many of "
        f"{experiment.num_seeds} stand behind a number."
    )


def epsilon_text(epsilon: float | str) -> str:
    """Returns the heading of an epsilon."""
    return "not private" if epsilon == "infinity" else f"epsilon {epsilon:g}"


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """Returns a table, all of whose lines are as long as its header."""
    lines = list(lines)
    if any(len(line) != len(header) for line in lines):
        raise ValueError(f"a line of the table does not fit its header {header}")
    return "\n".join(
        f"| {' | '.join(cells)} |" for cells in (header, ["---"] * len(header), *lines)
    )
