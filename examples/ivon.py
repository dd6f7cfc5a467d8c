"""Natural-gradient variational inference: curvature from released gradients, at no privacy cost."""

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Fits a mean-field Gaussian by its natural gradient."""
    train, test = census(num_records)
    method = tacit.IVON(release=engine(len(train.y)), learning_rate=0.03)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=num_steps), BUDGET)
    fit = tacit.fit(plan, network(), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
