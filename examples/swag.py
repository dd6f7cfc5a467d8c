"""SWAG: a Gaussian over the iterates of private descent, at no privacy cost."""

import optax

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits by gradient descent and keeps the moments of the second half of the iterates."""
    train, test = census(num_records)
    descent = tacit.SGD(release=engine(len(train.y)), optimizer=optax.sgd(0.2, momentum=0.9))
    method = tacit.SWAG(base=descent, start=num_steps // 2, rank=min(10, num_steps // 2))
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
