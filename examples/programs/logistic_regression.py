"""Logistic regression on census records: the program of d3p's listing 2."""

import jax
import jax.numpy as jnp
import numpyro
from numpyro.distributions import Bernoulli, Normal
from numpyro.infer import Predictive, Trace_ELBO
from sklearn.metrics import roc_auc_score

from examples.census import census
from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array

__all__ = ["guide", "model", "run"]


def model(xs: Array, ys: Array | None = None) -> None:
    """Draws labels from features; a wide normal prior on the weights."""
    num_records, num_features = xs.shape
    w = numpyro.sample("w", Normal(0.0, 4.0).expand([num_features]).to_event(1))
    with numpyro.plate("batch", num_records):
        numpyro.sample("ys", Bernoulli(logits=xs @ w), obs=ys)


def guide(xs: Array, ys: Array | None = None) -> None:
    """Independent normals for the weights."""
    num_features = xs.shape[1]
    loc = numpyro.param("w_loc", jnp.zeros(num_features))
    log_scale = numpyro.param("w_scale_log", jnp.zeros(num_features))
    numpyro.sample("w", Normal(loc, jnp.exp(log_scale)).to_event(1))


def run(
    num_steps: int = 1000,
    num_records: int | None = None,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> Outcome:
    """Fits income above 50 000 dollars."""
    train, test = census(num_records)
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.02),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=1.0,
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
