"""Cyclical DP-SGLD: one budget, several modes."""

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores
from tacit.inference.schedules import Cyclical

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Draws at the end of each of four cosine cycles of the step size."""
    train, test = census(num_records)
    cycle = max(1, num_steps // 4)
    method = tacit.SGLD.fixed_noise(
        release=engine(len(train.y)),
        step_size=12 / len(train.y),
        schedule=Cyclical(num_steps=cycle),
    )
    plan = tacit.Plan(method=method, num_steps=4 * cycle, thinning=cycle)
    fit = tacit.fit(tacit.calibrate(plan, BUDGET), network(), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
