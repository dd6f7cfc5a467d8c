"""Shipped programs at their full size: two regressions and a Bayesian network.

Settings are those of the examples; none was tuned.
"""

import math

from examples.programs import (
    bayesian_neural_network,
    logistic_regression,
    negative_binomial_regression,
)

from experiments.cells import Experiment, Measured, Settings, main

__all__ = ["EPSILONS", "EXPERIMENT", "SCORES"]

EPSILONS = (1.0, "infinity")

_RUNS = {
    "logistic regression": logistic_regression.run,
    "Bayesian network": bayesian_neural_network.run,
    "negative binomial regression": negative_binomial_regression.run,
}

SCORES = {
    "logistic regression": ("AUC", "accuracy"),
    "Bayesian network": ("AUC", "accuracy"),
    "negative binomial regression": ("largest error of a weight", "largest standard deviation"),
}
"""What each program is judged by."""


def measure(settings: Settings, seed: int) -> Measured:
    """Fits one program."""
    outcome = _RUNS[settings["program"]](
        num_steps=settings["num_steps"],
        num_records=settings["num_records"],
        epsilon=math.inf if settings["epsilon"] == "infinity" else settings["epsilon"],
        seed=seed,
    )
    return Measured(*outcome)


EXPERIMENT = Experiment(
    name="shipped_programs",
    cells=tuple(
        {"program": program, "epsilon": epsilon, "num_steps": 1000, "num_records": num_records}
        for program, num_records in (
            ("logistic regression", 32561),
            ("Bayesian network", 32561),
            ("negative binomial regression", 5000),
        )
        for epsilon in EPSILONS
    ),
    num_seeds=3,
    measure=measure,
    quick={"num_steps": 2, "num_records": 200},
)

if __name__ == "__main__":
    main(EXPERIMENT)
