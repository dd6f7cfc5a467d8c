"""Networks in the coverage study: whole ones, and by their last layer on public features."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

import tacit
from examples.coverage.problem import Problem, measured
from tacit.models import MLP, FixedGaussian, GaussianPrior
from tacit.models.layers import Activation
from tacit.models.priors import PerLeafPrior
from tacit.typing import Array, Key, Params, Record

__all__ = ["last_layer", "network"]

NOISE = 0.5
LAST_STD = 2.0
"""The prior's standard deviation of weights of the last layer, times the root of the width."""

_NUM_UNITS, _NUM_FEATURES = 512, 16

_AXIS = np.linspace(-0.8, 0.8, 5)
_GRID = np.stack(np.meshgrid(_AXIS, _AXIS), axis=-1).reshape(-1, 2).astype(np.float32)
"""Where intervals are of the function."""


def network(num_records: int, width: int = 16) -> Problem:
    """Returns a small network whose truths come from its prior; intervals are of its function."""
    mlp = MLP(num_inputs=2, hidden=(width,), num_outputs=1, activation=Activation.TANH)
    last = LAST_STD / math.sqrt(width)
    overrides = (("dense_1/kernel", GaussianPrior(std=last)),)
    prior = PerLeafPrior(default=GaussianPrior(std=1.0), overrides=overrides)
    model = tacit.bayesian(mlp, prior=prior, likelihood=FixedGaussian(std=NOISE))

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
        y = outputs(params, x) + NOISE * jax.random.normal(y_key, (num_records,))
        return tacit.Record(x, y, jnp.ones(num_records))

    def information(params: Params, records: Record) -> Array:
        vector, unflat = ravel_pytree(params)
        jacobian = jax.jacfwd(lambda v: outputs(unflat(v), records.x))(vector)
        return jacobian.T @ jacobian / NOISE**2

    return measured(
        Problem(
            model,
            num_records,
            truth,
            observe,
            quantities=lambda params: outputs(params, _GRID),
            is_function=True,
            information=information,
        )
    )


def last_layer(network: Problem) -> Problem:
    """Returns the problem of a network for a linear model on public features.

    The features are the leading principal components, over public inputs, of many hidden units like
    the network's own, drawn from their prior. The prior of the linear model gives its function the
    covariance that the network's has, but for what the other components had.
    """
    features, stds = _principal_features()
    dim = len(stds)

    def outputs(params: Params, x: Array) -> Array:
        return features(x) @ params

    def log_likelihood(params: Params, record: Record, key: Key) -> Array:
        del key
        return -0.5 * ((record.y - record.x @ params) / NOISE) ** 2

    model = tacit.Model(
        init=lambda key: jnp.zeros(dim),
        log_prior=lambda params: -0.5 * jnp.sum((params / stds) ** 2),
        log_likelihood=log_likelihood,
        predict=lambda params, x, key: x @ params,
    )

    def observe(key: Key, truth: Params) -> Record:
        records = network.observe(key, truth)
        return records._replace(x=features(records.x))

    def observe_own(key: Key, params: Params) -> Record:
        x_key, y_key = jax.random.split(key)
        x = features(jax.random.uniform(x_key, (network.num_records, 2), minval=-1.0))
        y = x @ params + NOISE * jax.random.normal(y_key, (network.num_records,))
        return tacit.Record(x, y, jnp.ones(network.num_records))

    own = Problem(
        model,
        network.num_records,
        lambda key: stds * jax.random.normal(key, (dim,)),
        observe_own,
        quantities=lambda params: outputs(params, _GRID),
        is_function=True,
    )
    return measured(own)._replace(
        truth=network.truth, observe=observe, true_quantities=network.quantities
    )


def _principal_features() -> tuple[Callable[[Array], Array], Array]:
    """Returns features of inputs, and the standard deviations that their weights have a priori.

    Features have a mean square of one, so that every direction has the same information. The
    components that are left out have .02 % of the variance of the network's function.
    """
    keys = jax.random.split(jax.random.key(11), 3)
    kernel = jax.random.normal(keys[0], (2, _NUM_UNITS))
    bias = jax.random.normal(keys[1], (_NUM_UNITS,))

    def units(x: Array) -> Array:
        hidden = LAST_STD / math.sqrt(_NUM_UNITS) * jnp.tanh(x @ kernel + bias)
        return jnp.concatenate([hidden, jnp.ones((len(x), 1))], axis=1)

    made_up = units(jax.random.uniform(keys[2], (4000, 2), minval=-1.0))
    values, vectors = jnp.linalg.eigh(made_up.T @ made_up / len(made_up))
    stds = jnp.sqrt(values[-_NUM_FEATURES:])
    return lambda x: units(x) @ (vectors[:, -_NUM_FEATURES:] / stds), stds
