"""Guides: the Gaussians they say they are, with entropies and divergences in closed form."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from tacit.errors import InvalidArgumentError
from tacit.inference import LowRank, MeanField
from tacit.inference.guides import diagonal_entropy, expected_log_prior, low_rank_entropy
from tacit.models import (
    MLP,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    LaplacePrior,
    LearntGaussian,
    bayesian,
)
from tacit.models.priors import PerLeafPrior
from tacit.rng import seeded_key

PARAMS = {"a": jnp.array([[0.3, -1.0], [2.0, 0.1]]), "b": jnp.array([0.7])}
GUIDES = [MeanField(init_std=0.4), LowRank(rank=2, init_std=0.4)]
guides = pytest.mark.parametrize("guide", GUIDES, ids=lambda g: type(g).__name__)


def some(guide):
    """Guide parameters that are nowhere special."""
    params = jax.jit(guide.init)(seeded_key(1), PARAMS)
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda w: w + 0.3 * generator.normal(size=w.shape).astype("f"), params)


def flat(tree):
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def covariance(guide, params):
    kept = guide.retained(params)
    factors = kept.get("factors")
    total = np.diag(flat(kept["std"]) ** 2)
    if factors is not None:
        rows = [flat(jax.tree.map(lambda leaf, k=k: leaf[k], factors)) for k in range(guide.rank)]
        total += np.stack(rows).T @ np.stack(rows)
    return total


@guides
def test_draws_have_the_mean_and_covariance_that_the_guide_retains(guide):
    params, num_draws = some(guide), 20_000

    def one(key):
        draw = guide.draw(params, guide.noise(key, params))
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(draw)])

    draws = np.asarray(
        jax.jit(jax.vmap(one))(jax.random.split(seeded_key(0), num_draws)), np.float64
    )
    wanted, variances = covariance(guide, params), np.diag(covariance(guide, params))
    error = np.sqrt((np.outer(variances, variances) + wanted**2) / num_draws)
    assert np.all(np.abs(np.cov(draws.T) - wanted) < 5 * error)
    off = np.abs(draws.mean(axis=0) - flat(params["mean"]))
    assert np.all(off < 5 * np.sqrt(variances / num_draws))


@guides
def test_marginals_are_the_diagonal_of_the_covariance(guide):
    params = some(guide)
    mean, std = guide.marginals(params)
    np.testing.assert_allclose(flat(std) ** 2, np.diag(covariance(guide, params)), rtol=1e-5)
    np.testing.assert_array_equal(flat(mean), flat(params["mean"]))


@guides
def test_the_entropy_is_that_of_the_multivariate_normal(guide):
    params = some(guide)
    wanted = scipy.stats.multivariate_normal(cov=covariance(guide, params)).entropy()
    assert float(guide.entropy(params)) == pytest.approx(wanted, rel=1e-5)


@guides
def test_a_guide_starts_at_the_model_with_the_stated_spread(guide):
    params = {"w": jnp.linspace(-1, 1, 4000)}
    mean, std = guide.marginals(jax.jit(guide.init)(seeded_key(0), params))
    np.testing.assert_array_equal(mean["w"], params["w"])
    # Under LowRank half of the variance is a chi-squared with as many degrees as the rank.
    assert float(jnp.mean(std["w"] ** 2)) == pytest.approx(0.16, rel=5 * 0.5 / math.sqrt(4000))


def test_a_tiny_initial_spread_is_kept_exactly():
    params = MeanField(init_std=1e-6).init(seeded_key(0), {"w": jnp.zeros(1)})
    std = MeanField().marginals(params).std["w"]
    np.testing.assert_allclose(std, 1e-6, rtol=1e-4)


@guides
def test_half_precision_models_keep_their_precision(guide):
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS)
    params = jax.jit(guide.init)(seeded_key(0), half)
    draw = guide.draw(params, jax.jit(guide.noise)(seeded_key(1), params))
    assert {leaf.dtype for leaf in jax.tree.leaves((draw, guide.retained(params)))} == {
        jnp.dtype(jnp.bfloat16)
    }


@pytest.mark.parametrize("mean", [-0.7, 0.0, 0.02])
@pytest.mark.parametrize("std", [0.01, 0.3])
@pytest.mark.parametrize(
    ("prior", "density"),
    [
        (GaussianPrior(std=0.1), scipy.stats.norm(0, 0.1)),
        (LaplacePrior(scale=0.1), scipy.stats.laplace(0, 0.1)),
    ],
    ids=["Gaussian", "Laplace"],
)
def test_divergences_equal_their_integrals(prior, density, mean, std):
    own = scipy.stats.norm(mean, std)
    wanted, _ = scipy.integrate.quad(
        lambda w: own.pdf(w) * (own.logpdf(w) - density.logpdf(w)),
        mean - 12 * std,
        mean + 12 * std,
        points=[0.0] if abs(mean) < 12 * std else None,
        limit=200,
    )
    spread = jnp.array([std])
    found = -diagonal_entropy(spread) - prior.expected_log_prob(jnp.array([mean]), spread)
    assert float(found) == pytest.approx(wanted, rel=2e-5)


def test_a_likelihoods_own_parameters_are_in_the_divergence():
    model = bayesian(
        MLP(num_inputs=1, num_outputs=1),
        prior=PerLeafPrior(
            default=LaplacePrior(scale=0.5), overrides=(("bias", GaussianPrior(std=2.0)),)
        ),
        likelihood=LearntGaussian(initial_std=0.5, prior_std=0.7),
    )
    mean = model.init(seeded_key(0))
    std = jax.tree.map(lambda leaf: jnp.full_like(leaf, 0.6), mean)
    num_draws = 40_000
    keys = jax.random.split(seeded_key(1), num_draws)
    guide = MeanField(init_std=0.6)
    params = guide.init(seeded_key(2), mean)
    prior_of = jax.jit(
        jax.vmap(lambda key: model.log_prior(guide.draw(params, guide.noise(key, params))))
    )
    values = np.asarray(prior_of(keys))
    found = float(model.log_prior.expected(mean, std))
    assert abs(found - values.mean()) < 5 * values.std() / math.sqrt(num_draws)
    # The last leaf counts: without it the expectation would be off by far more than that.
    assert (
        abs(float(model.log_prior.expected(mean, std | {"log_std": jnp.zeros(())})) - found) > 0.1
    )


def test_a_prior_without_closed_form_is_averaged_over_the_draws():
    draws = [jnp.array([1.0]), jnp.array([3.0])]
    found = expected_log_prior(lambda w: -jnp.sum(w**2), draws[0], draws[0], lambda: draws)
    assert float(found) == -5.0


def test_a_replaced_prior_does_not_keep_the_expectation_of_the_old_one():
    model = bayesian(
        MLP(num_inputs=1, num_outputs=1),
        prior=FlatPrior(),
        likelihood=FixedGaussian(std=1.0),
    )._replace(log_prior=lambda params: jnp.full((), 7.0))
    mean = model.init(seeded_key(0))
    found = expected_log_prior(model.log_prior, mean, mean, lambda: [mean])
    assert float(found) == 7.0


def test_the_low_rank_entropy_has_the_gradient_of_the_dense_one():
    std, factors = jnp.array([0.3, 1.0, 0.5]), jnp.array([[0.2, -0.4, 1.0], [0.7, 0.1, 0.3]])

    def dense(std, factors):
        cov = jnp.diag(std**2) + factors.T @ factors
        return 0.5 * jnp.linalg.slogdet(2 * math.pi * math.e * cov)[1]

    wanted = jax.grad(dense, argnums=(0, 1))(std, factors)
    found = jax.grad(lambda s, f: low_rank_entropy(s, list(f)), argnums=(0, 1))(std, factors)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: MeanField(init_std=0.0), "init_std"),
        (lambda: LowRank(rank=0), "rank"),
        (lambda: LowRank(rank=1, init_std=-1.0), "init_std"),
    ],
)
def test_settings_that_make_no_gaussian_are_refused(make, name):
    with pytest.raises(InvalidArgumentError, match=name):
        make()
