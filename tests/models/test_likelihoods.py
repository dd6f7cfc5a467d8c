"""Likelihoods are the densities that they are named after, and stay finite far out."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.errors import InvalidArgumentError
from tacit.models import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    NegativeBinomial,
    PoissonCounts,
)

reals = st.floats(-8, 8, width=32)


def softplus(value):
    return np.logaddexp(0, value)


LIKELIHOODS = [
    Categorical(num_classes=4),
    Bernoulli(),
    FixedGaussian(std=0.7),
    LearntGaussian(initial_std=0.5),
    HeteroscedasticGaussian(),
    PoissonCounts(),
    NegativeBinomial(dispersion=0.4),
]
every_likelihood = pytest.mark.parametrize(
    "likelihood", LIKELIHOODS, ids=lambda c: type(c).__name__
)


def log_prob(likelihood, outputs, y):
    return float(likelihood.log_prob(likelihood.init(), jnp.array(outputs, jnp.float32), y))


def agrees(actual, expected):
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=30, deadline=None)
@given(outputs=st.lists(reals, min_size=3, max_size=3), y=st.integers(0, 2))
def test_categorical_is_the_multinomial_of_one_trial(outputs, y):
    probabilities = np.exp(outputs - np.max(outputs)) / np.exp(outputs - np.max(outputs)).sum()
    expected = np.log(probabilities[y])
    agrees(log_prob(Categorical(num_classes=3), outputs, y), expected)


@settings(max_examples=30, deadline=None)
@given(logit=reals, y=st.integers(0, 1))
def test_bernoulli_agrees_with_scipy(logit, y):
    expected = scipy.stats.bernoulli(1 / (1 + np.exp(-logit))).logpmf(y)
    agrees(log_prob(Bernoulli(), [logit], y), expected)


@settings(max_examples=30, deadline=None)
@given(mean=reals, y=reals)
def test_fixed_gaussian_agrees_with_scipy(mean, y):
    agrees(log_prob(FixedGaussian(std=0.7), [mean], y), scipy.stats.norm(mean, 0.7).logpdf(y))


@settings(max_examples=30, deadline=None)
@given(mean=reals, y=reals, log_std=st.floats(-1, 1, width=32))
def test_learnt_gaussian_agrees_with_scipy(mean, y, log_std):
    params = {"log_std": jnp.float32(log_std), "network": None}
    actual = LearntGaussian().log_prob(params, jnp.array([mean], jnp.float32), y)
    agrees(actual, scipy.stats.norm(mean, np.exp(log_std)).logpdf(y))


@settings(max_examples=30, deadline=None)
@given(mean=reals, raw=st.floats(-2, 8, width=32), y=reals)
def test_heteroscedastic_gaussian_agrees_with_scipy(mean, raw, y):
    expected = scipy.stats.norm(mean, np.sqrt(softplus(raw) + 1e-3)).logpdf(y)
    agrees(log_prob(HeteroscedasticGaussian(), [mean, raw], y), expected)


@settings(max_examples=30, deadline=None)
@given(log_rate=st.floats(-5, 5, width=32), y=st.integers(0, 60))
def test_poisson_counts_agree_with_scipy(log_rate, y):
    agrees(
        log_prob(PoissonCounts(), [log_rate], y), scipy.stats.poisson(np.exp(log_rate)).logpmf(y)
    )


@settings(max_examples=30, deadline=None)
@given(
    log_mean=st.floats(-5, 5, width=32),
    dispersion=st.floats(0.05, 3.0),
    y=st.integers(0, 60),
)
def test_negative_binomial_agrees_with_scipy(log_mean, dispersion, y):
    successes = 1 / (1 + dispersion * np.exp(log_mean))
    expected = scipy.stats.nbinom(1 / dispersion, successes).logpmf(y)
    agrees(log_prob(NegativeBinomial(dispersion=dispersion), [log_mean], y), expected)


@every_likelihood
@pytest.mark.parametrize("y", [np.int64(1), np.uint8(1), np.float32(1.0), True, np.array([1.0])])
def test_the_type_of_a_label_does_not_matter(likelihood, y):
    outputs = np.linspace(-0.5, 0.8, likelihood.num_outputs)
    assert log_prob(likelihood, outputs, y) == log_prob(likelihood, outputs, 1)


@every_likelihood
def test_a_likelihood_returns_strong_float32_values(likelihood):
    params, outputs = likelihood.init(), jnp.ones(likelihood.num_outputs)
    values = [
        likelihood.log_prob(params, outputs, jnp.array(1)),
        *jax.tree.leaves(likelihood.predict(params, outputs)),
        *jax.tree.leaves(params),
    ]
    for value in values:
        assert value.dtype == jnp.float32
        assert not value.weak_type


@every_likelihood
def test_a_missing_target_has_a_likelihood_of_nan(likelihood):
    assert np.isnan(log_prob(likelihood, np.zeros(likelihood.num_outputs), np.nan))


@pytest.mark.parametrize(
    ("likelihood", "y"),
    [
        (Categorical(num_classes=4), 4),
        (Categorical(num_classes=4), -1),
        (Categorical(num_classes=4), 1.5),
        (Bernoulli(), 2),
        (Bernoulli(), 0.5),
        (PoissonCounts(), -1),
        (PoissonCounts(), 2.5),
        (NegativeBinomial(dispersion=1.0), -1),
        (NegativeBinomial(dispersion=1.0), 2.5),
    ],
)
def test_an_impossible_target_has_a_likelihood_of_nan_and_a_gradient_of_zero(likelihood, y):
    outputs = jnp.linspace(-1.0, 1.0, likelihood.num_outputs)
    value, grad = jax.value_and_grad(lambda out: likelihood.log_prob({}, out, y))(outputs)
    assert jnp.isnan(value)
    assert not grad.any()


@pytest.mark.parametrize(
    ("likelihood", "outputs", "y", "expected"),
    [
        (Categorical(num_classes=2), [1e4, -1e4], 1, -2e4),
        (Bernoulli(), [1e4], 0, -1e4),
        (Bernoulli(), [-1e4], 1, -1e4),
        (Bernoulli(), [1e4], 1, 0.0),
        (HeteroscedasticGaussian(), [0.0, -1e4], 0.0, -0.5 * np.log(2 * np.pi * 1e-3)),
        (PoissonCounts(), [-1e4], 1, -1e4),
        (NegativeBinomial(dispersion=1.0), [-1e4], 1, -1e4),
        (NegativeBinomial(dispersion=1.0), [1e4], 1, -1e4),
    ],
)
def test_extreme_outputs_keep_value_and_gradient_finite(likelihood, outputs, y, expected):
    value, grad = jax.value_and_grad(lambda out: likelihood.log_prob({}, out, y))(
        jnp.array(outputs, jnp.float32)
    )
    np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-6)
    assert jnp.isfinite(grad).all()


def test_probabilities_are_those_of_the_log_likelihood():
    outputs = jnp.array([0.3, -1.0, 2.0, 0.0])
    likelihood = Categorical(num_classes=4)
    each = [np.exp(log_prob(likelihood, outputs, y)) for y in range(4)]
    np.testing.assert_allclose(likelihood.predict({}, outputs), each, rtol=1e-5)
    each = [np.exp(log_prob(Bernoulli(), outputs[2:3], y)) for y in range(2)]
    np.testing.assert_allclose(Bernoulli().predict({}, outputs[2:3]), each, rtol=1e-5)


@pytest.mark.parametrize("likelihood", [c for c in LIKELIHOODS if "Gaussian" in type(c).__name__])
def test_the_moments_of_a_gaussian_are_those_of_its_density(likelihood):
    params, outputs = likelihood.init(), jnp.linspace(0.4, 1.1, likelihood.num_outputs)
    grid = jnp.linspace(-12.0, 12.0, 20_001)
    density = jnp.exp(jax.vmap(lambda y: likelihood.log_prob(params, outputs, y))(grid))
    weights = np.asarray(density, np.float64) * (24.0 / 20_000)
    mean = weights @ np.asarray(grid)
    variance = weights @ np.square(np.asarray(grid) - mean)
    moments = likelihood.predict(params, outputs)
    assert weights.sum() == pytest.approx(1.0, abs=1e-4)
    assert float(moments.mean) == pytest.approx(mean, abs=1e-3)
    assert float(moments.variance) == pytest.approx(variance, abs=1e-3)


def test_the_rate_of_counts_is_both_mean_and_variance():
    moments = PoissonCounts().predict({}, jnp.array([1.2]))
    assert float(moments.mean) == float(moments.variance) == pytest.approx(np.exp(1.2))


def test_negative_binomial_counts_vary_by_their_dispersion_more_than_poisson_counts():
    moments = NegativeBinomial(dispersion=0.3).predict({}, jnp.array([1.2]))
    mean, variance = scipy.stats.nbinom(1 / 0.3, 1 / (1 + 0.3 * np.exp(1.2))).stats()
    assert float(moments.mean) == pytest.approx(mean)
    assert float(moments.variance) == pytest.approx(variance)


def test_learnt_noise_has_a_normal_prior_on_its_logarithm():
    likelihood = LearntGaussian(initial_std=2.0, prior_std=0.5)
    expected = scipy.stats.norm(np.log(2.0), 0.5).logpdf(0.1)
    agrees(likelihood.log_prior({"log_std": jnp.float32(0.1)}), expected)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Categorical(num_classes=0), "num_classes must be"),
        (lambda: FixedGaussian(std=0.0), "std must be"),
        (lambda: LearntGaussian(initial_std=-1.0), "initial_std must be"),
        (lambda: LearntGaussian(prior_std=0.0), "prior_std must be"),
        (lambda: HeteroscedasticGaussian(min_variance=0.0), "min_variance must be"),
        (lambda: NegativeBinomial(dispersion=0.0), "dispersion must be"),
    ],
)
def test_a_wrong_likelihood_is_refused_by_name(build, message):
    with pytest.raises(InvalidArgumentError, match=message):
        build()


def test_a_target_of_several_numbers_is_refused():
    with pytest.raises(InvalidArgumentError, match="one number"):
        log_prob(FixedGaussian(std=1.0), [0.0], np.ones(2))
