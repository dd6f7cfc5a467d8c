"""Counts that vary more than Poisson ones: negative-binomial regression with an exposure."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro.distributions import HalfNormal, NegativeBinomial2, Normal
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoMultivariateNormal

from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array

__all__ = ["WEIGHTS", "Visits", "model", "run", "visits"]

WEIGHTS = np.array([0.5, -0.3, 0.2])
"""What the simulation uses, and the fit should find."""


class Visits(NamedTuple):
    """How often people saw a doctor while they were observed."""

    features: NDArray[np.float32]
    years: NDArray[np.float32]
    counts: NDArray[np.int32]


def model(features: Array, years: Array, counts: Array | None = None) -> None:
    """Draws counts whose mean is log-linear in the features and grows with the years observed."""
    num_records, num_features = features.shape
    base = numpyro.sample("base", Normal(0.0, 2.0))
    weights = numpyro.sample("weights", Normal().expand([num_features]).to_event(1))
    concentration = numpyro.sample("concentration", HalfNormal(5.0))
    with numpyro.plate("people", num_records):
        mean = years * jnp.exp(base + features @ weights)
        numpyro.sample("counts", NegativeBinomial2(mean, concentration), obs=counts)


def visits(num_records: int, seed: int = 0) -> Visits:
    """Returns simulated people with three features."""
    rng = np.random.default_rng(seed)
    features, years = rng.normal(size=(num_records, 3)), rng.uniform(0.5, 2.0, num_records)
    mean = years * np.exp(1.0 + features @ WEIGHTS)
    counts = rng.poisson(mean * rng.gamma(3.0, 1 / 3.0, num_records))
    return Visits(features.astype(np.float32), years.astype(np.float32), counts.astype(np.int32))


def run(
    num_steps: int = 1000,
    num_records: int = 5000,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> Outcome:
    """Fits simulated visits to doctors and compares the weights with the true ones."""
    guide = AutoMultivariateNormal(model, init_scale=0.1)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.02),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=2.0,
        batch_size=num_records / 10,
        seed=seed,
    )
    key, draw_key = jax.random.split(jax.random.key(seed or 0))
    result = svi.run(key, num_steps, *visits(num_records), progress_bar=False)
    weights = guide.sample_posterior(draw_key, result.params, sample_shape=(500,))["weights"]
    scores = {
        "largest error of a weight": float(jnp.max(jnp.abs(weights.mean(axis=0) - WEIGHTS))),
        "largest standard deviation": float(jnp.max(weights.std(axis=0))),
    }
    return Outcome(scores, svi.statement(result.state))


if __name__ == "__main__":
    main(run)
