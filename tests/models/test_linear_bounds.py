"""Linear bounds contain every output, lie within intervals, and bound differences well."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.boxes import APPLY, KEY, NETWORKS, input_of, params_of, points_of
from tacit.certify.intervals import interval_bounds
from tacit.certify.linear import EuclideanBall, linear_bounds, relax
from tacit.errors import InvalidArgumentError
from tacit.models import MLP
from tacit.models.layers import Activation
from tacit.models.steps import Activate
from tacit.robust.balls import Box

# The other activations are tested one at a time below.
NAMES = ("mlp-relu", "mlp-tanh", "cnn")
BOUNDS = {name: jax.jit(functools.partial(linear_bounds, NETWORKS[name])) for name in NAMES}
BALL = jax.jit(
    lambda params, box, ball: linear_bounds(NETWORKS["mlp-tanh"], params, box, KEY, ball=ball)
)
RELAX = jax.jit(relax, static_argnums=0)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    scale=st.floats(0.01, 5.0),
    radius=st.sampled_from([0.0, 1e-6, 0.01, 0.3, 2.0]),
)
def test_no_point_of_a_box_has_outputs_outside_the_bounds(name, seed, scale, radius):
    centre = input_of(name, seed, scale)
    box = Box(centre - np.float32(radius), centre + np.float32(radius))
    params = params_of(NETWORKS[name], seed, scale)
    lower, upper = BOUNDS[name](params, box, KEY)
    outputs = APPLY[name](params, points_of(box, 32, seed), KEY)
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**31), radius=st.sampled_from([1e-3, 0.1, 1.0]))
def test_no_point_of_a_euclidean_ball_has_outputs_outside_its_bounds(seed, radius):
    name = "mlp-tanh"
    centre = input_of(name, seed)
    box = Box(centre - np.float32(radius), centre + np.float32(radius))
    moves = np.random.default_rng(seed).normal(size=(32, *centre.shape))
    moves /= np.sqrt(np.sum(moves**2, axis=tuple(range(1, moves.ndim)), keepdims=True))
    points = np.float32(centre + radius * moves)
    params = params_of(NETWORKS[name], seed)
    lower, upper = BALL(params, box, EuclideanBall(centre, radius))
    outputs = APPLY[name](params, points, KEY)
    assert (lower <= outputs).all()
    assert (outputs <= upper).all()


@pytest.mark.parametrize("activation", Activation)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(low=st.floats(-20, 20, width=32), width=st.floats(0, 10, width=32))
def test_an_activation_stays_between_its_lines(activation, low, width):
    box = Box(jnp.full(201, low), jnp.full(201, low + width))
    x = jnp.clip(jnp.linspace(low, low + width, 201), *box)
    lower, upper = (
        np.float64(line.slope[..., 0]) * np.float64(x) + np.float64(line.shift)
        for line in RELAX(Activate(activation), box)
    )
    value = activation(x)
    assert (lower <= value).all()
    assert (value <= upper).all()


def test_linear_bounds_lie_within_interval_bounds():
    ratios = {}
    for name in NAMES:
        params, centre = params_of(NETWORKS[name], 7), input_of(name, 7)
        box = Box(centre - 0.3, centre + 0.3)
        linear, interval = BOUNDS[name](params, box, KEY), INTERVALS[name](params, box, KEY)
        # Two compilations of one sum may differ in the last places.
        np.testing.assert_array_less(interval.lower, linear.lower + 1e-5)
        np.testing.assert_array_less(linear.upper, interval.upper + 1e-5)
        ratios[name] = np.max((linear.upper - linear.lower) / (interval.upper - interval.lower))
    assert max(ratios.values()) < 0.9


INTERVALS = {name: jax.jit(functools.partial(interval_bounds, NETWORKS[name])) for name in NAMES}


def test_on_a_small_relu_network_they_are_several_times_narrower_than_intervals():
    network = MLP(num_inputs=10, hidden=(32, 32), num_outputs=1)
    params = network.init(KEY)
    box = Box(jnp.full(10, 0.49), jnp.full(10, 0.51))
    outputs = jax.vmap(network.apply, in_axes=(None, 0, None))(params, points_of(box, 999, 0), KEY)
    sampled = outputs.max() - outputs.min()
    linear, interval = (
        float(upper[0] - lower[0])
        for lower, upper in (
            jax.jit(functools.partial(bounds, network))(params, box, KEY)
            for bounds in (linear_bounds, interval_bounds)
        )
    )
    assert sampled < linear < 3 * sampled
    assert interval > 5 * linear


def textbook_crown(kernels, biases, lower, upper):
    """Returns the upper bounds of a ReLU network, in float64, a matrix at a time."""
    ends = []  # of the inputs of each activation
    for depth in range(1, len(kernels) + 1):
        bounds = []
        for sign in (1, -1):
            rows, total = sign * kernels[depth - 1].T, sign * biases[depth - 1]
            for layer in reversed(range(depth - 1)):
                low, high = ends[layer]
                is_open = (low < 0) & (high > 0)
                up = np.where(is_open, high / (high - low), low >= 0)
                down = np.where(is_open, high > -low, low >= 0)
                total = total + np.maximum(rows, 0) @ np.where(is_open, -up * low, 0)
                rows = np.where(rows > 0, rows * up, rows * down)
                total, rows = total + rows @ biases[layer], rows @ kernels[layer].T
            bounds.append(total + np.maximum(rows, 0) @ upper + np.minimum(rows, 0) @ lower)
        ends.append((-bounds[1], bounds[0]))
    return ends[-1]


@pytest.mark.parametrize("seed", range(3))
def test_for_a_relu_network_they_are_at_least_as_tight_as_the_textbook_has_them(seed):
    network, centre = NETWORKS["mlp-relu"], np.float64(input_of("mlp-relu", seed))
    params = params_of(network, seed)
    kernels, biases = (
        [np.float64(params[f"dense_{i}"][part]) for i in range(3)] for part in ("kernel", "bias")
    )
    low, high = textbook_crown(kernels, biases, centre - 0.3, centre + 0.3)
    box = Box(*(np.float32(centre + move) for move in (-0.3, 0.3)))
    lower, upper = BOUNDS["mlp-relu"](params, box, KEY)
    np.testing.assert_array_less(low, lower + 1e-3)
    np.testing.assert_array_less(upper, high + 1e-3)


def test_the_specification_bounds_a_difference_far_better_than_the_bounds_of_both():
    network, params = NETWORKS["mlp-relu"], params_of(NETWORKS["mlp-relu"], 9)
    kernel = params["dense_2"]["kernel"]
    params["dense_2"]["kernel"] = kernel.at[:, 1].set(kernel[:, 0] + 0.01)
    box = Box(jnp.full(4, 0.9), jnp.full(4, 1.1))
    outputs = APPLY["mlp-relu"](params, points_of(box, 99, 1), KEY)
    differences = outputs[:, 0] - outputs[:, 1]
    specification = jnp.array([[1.0, -1.0]])
    lower, upper = jax.jit(
        lambda p: linear_bounds(network, p, box, KEY, specification=specification)
    )(params)
    assert lower <= jnp.min(differences)
    assert jnp.max(differences) <= upper
    both = BOUNDS["mlp-relu"](params, box, KEY)
    assert upper - lower < 0.05 * jnp.sum(both.upper - both.lower)


def test_for_a_linear_network_and_a_euclidean_ball_they_are_the_dual_norm():
    network = MLP(num_inputs=4, num_outputs=2)
    params, centre = params_of(network, 11), jnp.array([1.0, -2.0, 0.0, 3.0])
    box = Box(centre - 0.5, centre + 0.5)
    ball = EuclideanBall(centre, 0.5)
    bounds = jax.jit(lambda p: linear_bounds(network, p, box, KEY, ball=ball))(params)
    middle = network.apply(params, centre, KEY)
    reach = 0.5 * jnp.linalg.norm(params["dense_0"]["kernel"], axis=0)
    np.testing.assert_allclose(bounds.upper, middle + reach, rtol=1e-4)
    np.testing.assert_allclose(bounds.lower, middle - reach, rtol=1e-4)


def test_wide_layers_keep_their_interval_bounds_yet_the_outputs_are_linear():
    network, params = NETWORKS["mlp-relu"], params_of(NETWORKS["mlp-relu"], 7)
    box = Box(-jnp.ones(4), jnp.ones(4))
    cheap = jax.jit(lambda p: linear_bounds(network, p, box, KEY, max_rows=2))(params)
    full, interval = BOUNDS["mlp-relu"](params, box, KEY), INTERVALS["mlp-relu"](params, box, KEY)
    widths = [jnp.sum(bounds.upper - bounds.lower) for bounds in (full, cheap, interval)]
    assert widths[0] < widths[1] < widths[2]


def test_a_specification_of_the_wrong_shape_is_refused():
    network = NETWORKS["mlp-relu"]
    box = Box(-jnp.ones(4), jnp.ones(4))
    with pytest.raises(InvalidArgumentError, match="column for each of the 2"):
        linear_bounds(network, params_of(network, 0), box, KEY, specification=jnp.ones((1, 3)))
