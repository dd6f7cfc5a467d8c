"""Networks that have bounds, and points of boxes to try them on."""

import jax
import jax.numpy as jnp
import numpy as np

from tacit.models import CNN, MLP, Conv, MaxPool
from tacit.models.layers import Activation
from tacit.models.networks import AveragePool

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
    "cnn": CNN(input_shape=(6, 6, 1), stages=STAGES, hidden=(8,), num_outputs=2, dropout=0.3),
    "tanh-cnn": CNN(
        input_shape=(6, 6, 1), stages=STAGES, num_outputs=2, activation=Activation.TANH
    ),
}
APPLY = {
    name: jax.jit(jax.vmap(network.apply, in_axes=(None, 0, None)))
    for name, network in NETWORKS.items()
}


def params_of(network, seed, scale=1.0):
    """Returns parameters that no random generator had to be compiled for."""
    generator = np.random.default_rng(seed)
    shapes = jax.eval_shape(network.init, KEY)
    return jax.tree.map(
        lambda s: jnp.array(scale * generator.normal(size=s.shape), s.dtype), shapes
    )


def input_of(name, seed, scale=1.0):
    shape = (6, 6, 1) if "cnn" in name else (4,)
    return np.float32(scale * np.random.default_rng(seed).normal(size=shape))


def points_of(box, num_points, seed):
    """Returns points of a box, half of them corners, as floats that do lie in it."""
    generator = np.random.default_rng(seed)
    shares = generator.uniform(size=(num_points, *box.lower.shape))
    shares[::2] = shares[::2].round()
    points = np.float32(box.lower + shares * (np.float64(box.upper) - box.lower))
    return np.clip(points, box.lower, box.upper)
