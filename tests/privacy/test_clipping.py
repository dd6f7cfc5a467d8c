"""Clipping bounds what one record can do, whatever the record."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidArgumentError
from tacit.privacy.clipping import Flat, Normalised, PerLayer
from tacit.privacy.clipping.bounds import clip_by_norm, clipped_sum, squared_norms
from tacit.privacy.clipping.gradient import clipped_gradient_sum
from tacit.rng import seeded_key

RULES = [Flat(), Normalised(), PerLayer(), PerLayer(shares={"a": 3.0})]
finite = st.floats(-(2.0**40), 2.0**40, width=32)


def contributions(tree, rule, clip_norm):
    factors = rule.factors(squared_norms(tree), clip_norm=clip_norm)
    return jax.tree.map(lambda x, c: jnp.where(c > 0, c * x, 0.0), tree, factors)


@pytest.mark.parametrize("rule", RULES)
@given(
    values=st.lists(finite, min_size=5, max_size=5),
    clip_norm=st.floats(1e-6, 1e6),
)
@settings(max_examples=60, deadline=None)
def test_no_contribution_exceeds_the_clip_norm(rule, values, clip_norm):
    tree = {"a": jnp.array(values[:2]), "b": jnp.array(values[2:])}
    clipped = jax.tree.map(
        lambda x: np.asarray(x, np.float64), contributions(tree, rule, clip_norm)
    )
    norm = np.sqrt(sum(np.sum(leaf**2) for leaf in clipped.values()))
    assert norm <= clip_norm


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("bad", [jnp.nan, jnp.inf, -jnp.inf, 1e25])
def test_a_non_finite_or_huge_record_contributes_nothing(rule, bad):
    tree = {"a": jnp.array([1.0, bad]), "b": jnp.array([0.5])}
    assert optax.tree.norm(contributions(tree, rule, 1.0)) == 0.0


def test_a_small_contribution_passes_unchanged():
    tree = {"a": jnp.array([0.3, 0.4]), "b": jnp.zeros(2)}
    same = contributions(tree, Flat(), 1.0)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, tree, same))


def test_an_infinite_clip_norm_clips_nothing():
    tree = {"a": jnp.array([3e10, 4.0]), "b": jnp.zeros(1)}
    same = clip_by_norm(tree, clip_norm=jnp.inf)
    assert jax.tree.all(jax.tree.map(jnp.array_equal, tree, same))


def test_per_layer_bounds_add_up_to_the_clip_norm_in_squares():
    tree = {"a": jnp.full(3, 1e3), "b": jnp.full(2, 1e3)}
    clipped = contributions(tree, PerLayer(shares={"a": 2.0}), 1.0)
    assert optax.tree.norm(clipped["a"]) == pytest.approx(2 / np.sqrt(5), rel=1e-5)
    assert optax.tree.norm(clipped["b"]) == pytest.approx(1 / np.sqrt(5), rel=1e-5)
    assert optax.tree.norm(clipped) == pytest.approx(1.0, rel=1e-5)


def test_per_layer_shares_must_name_layers_that_exist():
    with pytest.raises(InvalidArgumentError, match="the layers are"):
        PerLayer(shares={"c": 1.0}).factors({"a": jnp.ones(())}, clip_norm=1.0)


def test_a_layer_is_a_kernel_with_its_bias():
    tree = {"network": {"one": {"kernel": jnp.ones(4), "bias": jnp.ones(1)}, "two": jnp.ones(9)}}
    factors = PerLayer().factors(squared_norms(tree), clip_norm=1.0)["network"]
    assert factors["one"]["kernel"] == factors["one"]["bias"] != factors["two"]


def test_normalised_contributions_do_not_depend_on_the_scale_of_the_loss():
    g = {"a": jnp.array([30.0, 40.0]), "b": jnp.zeros(1)}
    small = contributions(g, Normalised(floor=1e-4), 1.0)
    large = contributions(jax.tree.map(lambda x: 1e4 * x, g), Normalised(floor=1e-4), 1.0)
    np.testing.assert_allclose(small["a"], large["a"], rtol=1e-4)


@pytest.mark.parametrize("shape", [(2_400_000,), (784, 1200), (50, 40, 30, 20)])
def test_norms_of_large_leaves_are_bounded_from_above_within_a_thousandth(shape):
    generator = np.random.default_rng(0)
    for values in (generator.normal(size=shape), np.exp(4 * generator.normal(size=shape))):
        leaf = values.astype(np.float32)
        exact = np.sum(leaf.astype(np.float64) ** 2)
        assert exact <= float(squared_norms(leaf)) <= exact * 1.001


@pytest.fixture
def table():
    generator = np.random.default_rng(1)
    return jnp.asarray(generator.normal(size=(10, 3)) * 3, jnp.float32)


def keys(count):
    return jax.random.split(seeded_key(0), count)


def naive(rows, mask, clip_norm):
    total = np.zeros(3)
    for row, keep in zip(np.asarray(rows, np.float64), mask, strict=True):
        if keep and np.isfinite(row).all():
            total += row * min(1, clip_norm / np.linalg.norm(row))
    return total


@pytest.mark.parametrize("chunk_size", [None, 1, 3, 10, 64])
def test_the_clipped_sum_equals_a_plain_loop_for_any_chunk_size(table, chunk_size):
    mask = jnp.arange(10) % 3 != 0
    total = clipped_sum(
        lambda r, k: r,
        table.at[4, 1].set(jnp.nan),
        keys(10),
        mask,
        clipping=Flat(),
        clip_norm=1.5,
        chunk_size=chunk_size,
    ).total
    np.testing.assert_allclose(
        total, naive(table.at[4, 1].set(jnp.nan), mask, 1.5), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("garbage", [0.0, 1e30, jnp.nan, jnp.inf])
def test_the_content_of_padding_rows_never_matters(table, garbage, chunk_size):
    mask = jnp.arange(10) < 6
    sums = [
        clipped_sum(
            lambda r, k: r,
            jnp.where(mask[:, None], table, fill),
            keys(10),
            mask,
            clipping=Flat(),
            clip_norm=1.0,
            chunk_size=chunk_size,
        ).total
        for fill in (garbage, 1.0)
    ]
    np.testing.assert_array_equal(sums[0], sums[1])


def test_an_empty_batch_sums_to_zero(table):
    total = clipped_sum(
        lambda r, k: r, table, keys(10), jnp.zeros(10, bool), clipping=Flat(), clip_norm=1.0
    ).total
    assert total.tolist() == [0.0, 0.0, 0.0]


def test_low_precision_contributions_are_clipped_and_summed_in_float32(table):
    half = table.astype(jnp.bfloat16)
    total = clipped_sum(
        lambda r, k: r, half, keys(10), jnp.ones(10, bool), clipping=Flat(), clip_norm=1.0
    ).total
    assert total.dtype == jnp.float32
    np.testing.assert_allclose(
        total, naive(half.astype(jnp.float32), np.ones(10, bool), 1.0), rtol=1e-4, atol=1e-5
    )


def test_without_a_clip_the_gradient_sum_is_the_plain_gradient(table):
    def loss(w, row, key):
        return jnp.sum(jnp.tanh(row @ w["m"]) ** 2) + w["b"] * row[0]

    w = {"m": jnp.arange(6.0).reshape(3, 2) / 5, "b": jnp.float32(0.3)}
    clipped = clipped_gradient_sum(
        loss, w, table, keys(10), jnp.ones(10, bool), clipping=Flat(), clip_norm=jnp.inf
    )
    plain = jax.grad(lambda w: sum(loss(w, row, None) for row in table))(w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), clipped, plain)


def test_tied_weights_are_clipped_by_the_norm_of_their_summed_gradient(table):
    def loss(w, row, key):
        return w @ row + 2 * (w @ row[::-1])

    total = clipped_gradient_sum(
        loss,
        jnp.ones(3),
        table,
        keys(10),
        jnp.ones(10, bool),
        clipping=Flat(),
        clip_norm=0.7,
    )
    rows = np.asarray(table)
    np.testing.assert_allclose(
        total, naive(rows + 2 * rows[:, ::-1], np.ones(10, bool), 0.7), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("value", [0.0, 1e-45, 1e-40, 1e-20, 1.08e-19, 1e-12, 1e-10, 1e-9])
def test_normalised_clipping_bounds_contributions_too_small_to_have_squares(value):
    # A million coordinates: their norm is a thousand times the value.
    tree = jnp.full(10**6, value, jnp.float32)
    rule = Normalised(floor=1e-10)
    factor = np.float64(rule.factors(squared_norms(tree), clip_norm=1.0))
    assert factor * 1e3 * value <= 1.0


@pytest.mark.parametrize("floor", [0.0, -1.0, 1e-25, 0.99e-10, float("nan")])
def test_a_floor_below_what_float32_resolves_is_refused(floor):
    with pytest.raises(InvalidArgumentError, match="floor must be"):
        Normalised(floor=floor)
