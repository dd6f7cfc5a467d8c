"""DP-SGLD: the noise that privacy asks for is the noise that a sampler needs."""

import tacit
from examples.census import BUDGET, Scores, census, engine, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 400, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Draws by Langevin dynamics; the second half of the iterates is kept."""
    train, test = census(num_records)
    method = tacit.SGLD.fixed_noise(release=engine(len(train.y)), step_size=6 / len(train.y))
    plan = tacit.Plan(
        method=method,
        num_steps=num_steps,
        burn_in=num_steps // 2,
        thinning=max(1, num_steps // 40),
    )
    fit = tacit.fit(tacit.calibrate(plan, BUDGET), network(), train, budget=BUDGET, seed=seed)
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
