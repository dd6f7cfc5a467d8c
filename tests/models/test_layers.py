"""Layers agree with their textbook definitions, in value and gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tacit.models import layers
from tacit.models.layers import Activation


def close(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=2e-5, atol=2e-5)


def normal(*shape):
    return jnp.array(np.random.default_rng(sum(shape)).normal(size=shape), jnp.float32)


def plain_conv(layer, x, stride, padding):
    out = lax.conv_general_dilated(
        x[None],
        layer["kernel"],
        stride,
        [(p, p) for p in padding],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    return out[0] + layer["bias"]


@functools.partial(jax.jit, static_argnums=0)
def value_and_gradient(function, *args):
    out, pull = jax.vjp(function, *args)
    return out, pull(jnp.sin(1.0 + jnp.arange(out.size)).reshape(out.shape))


CONVOLUTIONS = [
    # input, kernel, stride, padding; those of one channel whose kernel is a multiple fold.
    ((28, 28, 1), (8, 8), (2, 2), (3, 3)),
    ((11, 9, 1), (4, 2), (2, 1), (1, 0)),
    ((12, 13, 1), (3, 6), (3, 2), (2, 1)),
    ((11, 11, 1), (3, 3), (2, 2), (1, 1)),
    ((13, 13, 16), (4, 4), (2, 2), (0, 0)),
    ((9, 8, 3), (3, 2), (1, 1), (0, 2)),
]


@pytest.mark.parametrize(("shape", "kernel", "stride", "padding"), CONVOLUTIONS)
def test_conv_equals_the_plain_convolution_in_value_and_gradient(shape, kernel, stride, padding):
    x = normal(*shape)
    layer = {"kernel": 0.1 * normal(*kernel, shape[2], 5), "bias": normal(5)}

    def ours(layer, x):
        return layers.conv(layer, x, stride=stride, padding=padding)

    def theirs(layer, x):
        return plain_conv(layer, x, stride, padding)

    out, grads = value_and_gradient(ours, layer, x)
    expected, expected_grads = value_and_gradient(theirs, layer, x)
    assert out.shape == expected.shape
    close(out, expected)
    jax.tree.map(close, grads, expected_grads)


def test_a_strided_convolution_of_one_channel_runs_with_stride_one():
    layer = {"kernel": jnp.ones((8, 8, 1, 4)), "bias": jnp.zeros(4)}
    trace = str(
        jax.make_jaxpr(lambda x: layers.conv(layer, x, stride=(2, 2), padding=(3, 3)))(
            jnp.ones((28, 28, 1))
        )
    )
    assert "window_strides=(1, 1)" in trace


POOLS = [
    ((13, 13, 4), (2, 2), (1, 1)),
    ((11, 10, 1), (3, 2), (2, 1)),
    ((7, 9, 2), (2, 3), (3, 3)),
]


@pytest.mark.parametrize(("shape", "window", "stride"), POOLS)
def test_max_pool_equals_reduce_window_in_value_and_gradient(shape, window, stride):
    x = jnp.array(np.random.default_rng(1).permutation(np.prod(shape)).reshape(shape), jnp.float32)

    def theirs(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (*window, 1), (*stride, 1), "VALID")

    def ours(x):
        return layers.max_pool(x, window=window, stride=stride)

    out, grads = value_and_gradient(ours, x)
    expected, expected_grads = value_and_gradient(theirs, x)
    np.testing.assert_array_equal(out, expected)
    jax.tree.map(close, grads, expected_grads)


@pytest.mark.parametrize(("shape", "window", "stride"), POOLS)
def test_average_pool_equals_the_mean_of_each_window(shape, window, stride):
    x = normal(*shape)
    total = lax.reduce_window(x, 0.0, lax.add, (*window, 1), (*stride, 1), "VALID")
    close(layers.average_pool(x, window=window, stride=stride), total / np.prod(window))


def test_max_pool_shares_the_gradient_of_a_tie_without_losing_any():
    grad = jax.grad(lambda x: layers.max_pool(x, window=(2, 2), stride=(2, 2)).sum())
    assert grad(jnp.zeros((2, 2, 1))).sum() == 1.0


def test_pools_and_convolutions_never_trace_a_window_reduction():
    def both(x):
        x = layers.max_pool(x, window=(2, 2), stride=(1, 1))
        return layers.average_pool(x, window=(2, 2), stride=(2, 2)).sum()

    assert "reduce_window" not in str(jax.make_jaxpr(jax.grad(both))(jnp.ones((6, 6, 1))))


@pytest.mark.parametrize(
    ("before", "variance"),
    [
        (Activation.RELU, 2 / (9 * 16)),
        (Activation.TANH, 2 / (9 * 16 + 9 * 64)),
        (Activation.IDENTITY, 1 / (9 * 16)),
    ],
)
def test_initial_kernels_have_the_variance_that_suits_the_activation(before, variance):
    layer = layers.init_layer(jax.random.key(0), (3, 3, 16, 64), before=before)
    sample = np.asarray(layer["kernel"])
    assert sample.var() == pytest.approx(variance, rel=5 * np.sqrt(2 / sample.size))
    assert layer["bias"].shape == (64,)
    assert not layer["bias"].any()


def test_dropout_keeps_the_expectation():
    rate, num_draws = 0.3, 20_000
    keys = jax.random.split(jax.random.key(3), num_draws)
    draws = jax.vmap(lambda key: layers.dropout(key, jnp.ones(4), rate=rate, place=0))(keys)
    assert set(np.unique(draws)) == {np.float32(0.0), np.float32(1 / (1 - rate))}
    std_of_mean = np.sqrt(rate / (1 - rate) / num_draws)
    np.testing.assert_allclose(draws.mean(0), 1.0, atol=5 * std_of_mean)


def test_dropout_draws_independent_masks_at_different_places():
    ones, key = jnp.ones(10_000), jax.random.key(4)
    first, second = (layers.dropout(key, ones, rate=0.5, place=place) for place in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(ones.size)


def test_dropout_of_zero_leaves_the_key_untouched():
    trace = jax.make_jaxpr(lambda key, x: layers.dropout(key, x, rate=0.0, place=0))
    assert trace(jax.random.key(0), jnp.ones(3)).eqns == []


def test_mean_embedding_ignores_padding():
    table = normal(7, 3)
    close(
        layers.mean_embedding(table, jnp.array([2, -1, 5, 5, -3])),
        table[jnp.array([2, 5, 5])].mean(0),
    )


def test_mean_embedding_of_nothing_but_padding_is_zero_with_zero_gradient():
    table, tokens = jnp.ones((7, 3)), jnp.array([-1, -1])
    assert not layers.mean_embedding(table, tokens).any()
    assert not jax.grad(lambda t: layers.mean_embedding(t, tokens).sum())(table).any()


def test_a_token_beyond_the_table_gives_nan_and_not_another_row():
    assert jnp.isnan(layers.mean_embedding(jnp.ones((7, 3)), jnp.array([0, 7]))).all()
