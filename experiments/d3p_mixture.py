"""d3p's figure 7: log likelihood of test points under a private Gaussian mixture.

Data, number of steps and delta are those of the code that d3p compares with (Jälkö et al. 2017);
its epsilons run from 0.1 to 10, five of them. Its batches hold 6 of 2000 records.
"""

import jax
import jax.numpy as jnp
import numpyro
from examples.programs.gaussian_mixture import (
    CENTRES,
    clusters,
    log_likelihood,
    make_guide,
    mixture,
    model,
)
from numpyro.infer import Trace_ELBO

from experiments.cells import Experiment, Measured, Settings, main
from tacit.numpyro import DPSVI

__all__ = ["EPSILONS", "EXPERIMENT", "best_possible"]

EPSILONS = (0.1, 0.32, 1.0, 3.2, 10.0, "infinity")


def measure(settings: Settings, seed: int) -> Measured:
    """Fits the mixture to the same points for all seeds."""
    train, test = clusters()
    guide = make_guide()
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(settings["learning_rate"]),
        Trace_ELBO(),
        epsilon=float(settings["epsilon"]),
        delta=settings["delta"],
        clip_norm=float(settings["clip_norm"]),
        batch_size=settings["batch_size"],
        seed=seed,
    )
    key, prediction_key = jax.random.split(jax.random.key(seed))
    result = svi.run(key, settings["num_steps"], train, progress_bar=False)
    found = log_likelihood(prediction_key, guide, result.params, test)
    return Measured({"log likelihood": found}, svi.statement(result.state))


def best_possible() -> float:
    """Returns the mean log density of the test points under what drew them."""
    _, test = clusters()
    drawn_from = mixture(jnp.full(5, 0.2), jnp.asarray(CENTRES), jnp.full(5, jnp.sqrt(0.5)))
    return float(drawn_from.log_prob(test).mean())


def _cell(epsilon: float | str) -> Settings:
    return {
        "epsilon": epsilon,
        "delta": 1e-3,
        "num_steps": 1000,
        "batch_size": 200,
        "clip_norm": epsilon if epsilon == "infinity" else 1.0,
        "learning_rate": 0.05,
    }


EXPERIMENT = Experiment(
    name="d3p_mixture",
    cells=tuple(map(_cell, EPSILONS)),
    num_seeds=5,
    measure=measure,
    quick={"num_steps": 5},
)

if __name__ == "__main__":
    main(EXPERIMENT)
