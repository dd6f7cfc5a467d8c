"""What the examples share: census records, a network, a budget, and one line of results."""

import argparse
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import tacit
from tacit.data import ADULT_SCHEMA, encode_table, load_adult
from tacit.metrics import accuracy, ece, nll
from tacit.models import MLP, Bernoulli, GaussianPrior

__all__ = ["BUDGET", "Scores", "census", "engine", "main", "network", "scores"]

BUDGET = tacit.Budget(epsilon=1.0, delta=1e-5)


class Scores(NamedTuple):
    """On the public test part."""

    accuracy: float
    nll: float
    ece: float
    epistemic: float


def census(num_records: int | None = None) -> tuple[tacit.Record, tacit.Record]:
    """Returns training and test records of UCI Adult, or the first few for a quick look."""
    train, test = (encode_table(table[:num_records], ADULT_SCHEMA) for table in load_adult())
    return train, test


def engine(num_records: int, *, batch_size: int = 2048) -> tacit.GaussianSum:
    """Returns the engine; calibration will set its noise to what the budget asks for."""
    return tacit.GaussianSum(
        sampling=tacit.PoissonBatch(
            num_records=num_records, batch_size=min(batch_size, num_records // 4)
        ),
        clip_norm=4.0,
        noise_multiplier=1.0,
        chunk_size=256,
    )


def network(*, hidden: tuple[int, ...] = (32,), dropout: float = 0.0) -> tacit.Model:
    """Returns a Bayesian network for income above 50 000 dollars."""
    return tacit.bayesian(
        MLP(num_inputs=87, hidden=hidden, num_outputs=1, dropout=dropout),
        prior=GaussianPrior(std=0.3),
        likelihood=Bernoulli(),
    )


def scores(fit: tacit.Fit, test: tacit.Record, *, num_draws: int | None = None) -> Scores:
    """Returns how well the posterior predicts, and how much its draws disagree."""
    predictions = tacit.predict(fit.posterior, test.x, num_draws=num_draws, batch_size=4096)
    probabilities, labels = np.asarray(predictions.probabilities), np.asarray(test.y)
    return Scores(
        accuracy(probabilities, labels),
        nll(probabilities, labels),
        ece(probabilities, labels),
        float(np.mean(predictions.mutual_information)),
    )


def main(run: Callable[..., tuple[tacit.Fit, Scores]]) -> None:
    """Runs an example from the command line."""
    parser = argparse.ArgumentParser(description=run.__doc__)
    parser.add_argument("--steps", type=int, help="how many; by default those of the example")
    parser.add_argument("--records", type=int, help="how many; by default all")
    parser.add_argument("--seed", type=int, help="for a result that can be repeated; INSECURE")
    arguments = parser.parse_args()
    settings = {
        "num_steps": arguments.steps,
        "num_records": arguments.records,
        "seed": arguments.seed,
    }
    fit, found = run(**{name: value for name, value in settings.items() if value is not None})
    print(
        f"accuracy {found.accuracy:.3f}, NLL {found.nll:.3f}, ECE {found.ece:.3f}, "
        f"disagreement of draws {found.epistemic:.4f}"
    )
    print(fit.statement)
