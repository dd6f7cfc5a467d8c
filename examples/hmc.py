"""DP-HMC: private gradients, and a private Metropolis correction."""

import tacit
from examples.census import BUDGET, Scores, census, main, network, scores

__all__ = ["run"]


def run(
    num_steps: int = 20, num_records: int | None = None, seed: int | None = None
) -> tuple[tacit.Fit, Scores]:
    """Draws the weights of a logistic regression by Hamiltonian Monte Carlo."""
    train, test = census(num_records)
    full = tacit.FullBatch(num_records=len(train.y))
    method = tacit.HMC(
        gradient=tacit.GaussianSum(
            sampling=full, clip_norm=2.0, noise_multiplier=1.0, chunk_size=2048
        ),
        ratio=tacit.GaussianSum(
            sampling=full, clip_norm=2.0, noise_multiplier=1.0, chunk_size=2048
        ),
        step_size=0.02,
        num_leapfrog=5,
        jitter=0.1,
        reuse_gradient=True,
    )
    plan = tacit.Plan(
        method=method, num_steps=num_steps, num_chains=2, burn_in=num_steps // 2, thinning=1
    )
    fit = tacit.fit(
        tacit.calibrate(plan, BUDGET), network(hidden=()), train, budget=BUDGET, seed=seed
    )
    return fit, scores(fit, test)


if __name__ == "__main__":
    main(run)
