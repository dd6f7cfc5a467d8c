"""Variational posteriors against the best Gaussian, known in closed form or by quadrature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.optimize
import scipy.special

from tacit.inference import IVON, VI, LowRank, MeanField, Plan, fit
from tacit.inference.schedules import Polynomial
from tacit.inference.vi import RecordDraws, SharedDraws, variational_objective
from tacit.models import (
    Bernoulli,
    FixedGaussian,
    GaussianPrior,
    LaplacePrior,
    Model,
    from_function,
)
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Record

DIM = 400  # independent coordinates are as good as chains
Y = np.random.default_rng(0).normal(0.7, 1.0, size=20).astype(np.float32)
PRIOR_STD = 0.5
PRECISION = len(Y) + 1 / PRIOR_STD**2
MEAN = Y.sum() / PRECISION
FULL = FullBatch(num_records=len(Y))
CLIP_NORM = 30 * math.sqrt(DIM)  # far above any gradient here: nothing is clipped


def kept(method, model, records, *, num_steps, num_chains=1):
    budget = Budget.non_private()
    if method.release.is_private:
        budget = Budget(epsilon=math.inf, delta=1e-5)
    plan = Plan(method=method, num_steps=num_steps, num_chains=num_chains)
    state = fit(plan, model, records, budget=budget, seed=0).posterior.kept
    return jax.tree.map(lambda leaf: np.asarray(leaf[:, -1], np.float64), state)


def table(x, y):
    return Record(jnp.asarray(x, jnp.float32), jnp.asarray(y), jnp.ones(len(y)))


class NormalPrior:
    """A log prior that knows its expectation, of parameters that are one array."""

    def __call__(self, w):
        return -0.5 * jnp.sum(w**2) / PRIOR_STD**2

    def expected(self, mean, std):
        return -0.5 * jnp.sum(mean**2 + std**2) / PRIOR_STD**2


def opaque(w):
    """The same prior as a plain function, whose expectation nobody knows."""
    return NormalPrior()(w)


def normal_mean(log_prior):
    """Every record observes all coordinates with N(0, 1): the posterior has no correlations."""
    return Model(
        lambda key: jnp.zeros(DIM),
        log_prior,
        lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
        lambda w, x, key: w,
    )


def private(noise_multiplier):
    return GaussianSum(sampling=FULL, clip_norm=CLIP_NORM, noise_multiplier=noise_multiplier)


LEARNING_RATE, NUM_PARTICLES = 0.05, 2
NOISE = 1e-2  # on the gradient twice what the draws of the weights make
EXACT = GaussianSum(sampling=FULL, clip_norm=math.inf, noise_multiplier=0.0)
RUNS = {
    "closed form": (EXACT, NormalPrior(), {}),
    "prior by Monte Carlo": (EXACT, opaque, {}),
    "per-record draws": (EXACT, NormalPrior(), {"draws": RecordDraws()}),
    "private": (private(NOISE), NormalPrior(), {}),
    "private, of the guide's gradient": (private(NOISE), NormalPrior(), {"draws": SharedDraws()}),
}


def check_normal_mean(run, optimizer, release):
    """Runs VI and compares mean, spread and fluctuation of the mean with their exact values."""
    stated, log_prior, settings = RUNS[run]
    method = VI(
        release=release,
        optimizer=optimizer,
        guide=MeanField(init_std=0.3),
        num_particles=NUM_PARTICLES,
        averaging=None,
        **settings,
    )
    state = kept(method, normal_mean(log_prior), table(Y[:, None], Y), num_steps=1600)
    mean, std = state["mean"][0], state["std"][0]
    # The optimiser is a linear recursion around the mean, driven by what it cannot average: the
    # draws of the weights (less where every record has its own) and the noise of the release.
    curvature = PRECISION / len(Y)
    squares = {"prior by Monte Carlo": PRECISION**2, "per-record draws": len(Y)}
    by_draws = squares.get(run, len(Y) ** 2) / PRECISION / NUM_PARTICLES
    # The noise at the draws adds up in the mean, which is in all of them.
    at_draws = 1 if "draws" in settings else NUM_PARTICLES
    driving = (by_draws + at_draws * stated.noise_std**2) / len(Y) ** 2
    wanted = LEARNING_RATE**2 * driving / (1 - (1 - LEARNING_RATE * curvature) ** 2)
    assert mean.mean() == pytest.approx(MEAN, abs=5 * math.sqrt(wanted / DIM))
    # The recursion takes the spread at its exact value, though it fluctuates: 10 % more.
    assert mean.var() == pytest.approx(wanted, rel=5 * math.sqrt(2 / DIM) + 0.1)
    # The privacy noise on a spread is large here, and its exponential is skewed.
    assert np.mean(std**2) == pytest.approx(1 / PRECISION, rel=0.1 if "private" in run else 0.03)


@pytest.mark.parametrize("run", RUNS)
def test_mean_field_vi_has_the_exact_mean_variance_and_fluctuation(run):
    check_normal_mean(run, optax.sgd(LEARNING_RATE), RUNS[run][0])


def test_a_divergence_weighted_by_the_batch_size_would_be_found_out(monkeypatch):
    def heavy(*settings):
        objective = variational_objective(*settings)
        return objective._replace(
            regulariser=lambda params, shared: len(Y) * objective.regulariser(params, shared)
        )

    monkeypatch.setattr("tacit.inference.vi.variational_objective", heavy)
    with pytest.raises(AssertionError):
        check_normal_mean("closed form", optax.sgd(LEARNING_RATE), EXACT)


def test_noise_added_after_the_optimiser_would_be_found_out():
    variance = (RUNS["private"][0].noise_std / len(Y)) ** 2
    late = optax.chain(optax.sgd(LEARNING_RATE), optax.add_noise(variance, 0.0, key=0))
    with pytest.raises(AssertionError):
        check_normal_mean("private", late, EXACT)


@pytest.fixture(scope="module")
def regression():
    """Correlated linear regression: records, model, and the exact precision and mean."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(80, 3)) @ np.array([[1.0, 0.7, 0.0], [0.0, 0.6, 0.5], [0, 0, 0.8]])
    y = x @ [0.5, -1.0, 0.3] + 0.5 * generator.normal(size=80)
    precision = x.T @ x / 0.25 + np.eye(3)
    model = from_function(
        lambda key: jnp.zeros(3),
        lambda w, x, key: (x @ w)[None],
        prior=GaussianPrior(std=1.0),
        likelihood=FixedGaussian(std=0.5),
    )
    records = table(x, y.astype(np.float32))
    return records, model, precision, np.linalg.solve(precision, x.T @ y / 0.25)


@pytest.mark.parametrize("guide", [MeanField(), LowRank(rank=3)], ids=["mean field", "full rank"])
def test_vi_finds_the_best_gaussian_of_a_correlated_regression(guide, regression):
    records, model, precision, wanted_mean = regression
    method = VI.non_private(
        sampling=FullBatch(num_records=80),
        optimizer=optax.adam(optax.exponential_decay(0.05, 300, 0.5)),
        guide=guide,
        num_particles=2,
        averaging=None,
    )
    state = kept(method, model, records, num_steps=3000, num_chains=4)
    mean, std = state["mean"]["network"], state["std"]["network"]
    found = np.einsum("ci,ij->cij", std**2, np.eye(3))
    if isinstance(guide, MeanField):
        wanted = np.diag(1 / np.diag(precision))
    else:
        factors = state["factors"]["network"]
        found += np.einsum("cri,crj->cij", factors, factors)
        wanted = np.linalg.inv(precision)
    scale = np.sqrt(np.diag(wanted))
    assert np.all(np.abs(mean.mean(axis=0) - wanted_mean) < 0.05 * scale)
    assert np.all(np.abs(found.mean(axis=0) - wanted) < 0.06 * np.outer(scale, scale))
    # The two optima differ by more than that, and so the guides are told apart.
    other = np.linalg.inv(precision) - np.diag(1 / np.diag(precision))
    assert np.max(np.abs(other) / np.outer(scale, scale)) > 0.3


@pytest.fixture(scope="module")
def logistic():
    """Logistic regression under a Laplace prior: records, model, and the best mean-field Gaussian.

    The expected loss of a record is an integral over its one logit, by Gauss-Hermite quadrature;
    a deterministic optimiser does the rest.
    """
    generator = np.random.default_rng(2)
    x = generator.normal(size=(60, 2)) @ np.array([[1.0, 0.5], [0.0, 0.8]])
    y = (generator.random(60) < scipy.special.expit(x @ [1.5, -1.0])).astype(np.int64)
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    weights = weights / weights.sum()
    scale = 0.5

    def bound(theta):
        mean, std = theta[:2], np.exp(theta[2:])
        logit, spread = x @ mean, np.sqrt(x**2 @ std**2)
        signed = np.where(y == 1, -1, 1)[:, None] * (logit[:, None] + spread[:, None] * nodes)
        loss = np.sum(np.logaddexp(0, signed) @ weights)
        ratio = mean / std
        distance = std * math.sqrt(2 / math.pi) * np.exp(-0.5 * ratio**2)
        distance += mean * scipy.special.erf(ratio / math.sqrt(2))
        return loss + distance.sum() / scale - theta[2:].sum()

    best = scipy.optimize.minimize(bound, np.array([0.0, 0.0, -1.0, -1.0]), tol=1e-9).x
    model = from_function(
        lambda key: jnp.zeros(2),
        lambda w, x, key: (x @ w)[None],
        prior=LaplacePrior(scale=scale),
        likelihood=Bernoulli(),
    )
    return table(x, y), model, best[:2], np.exp(best[2:])


LOGISTIC = {
    "VI": VI.non_private(
        sampling=FullBatch(num_records=60),
        optimizer=optax.adam(optax.exponential_decay(0.05, 300, 0.5)),
        guide=MeanField(init_std=0.1),
        num_particles=2,
    ),
    "IVON": IVON.non_private(
        sampling=FullBatch(num_records=60),
        learning_rate=0.1,
        curvature_rate=0.003,
        init_std=0.3,
        schedule=Polynomial(delay=100, power=1.0),
    ),
}


@pytest.mark.parametrize("name", LOGISTIC)
def test_logistic_regression_under_a_laplace_prior_has_the_best_mean_field_gaussian(name, logistic):
    records, model, wanted_mean, wanted_std = logistic
    num_steps = {"VI": 3000, "IVON": 6000}[name]
    state = kept(LOGISTIC[name], model, records, num_steps=num_steps, num_chains=4)
    mean, std = state["mean"]["network"], state["std"]["network"]
    assert np.all(np.abs(mean.mean(axis=0) - wanted_mean) < 0.1 * wanted_std)
    np.testing.assert_allclose(np.mean(std**2, axis=0), wanted_std**2, rtol=0.1)


IVON_SETTINGS = {"learning_rate": 0.02, "curvature_rate": 0.005, "init_std": 0.4}


@pytest.mark.parametrize("log_prior", [NormalPrior(), opaque], ids=["closed form", "opaque"])
@pytest.mark.parametrize("noise_multiplier", [0.0, NOISE])
def test_ivon_has_the_exact_mean_and_precision_however_noisy_its_gradients(
    noise_multiplier, log_prior
):
    release = EXACT if noise_multiplier == 0 else private(noise_multiplier)
    method = IVON(release=release, **IVON_SETTINGS)
    state = kept(method, normal_mean(log_prior), table(Y[:, None], Y), num_steps=1500)
    mean, variance = state["mean"][0], state["std"][0] ** 2
    assert abs(mean.mean() - MEAN) < 5 * mean.std() / math.sqrt(DIM)
    error = 5 * variance.std() / math.sqrt(DIM)
    assert abs(variance.mean() - 1 / PRECISION) < error + 0.02 / PRECISION
    # That is tight enough to see the prior counted twice, or not at all.
    assert error * PRECISION < 0.1
