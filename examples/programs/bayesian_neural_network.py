"""A Bayesian neural network: a Flax module whose weights are random, on census records."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpyro
from numpyro.contrib.module import random_flax_module
from numpyro.distributions import Bernoulli, Normal
from numpyro.infer import Predictive, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from sklearn.metrics import roc_auc_score

from examples.census import census
from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array

__all__ = ["Network", "model", "run"]


class Network(nn.Module):
    """One hidden layer."""

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Returns one logit per row."""
        return nn.Dense(1)(nn.tanh(nn.Dense(16)(x)))[..., 0]


def model(xs: Array, ys: Array | None = None) -> None:
    """Draws labels from features by a network with normal weights."""
    network = random_flax_module(
        "network", Network(), Normal(0.0, 0.5), input_shape=(1, xs.shape[1])
    )
    with numpyro.plate("people", xs.shape[0]):
        numpyro.sample("ys", Bernoulli(logits=network(xs)), obs=ys)


def run(
    num_steps: int = 1000,
    num_records: int | None = None,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> Outcome:
    """Fits income above 50 000 dollars."""
    train, test = census(num_records)
    guide = AutoNormal(model, init_scale=0.03)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.01),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=2.0,
        batch_size=min(1024, len(train.y) // 4),
        seed=seed,
    )
    key, prediction_key = jax.random.split(jax.random.key(seed or 0))
    result = svi.run(key, num_steps, train.x, train.y, progress_bar=False)
    predictive = Predictive(model, guide=guide, params=result.params, num_samples=100)
    probabilities = predictive(prediction_key, test.x)["ys"].mean(axis=0)
    scores = {
        "AUC": float(roc_auc_score(test.y, probabilities)),
        "accuracy": float(jnp.mean((probabilities > 0.5) == test.y)),
    }
    return Outcome(scores, svi.statement(result.state))


if __name__ == "__main__":
    main(run)
