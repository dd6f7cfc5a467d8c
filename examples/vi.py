"""DP-BBP: a Gaussian over the weights, fitted by variational inference."""

import optax

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits a mean-field guide."""
    train, test = census(num_records)
    method = tacit.VI(
        release=engine(len(train.y)),
        optimizer=optax.sgd(0.2, momentum=0.9),
        guide=tacit.MeanField(init_std=0.03),
    )
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
