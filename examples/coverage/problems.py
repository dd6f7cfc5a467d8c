"""Problems of the coverage study: a model, and how nature draws truths and records from it."""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.flatten_util import ravel_pytree

import tacit
from tacit.models import MLP, Bernoulli, FixedGaussian, GaussianPrior
from tacit.models.base import Likelihood
from tacit.models.layers import Activation
from tacit.models.likelihoods import PoissonCounts
from tacit.models.priors import PerLeafPrior
from tacit.typing import Array, Key, Params, Record

__all__ = [
    "CURVATURE_SCALE",
    "PROBLEMS",
    "Problem",
    "exponential_rates",
    "flat",
    "normal_mean",
    "program",
]

NUM_GROUPS = 8
CURVATURE_SCALE = 3.0
"""Of `Laplace`: how curvatures are weighed inside the clip."""

NUM_CLIPPED = 5
"""How many records of a data set a clip norm is allowed to touch."""

_UNMEASURED = (math.nan, math.nan, math.nan)


def flat(params: Params) -> Array:
    """Returns all parameters in one vector: what intervals are about in most problems."""
    return ravel_pytree(params)[0]


class Problem(NamedTuple):
    """A model, and how nature draws its records.

    Attributes:
      model: four functions; its prior is the one that truths are drawn from.
      num_records: of one data set.
      truth: draws parameters from the prior.
      observe: draws the records of one data set, given the truth.
      precision: the largest posterior precision of any direction in a typical data set. Step sizes
        follow from it; it is public, because it is found without a data set.
      clip_norm: which hardly ever touches the gradient of a record at the truth.
      joint_clip_norm: the same for gradient and curvature together, as `Laplace` releases them.
      quantities: what intervals are about, of parameters.
      is_function: whether the quantities are values of a function, not the parameters.
      information: the curvature of the summed loss; None where it is the second derivative.
      program: a NumPyro program with the same parameters; None where there is none.
    """

    model: tacit.Model
    num_records: int
    truth: Callable[[Key], Params]
    observe: Callable[[Key, Params], Record]
    precision: float
    clip_norm: float
    joint_clip_norm: float
    quantities: Callable[[Params], Array] = flat
    is_function: bool = False
    information: Callable[[Params, Record], Array] | None = None
    program: Callable[..., None] | None = None


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

    return _measured(Problem(model, num_records, truth, observe, *_UNMEASURED))


def network(num_records: int, width: int = 16, noise: float = 0.5) -> Problem:
    """Returns a small network whose truths come from its prior; intervals are of its function."""
    mlp = MLP(num_inputs=2, hidden=(width,), num_outputs=1, activation=Activation.TANH)
    last = 2 / math.sqrt(width)
    overrides = (("dense_1/kernel", GaussianPrior(std=last)),)
    prior = PerLeafPrior(default=GaussianPrior(std=1.0), overrides=overrides)
    model = tacit.bayesian(mlp, prior=prior, likelihood=FixedGaussian(std=noise))
    axis = jnp.linspace(-0.8, 0.8, 5)
    grid = jnp.stack(jnp.meshgrid(axis, axis), axis=-1).reshape(-1, 2)

    def outputs(params: Params, x: Array) -> Array:
        key = jax.random.key(0)  # only dropout would use it
        return jax.vmap(lambda one: mlp.apply(params["network"], one, key)[0])(x)

    def truth(key: Key) -> Params:
        template, unflat = ravel_pytree(model.init(key))
        drawn = unflat(jax.random.normal(key, template.shape))
        layer = drawn["network"]["dense_1"]
        layer["kernel"] = last * layer["kernel"]
        return drawn

    def observe(key: Key, params: Params) -> Record:
        x_key, y_key = jax.random.split(key)
        x = jax.random.uniform(x_key, (num_records, 2), minval=-1.0)
        y = outputs(params, x) + noise * jax.random.normal(y_key, (num_records,))
        return tacit.Record(x, y, jnp.ones(num_records))

    def information(params: Params, records: Record) -> Array:
        vector, unflat = ravel_pytree(params)
        jacobian = jax.jacfwd(lambda v: outputs(unflat(v), records.x))(vector)
        return jacobian.T @ jacobian / noise**2

    return _measured(
        Problem(
            model,
            num_records,
            truth,
            observe,
            *_UNMEASURED,
            quantities=lambda params: outputs(params, grid),
            is_function=True,
            information=information,
        )
    )


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

    return _measured(Problem(model, num_records, truth, observe, *_UNMEASURED, program=program))


def _measured(problem: Problem, *, num_sets: int = 64, seed: int = 99) -> Problem:
    """Returns the problem with its precision and clip norms, by simulation: no data set is read.

    Clip norms are quantiles over simulated records, at the truths that made them, such that about
    five records of a data set are clipped. What that moves the gradient by is then less than the
    noise for any number of records; a fixed share of the records would move it by more and more.
    """
    model = problem.model

    def one(key: Key) -> tuple[Array, Array, Array]:
        truth_key, records_key = jax.random.split(key)
        params = problem.truth(truth_key)
        records = problem.observe(records_key, params)
        vector, unflat = ravel_pytree(params)

        def loss(vector: Array, record: Record) -> Array:
            return -model.log_likelihood(unflat(vector), record, key)

        def total(vector: Array) -> Array:
            return jnp.sum(jax.vmap(loss, in_axes=(None, 0))(vector, records))

        def norms(record: Record) -> tuple[Array, Array]:
            gradient = jnp.sum(jax.grad(loss)(vector, record) ** 2)
            curvature = jnp.sum(jax.hessian(loss)(vector, record) ** 2)
            # The least C with  gradient + (scale / C)^2 curvature <= C^2.
            root = jnp.sqrt(gradient**2 + 4 * CURVATURE_SCALE**2 * curvature)
            return jnp.sqrt(gradient), jnp.sqrt((gradient + root) / 2)

        if problem.information is None:
            information = jax.hessian(total)(vector)
        else:
            information = problem.information(params, records)
        prior = -jax.hessian(lambda v: model.log_prior(unflat(v)))(vector)
        few = jax.tree.map(lambda leaf: leaf[:500], records)
        return jnp.linalg.eigvalsh(information + prior)[-1], *jax.vmap(norms)(few)

    keys = jax.random.split(jax.random.key(seed), num_sets)
    largest, *norms = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    clip_norm, joint_clip_norm = (
        float(np.quantile(norm, 1 - NUM_CLIPPED / problem.num_records)) for norm in norms
    )
    return problem._replace(
        precision=float(np.median(largest)), clip_norm=clip_norm, joint_clip_norm=joint_clip_norm
    )


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
    }.items()
}
