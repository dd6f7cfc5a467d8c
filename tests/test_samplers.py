"""Samplers draw from the Gaussian that their state describes, and are saved by name and fields."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.posterior import Posterior, load_posterior, predict
from tacit.rng import seeded_key
from tacit.samplers import (
    DiagonalGaussian,
    FullGaussian,
    LowRankGaussian,
    Points,
    ShrunkGaussian,
    sampler_from_spec,
    sampler_spec,
)

NUM_DRAWS = 40_000
SAMPLERS = [
    Points(),
    DiagonalGaussian(),
    LowRankGaussian(rank=2),
    ShrunkGaussian(rank=2),
    FullGaussian(),
]


def classifier():
    return bayesian(
        MLP(num_inputs=4, hidden=(3,), num_outputs=2),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=2),
    )


def posterior_of(sampler, num_chains=1, num_kept=1):
    model = classifier()
    generator = np.random.default_rng(0)
    kept = jax.tree.map(
        lambda leaf: jnp.asarray(
            generator.normal(size=(num_chains, num_kept, *leaf.shape)), leaf.dtype
        ),
        sampler.template(model),
    )
    return Posterior(model=model, sampler=sampler, kept=kept)


def moments(sampler, kept):
    draws = jax.jit(jax.vmap(sampler.draw, in_axes=(0, None)))(
        jax.random.split(seeded_key(0), NUM_DRAWS), kept
    )
    flat = np.concatenate([leaf.reshape(NUM_DRAWS, -1) for leaf in jax.tree.leaves(draws)], axis=1)
    return flat.mean(axis=0), np.cov(flat.T)


def test_diagonal_draws_have_the_mean_and_the_covariance_of_their_state():
    mean = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
    std = {"a": jnp.array([0.3, 2.0]), "b": jnp.array([[1.0]])}
    found_mean, found_cov = moments(DiagonalGaussian(), {"mean": mean, "std": std})
    wanted = np.diag([0.09, 4.0, 1.0])
    assert_within_five_sigma(found_mean, found_cov, np.array([1.0, -2.0, 0.5]), wanted)


def test_full_draws_have_every_correlation_of_their_state():
    generator = np.random.default_rng(1)
    root = generator.normal(size=(3, 3)).astype(np.float32)
    mean = {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])}
    kept = {"mean": mean, "root": {"a": root[:, :2], "b": root[:, 2].reshape(3, 1, 1)}}
    found_mean, found_cov = moments(FullGaussian(), kept)
    assert_within_five_sigma(found_mean, found_cov, np.array([1.0, -2.0, 0.5]), root.T @ root)


def test_low_rank_draws_correlate_parameters_across_leaves():
    generator = np.random.default_rng(0)
    factors = generator.normal(size=(2, 3)).astype(np.float32)
    std = np.array([0.3, 1.0, 0.5], np.float32)
    kept = {
        "mean": {"a": jnp.array([1.0, -2.0]), "b": jnp.array([[0.5]])},
        "std": {"a": jnp.asarray(std[:2]), "b": jnp.asarray(std[2:].reshape(1, 1))},
        "factors": {
            "a": jnp.asarray(factors[:, :2]),
            "b": jnp.asarray(factors[:, 2:].reshape(2, 1, 1)),
        },
    }
    found_mean, found_cov = moments(LowRankGaussian(rank=2), kept)
    wanted = np.diag(std**2) + factors.T @ factors
    assert_within_five_sigma(found_mean, found_cov, np.array([1.0, -2.0, 0.5]), wanted)


@pytest.mark.parametrize("num_outputs", [1, 2])
def test_shrunk_draws_have_the_covariance_that_the_docstring_states(num_outputs):
    generator = np.random.default_rng(2)
    factors = generator.normal(size=(2, 3)).astype(np.float32) / 2
    std = np.array([0.3, 1.0, 0.5], np.float32)
    mean = np.arange(3 * num_outputs, dtype=np.float32).reshape(3, num_outputs)
    stds = np.repeat(std[:, None], num_outputs, axis=1)
    kept = {
        "mean": {"a": mean[:1], "b": mean[1:]},
        "std": {"a": stds[:1], "b": stds[1:]},
        "factors": {"a": factors[:, :1], "b": factors[:, 1:]},
    }
    sampler = ShrunkGaussian(rank=2, num_outputs=num_outputs)
    found_mean, found_cov = moments(sampler, jax.tree.map(jnp.asarray, kept))
    root = np.diag(std) @ (np.eye(3) - factors.T @ factors)
    wanted = np.kron(root @ root.T, np.eye(num_outputs))
    assert_within_five_sigma(found_mean, found_cov, mean.ravel(), wanted)


def assert_within_five_sigma(mean, covariance, wanted_mean, wanted):
    variances = np.diag(wanted)
    assert np.all(np.abs(mean - wanted_mean) < 5 * np.sqrt(variances / NUM_DRAWS))
    # The variance of an empirical covariance of Gaussians (Wishart).
    error = np.sqrt((np.outer(variances, variances) + wanted**2) / NUM_DRAWS)
    assert np.all(np.abs(covariance - wanted) < 5 * error)


def test_draws_keep_the_precision_of_the_parameters():
    half = {"w": jnp.ones(3, jnp.bfloat16)}
    kept = {"mean": half, "std": half, "factors": {"w": jnp.ones((2, 3), jnp.bfloat16)}}
    assert LowRankGaussian(rank=2).draw(seeded_key(0), kept)["w"].dtype == jnp.bfloat16
    assert DiagonalGaussian().draw(seeded_key(0), kept)["w"].dtype == jnp.bfloat16


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_posterior_of_every_sampler_travels_and_predicts_the_same(tmp_path, sampler):
    posterior = posterior_of(sampler, num_chains=2, num_kept=2)
    posterior.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.sampler == sampler
    x = np.ones((3, 4), np.float32)
    np.testing.assert_array_equal(
        predict(posterior, x).probabilities, predict(loaded, x).probabilities
    )


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_a_sampler_is_described_by_its_name_and_fields(sampler):
    assert sampler_from_spec(sampler_spec(sampler)) == sampler


def test_a_sampler_that_nothing_could_load_is_not_saved(tmp_path):
    class Own(Points):
        pass

    with pytest.raises(InvalidArgumentError, match=r"sampler must be one of .*Points"):
        posterior_of(Own()).save(tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("spec", ["points", {"kind": "Pickle"}, {"kind": "LowRankGaussian"}, None])
def test_a_description_that_fits_no_sampler_is_refused(spec):
    with pytest.raises(InvalidArgumentError, match=r"kind must be one of|lacks"):
        sampler_from_spec(spec)


@pytest.mark.parametrize(
    ("sampler", "num_kept", "wanted"),
    [
        (Points(), 3, 3),
        (DiagonalGaussian(), 1, 100),
        (DiagonalGaussian(), 3, 102),
        (LowRankGaussian(rank=2), 150, 150),
    ],
)
def test_by_default_every_state_gives_as_many_draws_and_gaussians_a_hundred_in_all(
    sampler, num_kept, wanted
):
    posterior = posterior_of(sampler, num_kept=num_kept)
    assert jax.tree.leaves(posterior.draws())[0].shape[0] == wanted


def test_draws_of_one_gaussian_state_differ():
    draws = posterior_of(DiagonalGaussian()).draws(2)
    assert all(bool(jnp.all(leaf[0] != leaf[1])) for leaf in jax.tree.leaves(draws))


def test_a_rank_below_one_is_refused():
    with pytest.raises(InvalidArgumentError, match="rank"):
        LowRankGaussian(rank=0)
