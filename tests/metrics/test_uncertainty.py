"""Uncertainty: the parts add up, mean what they say, and stream in bounded memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.special import rel_entr
from scipy.stats import entropy

from tacit.errors import InvalidArgumentError
from tacit.metrics import classification_uncertainty, regression_uncertainty
from tacit.metrics.uncertainty import (
    classification_moments,
    decompose_classification,
    decompose_regression,
    merge_moments,
    regression_moments,
)


@st.composite
def class_draws(draw):
    shape = tuple(draw(st.integers(1, high)) for high in (6, 4))
    num_classes = draw(st.integers(2, 5))
    # Small whole numbers make probabilities of exactly zero and one common.
    weights = draw(arrays(float, (*shape, num_classes), elements=st.integers(0, 3)))
    weights[..., 0] += weights.sum(axis=-1) == 0
    return weights / weights.sum(axis=-1, keepdims=True)


def dirichlet_draws(num_draws=30, num_inputs=5, num_classes=4, concentration=0.5):
    rng = np.random.default_rng(0)
    return rng.dirichlet(np.full(num_classes, concentration), size=(num_draws, num_inputs))


@given(class_draws())
@settings(deadline=None, max_examples=80)
def test_classification_parts_are_non_negative_bounded_and_add_up(draws):
    parts = classification_uncertainty(draws)
    for part in parts:
        assert np.isfinite(part).all()
        assert (part >= 0).all()
    assert (parts.total_entropy <= np.log(draws.shape[-1]) + 1e-12).all()
    np.testing.assert_allclose(
        parts.aleatoric_entropy + parts.mutual_information, parts.total_entropy, atol=1e-12
    )
    np.testing.assert_allclose(
        parts.aleatoric_variance + parts.epistemic_variance, parts.total_variance, atol=1e-12
    )


@given(class_draws())
@settings(deadline=None, max_examples=80)
def test_classification_parts_equal_their_definitions(draws):
    parts = classification_uncertainty(draws)
    mean = draws.mean(axis=0)
    divergence = rel_entr(draws, np.broadcast_to(mean, draws.shape)).sum(axis=-1)
    expected = {
        "probabilities": mean,
        "total_entropy": entropy(mean, axis=-1),
        "aleatoric_entropy": entropy(draws, axis=-1).mean(axis=0),
        "mutual_information": divergence.mean(axis=0),
        "total_variance": mean * (1 - mean),
        "aleatoric_variance": (draws * (1 - draws)).mean(axis=0),
        "epistemic_variance": ((draws - mean) ** 2).mean(axis=0),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(getattr(parts, name), value, atol=1e-12, err_msg=name)


def test_identical_draws_have_no_epistemic_part():
    draws = np.repeat(dirichlet_draws(num_draws=1), 7, axis=0)
    parts = classification_uncertainty(draws)
    np.testing.assert_allclose(parts.mutual_information, 0, atol=1e-14)
    np.testing.assert_allclose(parts.epistemic_variance, 0, atol=1e-14)


def test_rounding_never_makes_a_part_negative():
    draws = np.repeat(dirichlet_draws(num_draws=1, num_inputs=1000), 7, axis=0)
    parts = decompose_classification(classification_moments(jnp.asarray(draws)))
    for part in parts:
        assert (part >= 0).all()
    np.testing.assert_allclose(parts.mutual_information, 0, atol=1e-6)


def test_certain_draws_that_disagree_have_only_an_epistemic_part():
    parts = classification_uncertainty(np.eye(4)[:, None, :])
    assert parts.aleatoric_entropy == 0
    assert parts.mutual_information == pytest.approx(np.log(4))
    assert (parts.aleatoric_variance == 0).all()


def test_regression_parts_are_those_of_simulated_targets():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(20, 3)), rng.gamma(2.0, size=(20, 3))
    chosen = rng.integers(20, size=200_000)
    targets = rng.normal(mean[chosen], np.sqrt(variance[chosen]))
    parts = regression_uncertainty(mean, variance)
    # Standard errors: sqrt(v / n) of a mean, sqrt((kurtosis - 1) / n) v of a variance, and the
    # kurtosis of these mixtures is below 6.
    deviation = np.sqrt(parts.total_variance / 200_000)
    assert (np.abs(targets.mean(axis=0) - parts.mean) < 4 * deviation).all()
    spread = np.sqrt(5 / 200_000) * parts.total_variance
    assert (np.abs(targets.var(axis=0) - parts.total_variance) < 4 * spread).all()
    np.testing.assert_allclose(parts.aleatoric_variance, variance.mean(axis=0))
    np.testing.assert_allclose(parts.epistemic_variance, mean.var(axis=0))
    np.testing.assert_allclose(
        parts.total_variance, parts.aleatoric_variance + parts.epistemic_variance
    )


def test_class_variances_are_those_of_simulated_labels():
    draws = dirichlet_draws(num_draws=10, num_inputs=1, num_classes=3)
    rng = np.random.default_rng(1)
    chosen = draws[rng.integers(10, size=100_000), 0]
    labels = (chosen.cumsum(axis=1) < rng.random((100_000, 1))).sum(axis=1)
    indicators = np.eye(3)[labels]
    parts = classification_uncertainty(draws)
    # A Bernoulli variance is at most 1/4, so its estimate has standard error below .25 / sqrt(n).
    np.testing.assert_allclose(
        indicators.var(axis=0), parts.total_variance[0], atol=4 * 0.25 / np.sqrt(100_000)
    )


@pytest.mark.parametrize("sizes", [(30,), (1, 29), (10, 10, 10), (7, 3, 20)])
def test_chunks_of_any_size_give_the_decomposition_of_all_draws(sizes):
    draws = dirichlet_draws()
    chunks = np.split(draws, np.cumsum(sizes)[:-1])
    moments = classification_moments(chunks[0])
    for chunk in chunks[1:]:
        moments = merge_moments(moments, classification_moments(chunk))
    streamed, whole = decompose_classification(moments), classification_uncertainty(draws)
    for name, value in whole._asdict().items():
        np.testing.assert_allclose(getattr(streamed, name), value, atol=1e-13, err_msg=name)


def test_a_jitted_scan_from_zeros_gives_the_classification_parts_in_float32():
    draws = dirichlet_draws()

    @jax.jit
    def stream(chunks):
        start = jax.tree.map(jnp.zeros_like, classification_moments(chunks[0]))

        def step(seen, chunk):
            return merge_moments(seen, classification_moments(chunk)), None

        return decompose_classification(jax.lax.scan(step, start, chunks)[0])

    streamed = stream(jnp.asarray(draws.reshape(6, 5, 5, 4), dtype=jnp.float32))
    whole = classification_uncertainty(draws)
    for name, value in whole._asdict().items():
        part = getattr(streamed, name)
        assert part.dtype == jnp.float32
        np.testing.assert_allclose(part, value, atol=2e-6, err_msg=name)


def test_a_jitted_scan_gives_the_regression_parts_far_from_zero():
    # A sum of squares would lose this variance in float32: 1e4**2 has a spacing of 8.
    rng = np.random.default_rng(0)
    mean = 1e4 + rng.normal(size=(40, 3))
    variance = rng.gamma(2.0, size=(40, 3))

    @jax.jit
    def stream(means, variances):
        start = jax.tree.map(jnp.zeros_like, regression_moments(means[0], variances[0]))

        def step(seen, chunk):
            return merge_moments(seen, regression_moments(*chunk)), None

        return decompose_regression(jax.lax.scan(step, start, (means, variances))[0])

    single = mean.astype(np.float32)
    streamed = stream(
        jnp.asarray(single).reshape(8, 5, 3), jnp.asarray(variance, jnp.float32).reshape(8, 5, 3)
    )
    whole = regression_uncertainty(single, variance)
    for name, value in whole._asdict().items():
        np.testing.assert_allclose(getattr(streamed, name), value, rtol=2e-3, err_msg=name)


def test_merging_nothing_with_nothing_is_nothing():
    nothing = jax.tree.map(np.zeros_like, classification_moments(dirichlet_draws()))
    for leaf in merge_moments(nothing, nothing):
        assert (leaf == 0).all()


def test_half_precision_draws_are_accumulated_in_float32():
    moments = classification_moments(jnp.full((300, 1, 2), 0.5, dtype=jnp.bfloat16))
    assert {leaf.dtype for leaf in moments} == {jnp.dtype("float32")}
    assert moments.num_draws == 300


def test_streaming_is_exact_and_differentiable_at_probabilities_zero_and_one():
    certain = jnp.array([[[1.0, 0.0]], [[1.0, 0.0]]])
    parts = decompose_classification(classification_moments(certain))
    assert all((part == 0).all() for part in parts[1:])
    gradient = jax.grad(lambda p: classification_moments(p).noise.sum())(certain)
    assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize(
    ("probabilities", "message"),
    [
        ([[0.5, 0.5]], r"\(num_draws, num_inputs, num_classes\)"),
        ([[[0.5, 0.6]]], "sum to 1"),
        ([[[np.nan, 0.5]]], "finite"),
        (np.zeros((0, 3, 2)), "empty"),
    ],
)
def test_unusable_class_draws_are_refused_with_a_reason(probabilities, message):
    with pytest.raises(InvalidArgumentError, match=message):
        classification_uncertainty(probabilities)


@pytest.mark.parametrize(
    ("mean", "variance", "message"),
    [
        ([1.0], [1.0], "num_draws, num_inputs"),
        ([[1.0]], [[1.0, 2.0]], r"got \(1, 1\) and \(1, 2\)"),
        ([[1.0]], [[-0.1]], "negative"),
        ([[np.inf]], [[1.0]], "mean must be finite"),
    ],
)
def test_unusable_regression_draws_are_refused_with_a_reason(mean, variance, message):
    with pytest.raises(InvalidArgumentError, match=message):
        regression_uncertainty(mean, variance)
