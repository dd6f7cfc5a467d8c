"""The problems of the coverage study."""

import math
from collections.abc import Callable, Mapping
from functools import cache

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

import tacit
from examples.coverage.networks import last_layer, network
from examples.coverage.problem import Problem, measured
from tacit.models import MLP, Bernoulli, FixedGaussian, GaussianPrior
from tacit.models.base import Likelihood
from tacit.models.likelihoods import PoissonCounts
from tacit.typing import Array, Key, Params, Record

__all__ = [
    "PROBLEMS",
    "exponential_rates",
    "normal_mean",
    "program",
]

NUM_GROUPS = 8


def normal_mean(num_records: int = 1000, sigma: float = 10.0, dim: int = 2) -> Problem:
    """Returns ``x_i ~ N(theta, sigma^2 I)`` under ``theta ~ N(0, I)``: the posterior is normal."""
    model = tacit.Model(
        init=lambda key: jnp.zeros(dim),
        log_prior=lambda theta: -0.5 * jnp.sum(theta**2),
        log_likelihood=lambda theta, record, key: -0.5 * jnp.sum(((record.y - theta) / sigma) ** 2),
        predict=lambda theta, x, key: theta,
    )
    return Problem(
        model,
        num_records,
        lambda key: jax.random.normal(key, (dim,)),
        lambda key, theta: _targets(theta + sigma * jax.random.normal(key, (num_records, dim))),
        precision=1 + num_records / sigma**2,
        clip_norm=4 / sigma,
        joint_clip_norm=4 / sigma,
    )


def exponential_rates(num_records: int = 1000, prior_std: float = 0.1, dim: int = 2) -> Problem:
    """Returns exponential waiting times with log rates theta: scores have one long tail."""
    model = tacit.Model(
        init=lambda key: jnp.zeros(dim),
        log_prior=lambda theta: -0.5 * jnp.sum((theta / prior_std) ** 2),
        log_likelihood=lambda theta, record, key: jnp.sum(theta - record.y * jnp.exp(theta)),
        predict=lambda theta, x, key: theta,
    )

    def observe(key: Key, theta: Array) -> Record:
        return _targets(jnp.exp(-theta) * jax.random.exponential(key, (num_records, dim)))

    return Problem(
        model,
        num_records,
        lambda key: prior_std * jax.random.normal(key, (dim,)),
        observe,
        precision=num_records + 1 / prior_std**2,
        clip_norm=20.0,
        joint_clip_norm=20.0,
    )


def _targets(y: Array) -> Record:
    return tacit.Record(jnp.zeros((len(y), 1)), y, jnp.ones(len(y)))


def linear(num_records: int) -> Problem:
    """Returns linear regression: nine features and an intercept, noise of one, prior N(0, 1)."""

    def target(key: Key, outputs: Array) -> Array:
        return outputs + jax.random.normal(key, outputs.shape)

    return _regression(num_records, 9, FixedGaussian(std=1.0), target, prior_std=1.0)


def logistic(num_records: int, correlation: float = 0.0) -> Problem:
    """Returns logistic regression: nine features and an intercept, prior N(0, 1)."""

    def target(key: Key, outputs: Array) -> Array:
        return jax.random.bernoulli(key, jax.nn.sigmoid(outputs)).astype(jnp.float32)

    return _regression(num_records, 9, Bernoulli(), target, prior_std=1.0, correlation=correlation)


def poisson(num_records: int) -> Problem:
    """Returns Poisson regression: four features and an intercept, log rates of N(0, .5^2) each."""

    def target(key: Key, outputs: Array) -> Array:
        return jax.random.poisson(key, jnp.exp(outputs)).astype(jnp.float32)

    return _regression(num_records, 4, PoissonCounts(), target, prior_std=0.5)


def _regression(
    num_records: int,
    num_features: int,
    likelihood: Likelihood,
    target: Callable[[Key, Array], Array],
    *,
    prior_std: float,
    correlation: float = 0.0,
) -> Problem:
    """Returns a generalised linear model of features that are uniform on [-1, 1].

    Correlated features are normal variables with one correlation between all pairs, mapped to
    [-1, 1] by their distribution function (a Gaussian copula).
    """
    network = MLP(num_inputs=num_features, hidden=(), num_outputs=1)
    model = tacit.bayesian(network, prior=GaussianPrior(std=prior_std), likelihood=likelihood)

    def truth(key: Key) -> Params:
        template, unflat = ravel_pytree(model.init(key))
        return unflat(prior_std * jax.random.normal(key, template.shape))

    def observe(key: Key, params: Params) -> Record:
        x_key, common_key, y_key = jax.random.split(key, 3)
        own = jax.random.normal(x_key, (num_records, num_features))
        common = jax.random.normal(common_key, (num_records, 1))
        normal = math.sqrt(1 - correlation) * own + math.sqrt(correlation) * common
        x = 2 * jax.scipy.stats.norm.cdf(normal) - 1
        layer = params["network"]["dense_0"]
        outputs = x @ layer["kernel"][:, 0] + layer["bias"]
        return tacit.Record(x, target(y_key, outputs), jnp.ones(num_records))

    return measured(Problem(model, num_records, truth, observe))


def program(x: Array, y: Array | None = None) -> None:
    """A hierarchical NumPyro program: eight public groups with intercepts of their own, one slope.

    Args:
      x: ``(num_rows, 2)``, the number of the group and a feature.
      y: ``(num_rows,)``, zeros and ones.
    """
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    spread = numpyro.sample("spread", dist.LogNormal(-0.5, 0.5))
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("groups", NUM_GROUPS):
        intercept = numpyro.sample("intercept", dist.Normal(mean, spread))
    with numpyro.plate("records", x.shape[0]):
        logits = intercept[x[:, 0].astype(jnp.int32)] + slope * x[:, 1]
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def hierarchical(num_records: int) -> Problem:
    """Returns the hierarchical program; intervals are of its unconstrained latents."""
    shapes = tacit.Record(
        jax.ShapeDtypeStruct((num_records, 2), jnp.float32),
        jax.ShapeDtypeStruct((num_records,), jnp.float32),
        jax.ShapeDtypeStruct((num_records,), jnp.float32),
    )
    model = tacit.from_program(program, shapes)

    def truth(key: Key) -> Params:
        mean, spread, slope, *intercepts = jax.random.normal(key, (3 + NUM_GROUPS,))
        log_spread = -0.5 + 0.5 * spread
        intercept = mean + jnp.exp(log_spread) * jnp.stack(intercepts)
        return {"intercept": intercept, "mean": mean, "slope": slope, "spread": log_spread}

    def observe(key: Key, params: Params) -> Record:
        group_key, x_key, y_key = jax.random.split(key, 3)
        group = jax.random.randint(group_key, (num_records,), 0, NUM_GROUPS)
        feature = jax.random.uniform(x_key, (num_records,), minval=-1.0)
        logits = params["intercept"][group] + params["slope"] * feature
        y = jax.random.bernoulli(y_key, jax.nn.sigmoid(logits)).astype(jnp.float32)
        x = jnp.stack([group.astype(jnp.float32), feature], axis=1)
        return tacit.Record(x, y, jnp.ones(num_records))

    return measured(Problem(model, num_records, truth, observe, program=program))


PROBLEMS: Mapping[str, Callable[[], Problem]] = {
    name: cache(make)
    for name, make in {
        "normal mean, n 1000": normal_mean,
        "linear, n 1000": lambda: linear(1000),
        "linear, n 5000": lambda: linear(5000),
        "logistic, n 2000": lambda: logistic(2000),
        "logistic, n 5000": lambda: logistic(5000),
        "logistic, n 20 000": lambda: logistic(20_000),
        "logistic, correlated, n 2000": lambda: logistic(2000, 0.9),
        "logistic, correlated, n 5000": lambda: logistic(5000, 0.9),
        "logistic, correlated, n 20 000": lambda: logistic(20_000, 0.9),
        "Poisson, n 5000": lambda: poisson(5000),
        "hierarchical program, n 2000": lambda: hierarchical(2000),
        "network, n 1000": lambda: network(1000),
        "its last layer, n 1000": lambda: last_layer(network(1000)),
    }.items()
}
