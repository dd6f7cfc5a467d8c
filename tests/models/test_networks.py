"""What holds for every network: shapes, dtypes, keys, mapping, gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.architectures import (
    ghitu_mnist_mlp,
    ghitu_pneumonia_cnn,
    zhang_mnist_cnn,
    zhang_mnist_mlp,
    zhang_regression_mlp,
)

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.models import CNN, MLP, Conv, EmbeddingBag, MaxPool
from tacit.models.layers import Activation
from tacit.models.networks import AveragePool

STAGES = (
    Conv(features=3, kernel=4, stride=2, padding=1),
    MaxPool(window=2, stride=1),
    Conv(features=4, kernel=(2, 3)),
    AveragePool(window=(1, 2), stride=1),
)
NETWORKS = {
    "linear": MLP(num_inputs=6, num_outputs=3),
    "mlp": MLP(num_inputs=6, hidden=(32, 32), num_outputs=3, dropout=0.5),
    "cnn": CNN(input_shape=(10, 10, 1), stages=STAGES, hidden=(5,), num_outputs=3),
    "colour": CNN(input_shape=(10, 10, 3), stages=STAGES, num_outputs=3, dropout=0.5),
    "bag": EmbeddingBag(num_tokens=11, num_features=16, hidden=(16,), num_outputs=3, dropout=0.5),
}
INPUT_SHAPES = {"cnn": (10, 10, 1), "colour": (10, 10, 3)}
APPLY = {name: jax.jit(network.apply) for name, network in NETWORKS.items()}
every_network = pytest.mark.parametrize("name", NETWORKS)


def inputs(name, *batch):
    generator = np.random.default_rng(1)
    if name.startswith("bag"):
        return jnp.array(generator.integers(-2, 11, (*batch, 5)))
    return jnp.array(generator.normal(size=(*batch, *INPUT_SHAPES.get(name, (6,)))), jnp.float32)


def some_params(name):
    """Returns parameters of the right shapes that no random generator had to be compiled for."""
    generator = np.random.default_rng(2)
    shapes = jax.eval_shape(NETWORKS[name].init, jax.random.key(0))
    return jax.tree.map(lambda s: jnp.array(generator.normal(size=s.shape), s.dtype), shapes)


@every_network
def test_a_network_maps_one_input_to_its_outputs(name):
    params = some_params(name)
    out = APPLY[name](params, inputs(name), jax.random.key(2))
    assert out.shape == (3,)
    assert out.dtype == jnp.float32
    assert jnp.isfinite(out).all()


@every_network
def test_initial_parameters_are_strongly_typed_float32(name):
    for leaf in jax.tree.leaves(jax.eval_shape(NETWORKS[name].init, jax.random.key(0))):
        assert leaf.dtype == jnp.float32
        assert not leaf.weak_type


@pytest.mark.parametrize("name", ["cnn", "bag"])
def test_the_starting_point_follows_the_key(name):
    params, again, other = (NETWORKS[name].init(jax.random.key(seed)) for seed in (0, 0, 1))
    for part, layer in params.items():
        weights = "table" if part == "embedding" else "kernel"
        np.testing.assert_array_equal(layer[weights], again[part][weights])
        assert (layer[weights] != other[part][weights]).all()


@functools.cache
def mapped_over_records(name):
    """Returns inputs, keys, outputs and the gradient of the sum of the squared outputs."""
    network = NETWORKS[name]
    xs, keys = inputs(name, 4), jax.random.split(jax.random.key(2), 4)

    @functools.partial(jax.value_and_grad, has_aux=True)
    def loss(params):
        outs = jax.vmap(network.apply, (None, 0, 0))(params, xs, keys)
        return jnp.sum(jnp.square(outs)), outs

    (_, outs), grads = jax.jit(loss)(some_params(name))
    return xs, keys, outs, grads


@every_network
def test_mapping_over_records_equals_one_record_at_a_time(name):
    xs, keys, outs, _ = mapped_over_records(name)
    for x, key, out in zip(xs, keys, outs, strict=True):
        alone = APPLY[name](some_params(name), x, key)
        np.testing.assert_allclose(alone, out, rtol=1e-4, atol=1e-4)


@every_network
def test_every_parameter_has_a_gradient(name):
    for leaf in jax.tree.leaves(mapped_over_records(name)[3]):
        assert jnp.isfinite(leaf).all()
        assert jnp.any(leaf != 0)


@every_network
def test_the_key_matters_exactly_when_there_is_dropout(name):
    params, x = some_params(name), inputs(name)
    first, again, other = (APPLY[name](params, x, jax.random.key(seed)) for seed in (2, 2, 3))
    np.testing.assert_array_equal(first, again)
    assert bool((first != other).any()) == (NETWORKS[name].dropout > 0)


def test_dropout_of_the_last_hidden_layer_keeps_the_expected_output():
    dropping = MLP(num_inputs=6, hidden=(16,), num_outputs=3, dropout=0.5)
    keeping = dataclasses.replace(dropping, dropout=0.0)
    params, x = dropping.init(jax.random.key(0)), jnp.linspace(-1.0, 1.0, 6)
    keys = jax.random.split(jax.random.key(1), 20_000)
    draws = jax.vmap(lambda key: dropping.apply(params, x, key))(keys)
    tolerance = 5 * np.asarray(draws).std(0) / np.sqrt(len(keys))
    gap = np.abs(np.asarray(draws).mean(0) - keeping.apply(params, x, keys[0]))
    assert (gap < tolerance).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@every_network
def test_arithmetic_follows_the_precision_of_the_parameters(name, dtype):
    network = NETWORKS[name]
    shapes, key = jax.eval_shape(network.init, jax.random.key(0)), jax.random.key(2)
    x = inputs(name)
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), shapes)
        assert jax.eval_shape(network.apply, params, x, key).dtype == dtype


def test_whole_number_pixels_are_accepted_as_numbers():
    pixels, params, key = jnp.arange(6, dtype=jnp.uint8), some_params("linear"), jax.random.key(1)
    expected = APPLY["linear"](params, pixels.astype(jnp.float32), key)
    np.testing.assert_array_equal(APPLY["linear"](params, pixels, key), expected)


def test_a_grey_image_may_lack_its_channel_axis():
    x, params = inputs("cnn")[..., 0], some_params("cnn")
    expected = APPLY["cnn"](params, x[..., None], jax.random.key(2))
    np.testing.assert_array_equal(APPLY["cnn"](params, x, jax.random.key(2)), expected)


@pytest.mark.parametrize("activation", Activation)
def test_initialisation_keeps_the_signal_alive_through_five_layers(activation):
    network = MLP(num_inputs=256, hidden=(256,) * 5, num_outputs=256, activation=activation)
    params = network.init(jax.random.key(0))
    x = jnp.array(np.random.default_rng(1).normal(size=256), jnp.float32)
    out = network.apply(params, x, jax.random.key(2))
    assert 0.05 < float(jnp.std(out)) < 20.0


@pytest.mark.parametrize(
    ("activation", "at_minus_one", "at_two"),
    [
        (Activation.RELU, 0.0, 2.0),
        (Activation.TANH, np.tanh(-1), np.tanh(2)),
        (Activation.SOFTPLUS, np.log1p(np.exp(-1)), np.log1p(np.exp(2))),
        (Activation.ELU, np.exp(-1) - 1, 2.0),
        (Activation.GELU, -0.1588, 1.9546),
        (Activation.SIGMOID, 1 / (1 + np.exp(1)), 1 / (1 + np.exp(-2))),
        (Activation.IDENTITY, -1.0, 2.0),
    ],
)
def test_activations_have_their_textbook_values(activation, at_minus_one, at_two):
    values = activation(jnp.array([-1.0, 2.0]))
    np.testing.assert_allclose(values, [at_minus_one, at_two], atol=1e-4)


@pytest.mark.parametrize(
    ("network", "num_parameters"),
    [
        (zhang_mnist_mlp(), 784 * 1200 + 1200 + 1200 * 1200 + 1200 + 1200 * 10 + 10),
        (zhang_mnist_cnn(), 26_010),
        (ghitu_mnist_mlp(), 784 * 512 + 512 + 512 * 10 + 10),
        (ghitu_pneumonia_cnn(), 16 * 16 + 16 + 16 * 16 * 48 + 48 + 4800 * 100 + 100 + 100 + 1),
        (zhang_regression_mlp(), 200 + 200 + 200 * 200 + 200 + 200 * 2 + 2),
    ],
)
def test_published_networks_have_the_published_number_of_parameters(network, num_parameters):
    assert _tree.size(jax.eval_shape(network.init, jax.random.key(0))) == num_parameters


@pytest.mark.parametrize(
    ("network", "num_features"), [(zhang_mnist_cnn(), 512), (ghitu_pneumonia_cnn(), 4800)]
)
def test_published_cnns_flatten_to_the_published_size(network, num_features):
    assert network.num_features == num_features
    params = jax.eval_shape(network.init, jax.random.key(0))
    assert params["dense_0"]["kernel"].shape[0] == num_features


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MLP(num_inputs=0, num_outputs=1), "num_inputs must be"),
        (lambda: MLP(num_inputs=1, hidden=[3], num_outputs=1), "hidden must be a tuple"),
        (lambda: MLP(num_inputs=1, hidden=(0,), num_outputs=1), r"hidden\[0\] must be"),
        (lambda: MLP(num_inputs=1, num_outputs=1, dropout=1.0), "dropout must lie"),
        (lambda: MLP(num_inputs=1, num_outputs=1, activation="relu"), "Activation.RELU"),
        (lambda: Conv(features=1, kernel=0), "kernel must be"),
        (lambda: Conv(features=1, kernel=(2, 2, 2)), "kernel must be"),
        (lambda: Conv(features=1, kernel=1, padding=-1), "padding must be"),
        (lambda: MaxPool(window=2, stride=0.5), "stride must be"),
        (lambda: CNN(input_shape=(8, 8), stages=(), num_outputs=1), "input_shape must be"),
        (lambda: CNN(input_shape=(8, 8, 1), stages=("conv",), num_outputs=1), r"stages\[0\]"),
        (
            lambda: CNN(input_shape=(8, 8, 1), stages=(Conv(features=1, kernel=9),), num_outputs=1),
            "does not fit",
        ),
        (lambda: EmbeddingBag(num_tokens=0, num_features=1, num_outputs=1), "num_tokens"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(build, message):
    with pytest.raises(InvalidArgumentError, match=message):
        build()


@pytest.mark.parametrize(
    ("name", "x"),
    [
        ("mlp", jnp.ones((4, 6))),
        ("cnn", jnp.ones((2, 10, 10, 1))),
        ("colour", jnp.ones((10, 10))),
        ("bag", jnp.ones(5)),
        ("bag", jnp.ones((2, 5), jnp.int32)),
    ],
)
def test_an_input_of_the_wrong_shape_or_kind_is_refused(name, x):
    network = NETWORKS[name]
    with pytest.raises(InvalidArgumentError, match="an input must"):
        network.apply(some_params(name), x, jax.random.key(1))
