"""What the programs share: their settings on the command line, and what they report."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

from tacit.privacy.statement import Statement

__all__ = ["Outcome", "main"]


class Outcome(NamedTuple):
    """Scores on public test records, and what was promised to the private ones."""

    scores: dict[str, float]
    statement: Statement


def main(run: Callable[..., Outcome]) -> None:
    """Runs a program from the command line."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--steps", type=int, help="how many; by default those of the example")
    parser.add_argument("--records", type=int, help="how many; by default those of the example")
    parser.add_argument("--epsilon", type=float, help="the budget; inf for a run without privacy")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    settings = {
        "num_steps": arguments.steps,
        "num_records": arguments.records,
        "epsilon": arguments.epsilon,
        "seed": arguments.seed,
    }
    outcome = run(**{name: value for name, value in settings.items() if value is not None})
    print(", ".join(f"{name} {value:.3f}" for name, value in outcome.scores.items()))
    print(outcome.statement)
