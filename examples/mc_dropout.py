"""DP-MC-Dropout: a mask of its own for each record, and 100 masks to predict."""

import optax

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits a network with dropout by gradient descent."""
    train, test = census(num_records)
    method = tacit.SGD(release=engine(len(train.y)), optimizer=optax.sgd(0.2, momentum=0.9))
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(dropout=0.2), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test, num_draws=100)


if __name__ == "__main__":
    main(run)
