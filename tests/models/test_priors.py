"""Priors are the densities that they are named after."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tacit.errors import InvalidArgumentError
from tacit.models import FlatPrior, GaussianPrior, LaplacePrior
from tacit.models.priors import PerLeafPrior

PARAMS = {
    "dense_0": {"kernel": jnp.array([[0.3, -1.2], [0.05, 2.0]]), "bias": jnp.array([0.1, -0.4])},
    "dense_1": {"kernel": jnp.array([[0.7]]), "bias": jnp.array([1.5])},
}
FLAT = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(PARAMS)])
PRIORS = [
    (GaussianPrior(std=0.1), scipy.stats.norm(0, 0.1).logpdf, lambda w: -w / 0.01),
    (GaussianPrior(std=3.0), scipy.stats.norm(0, 3.0).logpdf, lambda w: -w / 9.0),
    (LaplacePrior(scale=0.1), scipy.stats.laplace(0, 0.1).logpdf, lambda w: -np.sign(w) / 0.1),
    (FlatPrior(), np.zeros_like, np.zeros_like),
]


@pytest.mark.parametrize(("prior", "log_density", "score"), PRIORS)
def test_a_prior_is_the_normalised_density_summed_over_all_parameters(prior, log_density, score):
    del score
    np.testing.assert_allclose(prior.log_prob(PARAMS), log_density(FLAT).sum(), rtol=1e-6)


@pytest.mark.parametrize(("prior", "log_density", "score"), PRIORS)
def test_the_gradient_of_a_prior_is_its_score(prior, log_density, score):
    del log_density
    grads = jax.grad(prior.log_prob)(PARAMS)
    jax.tree.map(lambda g, w: np.testing.assert_allclose(g, score(w), rtol=1e-5), grads, PARAMS)


@pytest.mark.parametrize("prior", [prior for prior, _, _ in PRIORS])
def test_the_gradient_of_a_prior_at_zero_is_zero(prior):
    assert not jax.grad(prior.log_prob)(jnp.zeros(3)).any()


@pytest.mark.parametrize("prior", [prior for prior, _, _ in PRIORS])
def test_a_prior_returns_a_strong_float32_scalar_for_half_precision_parameters(prior):
    value = prior.log_prob(jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), PARAMS))
    assert value.shape == ()
    assert value.dtype == jnp.float32
    assert not value.weak_type


@pytest.mark.parametrize("name", ["dense_0/bias", "dense_1", "bias", "kernel"])
def test_an_override_applies_to_the_named_leaves_and_the_default_to_the_rest(name):
    narrow, wide = GaussianPrior(std=0.1), LaplacePrior(scale=5.0)
    prior = PerLeafPrior(default=narrow, overrides=((name, wide),))
    expected = 0.0
    for layer, leaves in PARAMS.items():
        for kind, leaf in leaves.items():
            named = name in {layer, kind, f"{layer}/{kind}"}
            expected += (wide if named else narrow).log_prob(leaf)
    np.testing.assert_allclose(prior.log_prob(PARAMS), expected, rtol=1e-6)


def test_the_first_override_that_fits_counts():
    overrides = (("dense_0/bias", FlatPrior()), ("bias", LaplacePrior(scale=0.5)))
    prior = PerLeafPrior(default=FlatPrior(), overrides=overrides)
    assert prior.log_prob(PARAMS) == LaplacePrior(scale=0.5).log_prob(PARAMS["dense_1"]["bias"])


def test_a_part_of_a_name_does_not_name_a_leaf():
    prior = PerLeafPrior(default=FlatPrior(), overrides=(("dense", FlatPrior()),))
    with pytest.raises(InvalidArgumentError, match="'dense' names no parameter"):
        prior.log_prob(PARAMS)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: GaussianPrior(std=0.0), "std must be"),
        (lambda: LaplacePrior(scale=-1.0), "scale must be"),
        (lambda: PerLeafPrior(default=FlatPrior(), overrides={}), "overrides must be a tuple"),
        (lambda: PerLeafPrior(default=0.1, overrides=()), "'default' must be"),
        (lambda: PerLeafPrior(default=FlatPrior(), overrides=(("b", 1),)), "'b' must be"),
    ],
)
def test_a_wrong_prior_is_refused_by_name(build, message):
    with pytest.raises(InvalidArgumentError, match=message):
        build()


SPREADS = jax.tree.map(lambda leaf: 0.05 + jnp.abs(leaf[..., ::-1]), PARAMS)
INTEGRABLE = [
    *(prior for prior, _, _ in PRIORS),
    PerLeafPrior(
        default=LaplacePrior(scale=0.5),
        overrides=(("dense_0/bias", FlatPrior()), ("kernel", GaussianPrior(std=2.0))),
    ),
]


@pytest.mark.parametrize("prior", INTEGRABLE, ids=repr)
def test_an_expected_log_density_is_the_integral_of_the_log_density(prior):
    # Gauss-Hermite quadrature of |w| converges slowly at its kink; a fine grid does not mind.
    grid = np.linspace(-9, 9, 40_001)
    weights = scipy.stats.norm.pdf(grid) * (grid[1] - grid[0])

    def integrand(z):
        return prior.log_prob(jax.tree.map(lambda m, s: m + s * z, PARAMS, SPREADS))

    values = np.asarray(jax.lax.map(integrand, jnp.asarray(grid, jnp.float32)), np.float64)
    # All parameters move together here: only marginals matter.
    expected = (values * weights).sum()
    found = prior.expected_log_prob(PARAMS, SPREADS)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("std", [0.0, 1e-30, 1e-3, 1.0])
def test_the_expected_laplace_density_has_bounded_derivatives_for_every_spread(std):
    prior = LaplacePrior(scale=1.0)
    mean = jnp.array([-3.0, 0.0, 0.2])
    by_mean, by_std = jax.grad(prior.expected_log_prob, argnums=(0, 1))(mean, jnp.full(3, std))
    normal = scipy.stats.norm()
    if std >= 1e-3:
        np.testing.assert_allclose(by_mean, 1 - 2 * normal.cdf(mean / std), atol=1e-5)
        np.testing.assert_allclose(by_std, -2 * normal.pdf(mean / std), atol=1e-5)
    else:
        np.testing.assert_allclose(by_mean, -np.sign(mean))
        np.testing.assert_allclose(by_std, [0.0, -np.sqrt(2 / np.pi), 0.0], atol=1e-6)
