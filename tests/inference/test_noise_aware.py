"""The posterior given all releases, against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2, kstest

import tacit
from tacit.inference.corrected import ModelPosterior, prior_site
from tacit.inference.curvature import nearest_positive
from tacit.inference.evidence import Releases
from tacit.inference.noise_aware import Components, noise_aware
from tacit.inference.stand_in import sliced
from tacit.models import GaussianPrior, LaplacePrior

NOISE = 0.5


class Regression:
    """A linear regression with known noise, and releases of it at chosen points."""

    def __init__(self, *, dim=4, num_records=400, correlation=0.0, prior_std=1.0, seed=0):
        random = np.random.default_rng(seed)
        common = random.normal(size=(num_records, 1)) * np.sqrt(correlation)
        x = common + random.normal(size=(num_records, dim)) * np.sqrt(1 - correlation)
        self.truth = prior_std * random.normal(size=dim)
        y = x @ self.truth + NOISE * random.normal(size=num_records)
        self.curvature = x.T @ x / NOISE**2
        self.slope = x.T @ y / NOISE**2
        self.prior = np.eye(dim) / prior_std**2
        self.num_records, self.random = num_records, random

    @property
    def mode(self):
        return np.linalg.solve(self.curvature + self.prior, self.slope)

    def releases(self, *, num, noise_std, spread, curvature_std=None, batch_noise=0.0):
        dim = len(self.truth)
        points = self.mode + spread * self.random.normal(size=(num, dim))
        noise = noise_std * self.random.normal(size=(num, dim))
        if batch_noise:
            root = np.linalg.cholesky(batch_noise * self.curvature)
            noise = noise + self.random.normal(size=(num, dim)) @ root.T
        curvatures = variances = None
        if curvature_std is not None:
            error = self.random.normal(size=(num, dim, dim))
            error = np.tril(error, -1) / np.sqrt(2)
            error = error + error.swapaxes(1, 2)
            error[:, range(dim), range(dim)] = self.random.normal(size=(num, dim))
            curvatures = self.curvature + curvature_std * error
            variances = np.full(num, curvature_std**2)
        return Releases(
            points=points,
            gradients=points @ self.curvature - self.slope + noise,
            variances=np.full(num, noise_std**2),
            counts=np.ones(num),
            is_late=np.arange(1, num + 1) > num / 2,
            norms=np.tile([0.0, 0.0, 0.5, 0.5], (num, 1)),
            norm_variances=np.full((num, 4), 1e-4),
            curvatures=curvatures,
            curvature_variances=variances,
            batch_noise=batch_noise,
            # So many records that no point is too far for a quadratic: here it is exact.
            num_records=10**9,
        )

    def posterior(self, noise):
        """The analytic noise-aware posterior for a noise covariance of the averaged gradient."""
        message = self.curvature @ np.linalg.inv(self.curvature + noise)
        covariance = np.linalg.inv(self.prior + message @ self.curvature)
        return covariance, lambda slope: covariance @ message @ slope

    def site(self, mean, covariance):
        return self.prior, np.zeros(len(mean))


@pytest.mark.parametrize("correlation", [0.0, 0.9])
@pytest.mark.parametrize("has_curvatures", [False, True])
def test_without_noise_the_posterior_is_the_exact_one(correlation, has_curvatures):
    data = Regression(correlation=correlation)
    std = 1e-4 if has_curvatures else None
    releases = data.releases(num=40, noise_std=1e-4, spread=0.05, curvature_std=std)
    found = noise_aware(releases, data.site)
    exact = np.linalg.inv(data.curvature + data.prior)
    np.testing.assert_allclose(found.mean, data.mode, atol=1e-3 * np.sqrt(exact.max()))
    np.testing.assert_allclose(found.covariance, exact, rtol=1e-3, atol=1e-3 * exact.max())


@pytest.mark.parametrize("correlation", [0.0, 0.8])
@pytest.mark.parametrize("prior_std", [1.0, 0.03])
@pytest.mark.parametrize("batch_noise", [0.0, 9.0])
def test_with_known_noise_the_posterior_is_the_analytic_one(correlation, prior_std, batch_noise):
    data = Regression(correlation=correlation, prior_std=prior_std)
    num, noise_std = 400, 1200.0
    releases = data.releases(
        num=num, noise_std=noise_std, spread=0.05, batch_noise=batch_noise, curvature_std=1.0
    )
    found = noise_aware(releases, data.site)
    noise = (noise_std**2 * np.eye(4) + batch_noise * data.curvature) / num
    covariance, mean_of = data.posterior(noise)
    slope = data.curvature @ releases.points.mean(0) - releases.gradients.mean(0)
    np.testing.assert_allclose(
        found.covariance, covariance, rtol=0.02, atol=0.02 * covariance.max()
    )
    error = (found.mean - mean_of(slope)) / np.sqrt(np.diag(covariance))
    assert np.max(np.abs(error)) < 0.1


def test_a_point_release_of_curvature_and_gradient_is_what_sufficient_statistics_give():
    data = Regression(num_records=2000)
    releases = data.releases(num=1, noise_std=30.0, spread=0.0, curvature_std=3.0)
    found = noise_aware(releases, data.site)
    covariance, mean_of = data.posterior(900.0 * np.eye(4))
    slope = data.curvature @ releases.points[0] - releases.gradients[0]
    np.testing.assert_allclose(
        found.covariance, covariance, rtol=0.05, atol=0.05 * covariance.max()
    )
    error = (found.mean - mean_of(slope)) / np.sqrt(np.diag(covariance))
    assert np.max(np.abs(error)) < 0.3


def test_intervals_hold_where_the_curvature_is_learnt_from_few_noisy_releases():
    hits, num_sets = [], 300
    for seed in range(num_sets):
        data = Regression(seed=seed, correlation=0.5)
        releases = data.releases(num=12, noise_std=300.0, spread=0.3, curvature_std=300.0)
        found = noise_aware(releases, data.site)
        z = (data.truth - found.mean) / np.sqrt(np.diag(found.covariance))
        hits.append(np.mean(np.abs(z) < 1.645))
    error = np.std(hits) / np.sqrt(num_sets)
    assert abs(np.mean(hits) - 0.9) < 0.02 + 3 * error


def test_a_run_that_contradicts_itself_is_found_out():
    data = Regression()
    releases = data.releases(num=200, noise_std=20.0, spread=0.1)
    limit = chi2.isf(1e-4, 4)
    assert noise_aware(releases, data.site).drift < limit
    shifted = releases.gradients + 30.0 * releases.is_late[:, None]
    moved = Releases(**{**vars(releases), "gradients": shifted})
    assert noise_aware(moved, data.site).drift > limit


def test_too_little_movement_leaves_the_curvature_in_doubt():
    data = Regression()
    still = noise_aware(data.releases(num=200, noise_std=500.0, spread=0.01), data.site)
    moved = noise_aware(data.releases(num=200, noise_std=500.0, spread=1.0), data.site)
    assert np.max(moved.curvature_doubt) < 0.1 < np.max(still.curvature_doubt)


def test_draws_are_made_whatever_a_prior_returns():
    def nowhere(w, precision, linear):
        return jnp.where(w[0] > 0, jnp.nan, -jnp.inf)

    draws = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 1)), jnp.float32)
    found = sliced(
        nowhere,
        draws,
        jnp.zeros_like(draws),
        jnp.ones((2, 1, 1)),
        precision=jnp.eye(1),
        linear=jnp.zeros(1),
    )
    np.testing.assert_array_equal(found, draws)


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.floats(1e-3, 0.5))
def test_the_nearest_positive_matrix_keeps_the_trace(dim, seed, least):
    random = np.random.default_rng(seed)
    matrix = random.normal(size=(dim, dim))
    matrix = matrix + matrix.T + np.eye(dim)
    found = nearest_positive(matrix, least)
    assert np.min(np.linalg.eigvalsh(found)) >= least * (1 - 1e-9)
    trace = max(np.trace(matrix), least * dim)
    assert np.isclose(np.trace(found), trace)
    if np.trace(matrix) > least * dim:  # no other such matrix is nearer
        for _ in range(20):
            other = random.normal(size=(dim, dim))
            other = other @ other.T + 1e-9 * np.eye(dim)
            other = least * np.eye(dim) + other * (trace - least * dim) / np.trace(other)
            assert np.linalg.norm(found - matrix) <= np.linalg.norm(other - matrix) + 1e-9


def test_a_gaussian_prior_stands_for_itself():
    class LogPrior:
        def __call__(self, w):
            return GaussianPrior(std=0.5).log_prob(w)

        def expected(self, mean, std):
            return GaussianPrior(std=0.5).expected_log_prob(mean, std)

    for log_prior in (LogPrior(), lambda w: -2 * jnp.sum(w**2)):
        site = prior_site(log_prior, jnp.zeros(3))
        precision, linear = site(np.array([1.0, -2.0, 3.0]), 0.3 * np.eye(3))
        np.testing.assert_allclose(precision, 4 * np.eye(3), atol=1e-4)
        np.testing.assert_allclose(linear, 0, atol=1e-3)


@pytest.mark.parametrize("centre", [0.0, 0.7])
def test_draws_follow_a_prior_that_is_not_gaussian(centre):
    # A Gaussian likelihood N(centre, 1) times a Laplace prior, in one dimension, by quadrature.
    model = tacit.Model(
        init=lambda key: jnp.zeros(1),
        log_prior=LaplacePrior(scale=0.5).log_prob,
        log_likelihood=lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
        predict=lambda w, x, key: w,
    )
    row = jax.ShapeDtypeStruct((), jnp.float32)
    posterior = ModelPosterior(model, tacit.Record(row, row, row))
    site = prior_site(model.log_prior, jnp.zeros(1))
    precision, linear = site(np.array([centre / 2]), np.array([[0.4]]))
    covariance = np.linalg.inv(precision + np.eye(1))
    mean = covariance @ (linear + centre)
    found = noise_aware(
        Regression(dim=1).releases(num=4, noise_std=1.0, spread=0.1),
        lambda mean, cov: (np.eye(1), np.zeros(1)),
    )._replace(
        components=Components(np.tile(mean, (100, 1)), np.tile(covariance, (100, 1, 1))),
        prior_precision=precision,
        prior_linear=linear,
    )
    grid = np.linspace(-6, 6, 20001)
    density = np.exp(-0.5 * (grid - centre) ** 2 - np.abs(grid) / 0.5)
    cumulative = np.cumsum(density) / density.sum()
    test = kstest(posterior.draws(found)[:, 0], lambda w: np.interp(w, grid, cumulative))
    assert test.pvalue > 1e-3
