"""A private synthetic twin of UCI Adult: what a classifier trained on it knows of real people.

Settings are those of the example; the number of components was not tuned.
"""

from examples.programs import adult_twin

from experiments.cells import Experiment, Measured, Settings, main

__all__ = ["EPSILONS", "EXPERIMENT"]

EPSILONS = (1.0, 4.0, 0.5)


def measure(settings: Settings, seed: int) -> Measured:
    """Fits the twin and averages over the tables drawn from it."""
    outcome = adult_twin.run(
        num_steps=settings["num_steps"],
        num_records=settings["num_records"],
        epsilon=settings["epsilon"],
        seed=seed,
        num_tables=settings["num_tables"],
    )
    return Measured(*outcome)


EXPERIMENT = Experiment(
    name="adult_twin",
    cells=tuple(
        {"epsilon": epsilon, "num_steps": 2000, "num_records": 32561, "num_tables": 3}
        for epsilon in EPSILONS
    ),
    num_seeds=3,
    measure=measure,
    quick={"num_steps": 2, "num_records": 200},
)

if __name__ == "__main__":
    main(EXPERIMENT)
