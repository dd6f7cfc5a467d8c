"""Interval bounds contain every output, and are as tight as intervals can be."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.boxes import APPLY, KEY, NETWORKS, input_of, params_of, points_of
from tacit.certify.intervals import bound_step, interval_bounds, interval_bounds_over_weights
from tacit.errors import InvalidArgumentError
from tacit.models import MLP, EmbeddingBag
from tacit.models.layers import Activation
from tacit.models.steps import Activate
from tacit.robust.balls import Box

every_network = pytest.mark.parametrize("name", NETWORKS)
BOUNDS = {name: jax.jit(functools.partial(interval_bounds, NETWORKS[name])) for name in NETWORKS}
some_boxes = given(
    seed=st.integers(0, 2**31),
    scale=st.floats(0.01, 10.0),
    radius=st.sampled_from([0.0, 1e-6, 0.01, 0.3]),
)


@every_network
@settings(max_examples=20, deadline=None, derandomize=True)
@some_boxes
def test_no_point_of_a_box_has_outputs_outside_the_bounds(name, seed, scale, radius):
    centre = input_of(name, seed, scale)
    box = Box(centre - np.float32(radius), centre + np.float32(radius))
    params = params_of(NETWORKS[name], seed, scale)
    lower, upper = BOUNDS[name](params, box, KEY)
    outputs = APPLY[name](params, points_of(box, 32, seed), KEY)
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()


def test_the_bounds_of_one_affine_layer_are_its_extreme_corners():
    network = MLP(num_inputs=3, num_outputs=4)
    params = params_of(network, 1)
    box = Box(jnp.array([-1.0, 0.5, 2.0]), jnp.array([0.0, 0.7, 5.0]))
    corners = jnp.array(list(itertools.product(*zip(*box, strict=True))))
    outputs = jax.vmap(network.apply, in_axes=(None, 0, None))(params, corners, KEY)
    lower, upper = interval_bounds(network, params, box, KEY)
    # The allowance for rounding is 4 (3 + 4) 2^-24 = 1.7e-6 of magnitudes that add up to under 15.
    np.testing.assert_allclose(lower, outputs.min(0), atol=3e-5)
    np.testing.assert_allclose(upper, outputs.max(0), atol=3e-5)


@pytest.mark.parametrize("activation", Activation)
def test_the_bounds_of_an_activation_are_its_extremes(activation):
    box = Box(jnp.array([-3.0, -2.0, -0.4, -0.6]), jnp.array([-1.0, 0.5, 1.5, -0.6]))
    points = jnp.linspace(*box, num=2001)
    lower, upper = bound_step(Activate(activation), {}, box, KEY)
    # 2000 steps of at most 0.002 miss an extreme by at most a slope of 1.2 times half a step.
    np.testing.assert_allclose(lower, activation(points).min(0), atol=2e-6 + 1e-5)
    np.testing.assert_allclose(upper, activation(points).max(0), atol=2e-6 + 1e-5)


def test_the_bounds_of_dropout_are_those_of_the_mask_that_the_key_draws():
    network = MLP(num_inputs=2, hidden=(64,), num_outputs=1, dropout=0.5)
    params = params_of(network, 3)
    point = Box(jnp.ones(2), jnp.ones(2))
    bounds = jax.jit(lambda key: interval_bounds(network, params, point, key))
    for key in jax.random.split(KEY, 3):
        lower, upper = bounds(key)
        assert lower < network.apply(params, jnp.ones(2), key) < upper
        assert upper - lower < 5e-3  # between masks the outputs differ by whole units


def test_the_allowance_for_rounding_is_small_beside_a_small_radius():
    network = MLP(num_inputs=784, hidden=(100,), num_outputs=10)
    params = network.init(KEY)
    x = jnp.array(np.random.default_rng(0).uniform(size=784), jnp.float32)

    @jax.jit
    def width(radius):
        lower, upper = interval_bounds(network, params, Box(x - radius, x + radius), KEY)
        return jnp.mean(upper - lower)

    assert width(0.0) < 0.03 * width(0.01)


def test_the_bounds_of_a_bounds_loss_have_gradients():
    network = NETWORKS["mlp-relu"]
    box = Box(-jnp.ones(4), jnp.ones(4))
    width = lambda params: jnp.sum(interval_bounds(network, params, box, KEY).upper)  # noqa: E731
    grads = jax.jit(jax.grad(width))(params_of(network, 0))
    assert all(jnp.isfinite(leaf).all() and (leaf != 0).any() for leaf in jax.tree.leaves(grads))


@pytest.mark.parametrize("name", ["mlp-relu", "mlp-gelu", "cnn"])
@settings(max_examples=10, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), radius=st.sampled_from([0.0, 0.1]), spread=st.floats(0.0, 0.5))
def test_no_parameters_between_two_have_outputs_outside_the_bounds(name, seed, radius, spread):
    network, centre = NETWORKS[name], input_of(name, seed)
    box = Box(centre - np.float32(radius), centre + np.float32(radius))
    middle = params_of(network, seed)
    low = jax.tree.map(lambda leaf: leaf - np.float32(spread), middle)
    high = jax.tree.map(lambda leaf: leaf + np.float32(spread), middle)
    lower, upper = OVER_WEIGHTS[name](low, high, box, KEY)
    generator = np.random.default_rng(seed)
    for _ in range(3):
        params = jax.tree.map(
            lambda a, b: np.where(generator.integers(0, 2, a.shape), a, b), low, high
        )
        outputs = APPLY[name](params, points_of(box, 32, seed), KEY)
        assert (lower <= outputs).all()
        assert (outputs <= upper).all()


OVER_WEIGHTS = {
    name: jax.jit(functools.partial(interval_bounds_over_weights, NETWORKS[name]))
    for name in ("mlp-relu", "mlp-gelu", "cnn")
}


def test_a_box_of_weights_that_is_a_point_has_the_bounds_of_that_point():
    network, params = NETWORKS["mlp-relu"], params_of(NETWORKS["mlp-relu"], 5)
    box = Box(-jnp.ones(4), jnp.ones(4))
    over = OVER_WEIGHTS["mlp-relu"](params, params, box, KEY)
    np.testing.assert_allclose(over, interval_bounds(network, params, box, KEY), rtol=1e-4)


def test_bounds_over_weights_of_one_layer_are_at_most_half_as_wide_again_as_the_corners():
    network = MLP(num_inputs=1, num_outputs=1)
    low, high = (
        {"dense_0": {"kernel": jnp.array([[end]]), "bias": jnp.zeros(1)}} for end in (-1.0, 1.0)
    )
    over = interval_bounds_over_weights(network, low, high, Box(jnp.zeros(1), jnp.ones(1)), KEY)
    assert 1.0 <= over.upper <= 1.5  # the corners are -1 and 1


@pytest.mark.parametrize(
    "network",
    [EmbeddingBag(num_tokens=3, num_features=2, num_outputs=1), lambda params, x, key: x],
    ids=["bag", "function"],
)
def test_networks_that_do_not_show_their_layers_are_refused(network):
    with pytest.raises(InvalidArgumentError, match="must be an MLP or a CNN"):
        interval_bounds(network, {}, Box(jnp.zeros(1), jnp.ones(1)), KEY)


def test_a_box_of_the_wrong_shape_is_refused():
    network = NETWORKS["mlp-relu"]
    with pytest.raises(InvalidArgumentError, match="num_inputs=4"):
        interval_bounds(network, params_of(network, 0), Box(jnp.zeros(3), jnp.ones(3)), KEY)
