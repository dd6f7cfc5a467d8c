"""Interval bounds contain every output, and are as tight as intervals can be."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidArgumentError
from tacit.models import (
    CNN,
    MLP,
    Activation,
    AveragePool,
    Box,
    Conv,
    EmbeddingBag,
    MaxPool,
    interval_bounds,
    interval_bounds_over_weights,
)

KEY = jax.random.key(0)
STAGES = (
    Conv(features=2, kernel=2, stride=2, padding=1),
    MaxPool(window=2, stride=1),
    Conv(features=3, kernel=(2, 1)),
    AveragePool(window=(1, 2), stride=1),
)
NETWORKS = {
    f"mlp-{activation}": MLP(num_inputs=4, hidden=(5, 3), num_outputs=2, activation=activation)
    for activation in Activation
} | {
    "linear": MLP(num_inputs=4, num_outputs=2),
    "dropout": MLP(num_inputs=4, hidden=(5, 5), num_outputs=2, dropout=0.5),
    "cnn": CNN(input_shape=(6, 6, 1), stages=STAGES, hidden=(4,), num_outputs=2, dropout=0.3),
    "tanh-cnn": CNN(
        input_shape=(6, 6, 1), stages=STAGES, num_outputs=2, activation=Activation.TANH
    ),
}
every_network = pytest.mark.parametrize("name", NETWORKS)
BOUNDS = {name: jax.jit(jax.tree_util.Partial(interval_bounds, net)) for name, net in
          NETWORKS.items()}  # fmt: skip
APPLY = {
    name: jax.jit(jax.vmap(net.apply, in_axes=(None, 0, None))) for name, net in NETWORKS.items()
}


def shape_of(name):
    return (6, 6, 1) if "cnn" in name else (4,)


def params_of(name, seed, scale=1.0):
    generator = np.random.default_rng(seed)
    shapes = jax.eval_shape(NETWORKS[name].init, KEY)
    return jax.tree.map(
        lambda s: jnp.array(scale * generator.normal(size=s.shape), s.dtype), shapes
    )


def points_of(box, num_points, seed):
    """Returns points of a box, half of them corners, as floats that do lie in it."""
    generator = np.random.default_rng(seed)
    shares = generator.uniform(size=(num_points, *box.lower.shape))
    shares[::2] = shares[::2].round()
    points = np.float32(box.lower + shares * (np.float64(box.upper) - box.lower))
    return np.clip(points, box.lower, box.upper)


@every_network
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31), scale=st.floats(0.01, 10.0), radius=st.sampled_from([0, 1e-6, 0.3])
)
def test_no_point_of_a_box_has_outputs_outside_the_bounds(name, seed, scale, radius):
    centre = np.float32(scale * np.random.default_rng(seed).normal(size=shape_of(name)))
    box = Box(centre - np.float32(radius), centre + np.float32(radius))
    params = params_of(name, seed, scale)
    lower, upper = BOUNDS[name](params, box, KEY)
    outputs = APPLY[name](params, points_of(box, 32, seed), KEY)
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()
