"""Laplace finds the mode and its curvature, exactly where loss is quadratic, safely elsewhere."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from scipy.special import expit, log_softmax

from tacit.errors import InvalidArgumentError
from tacit.inference import Laplace, Plan, calibrate, fit, synthetic_records
from tacit.inference.schedules import Exponential
from tacit.models import (
    MLP,
    Bernoulli,
    Categorical,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    NegativeBinomial,
    PoissonCounts,
    bayesian,
    from_function,
)
from tacit.privacy.budget import Budget
from tacit.privacy.clipping import PerLayer
from tacit.privacy.clipping.slack import EDGES
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Record

NUM_RECORDS, DIM, PRIOR_STD = 400, 3, 2.0
GENERATOR = np.random.default_rng(0)
X = GENERATOR.uniform(-1, 1, (NUM_RECORDS, DIM)).astype(np.float32)
TRUTH = np.array([1.0, -2.0, 0.5])
LINEAR = X.astype(np.float64) @ TRUTH
FULL = FullBatch(num_records=NUM_RECORDS)
STD, DISPERSION = 0.5, 0.4
THREE = np.array([[1.0, -1.0, 0.0], [0.5, 2.0, -1.0], [0.0, 0.3, -2.0]])


def gumbel_argmax(logits):
    return np.argmax(logits + GENERATOR.gumbel(size=logits.shape), axis=1)


def counts(mean, dispersion):
    return GENERATOR.poisson(mean * GENERATOR.gamma(1 / dispersion, dispersion, mean.shape))


TARGETS = {
    "logistic": (GENERATOR.random(NUM_RECORDS) < expit(LINEAR)).astype(np.int32),
    "separated": (LINEAR > 0).astype(np.int32),
    "multinomial": gumbel_argmax(X @ THREE).astype(np.int32),
    "poisson": GENERATOR.poisson(np.exp(LINEAR + 2)).astype(np.int32),
    "negative binomial": counts(np.exp(LINEAR), DISPERSION).astype(np.int32),
    "gaussian": (LINEAR + STD * GENERATOR.normal(size=NUM_RECORDS)).astype(np.float32),
}
LIKELIHOODS = {
    "logistic": Bernoulli(),
    "separated": Bernoulli(),
    "multinomial": Categorical(num_classes=3),
    "poisson": PoissonCounts(),
    "negative binomial": NegativeBinomial(dispersion=DISPERSION),
    "gaussian": FixedGaussian(std=STD),
}


def negative_log_likelihood(name, w):
    """The sums over records, in float64, up to constants."""
    x, y = X.astype(np.float64), TARGETS[name]
    if name == "multinomial":
        return -log_softmax(x @ w.reshape(DIM, 3), axis=1)[np.arange(NUM_RECORDS), y].sum()
    out = x @ w
    return {
        "logistic": lambda: np.logaddexp(0, out) - y * out,
        "separated": lambda: np.logaddexp(0, out) - y * out,
        "poisson": lambda: np.exp(out) - y * out,
        "negative binomial": lambda: (
            (y + 1 / DISPERSION) * np.logaddexp(0, out + math.log(DISPERSION)) - y * out
        ),
        "gaussian": lambda: 0.5 * ((y - out) / STD) ** 2,
    }[name]().sum()


def model_of(name, prior=None):
    likelihood = LIKELIHOODS[name]
    return from_function(
        lambda key: jnp.zeros((DIM, likelihood.num_outputs)),
        lambda w, x, key: x @ w,
        prior=prior or GaussianPrior(std=PRIOR_STD),
        likelihood=likelihood,
    )


def records_of(name):
    return Record(jnp.asarray(X), jnp.asarray(TARGETS[name]), jnp.ones(NUM_RECORDS))


def run(method, name, num_steps, seed=0, model=None):
    kernel = method.build(model or model_of(name))
    state, step = kernel.init(seeded_key(seed)), jax.jit(kernel.step)
    for t in range(num_steps):
        key = jax.random.fold_in(jax.random.key(seed), t)
        state, info = step(key, state, records_of(name))
    return kernel, state, info


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def covariance_of(kernel, state):
    root = kernel.retain(state)["root"]
    rows = np.asarray(jax.vmap(lambda tree: jnp.ravel(tree["network"]))(root), np.float64)
    return rows.T @ rows


def mode_of(name):
    def potential(w):
        return negative_log_likelihood(name, w) + 0.5 * np.sum((w / PRIOR_STD) ** 2)

    size = DIM * LIKELIHOODS[name].num_outputs
    return scipy.optimize.minimize(potential, np.zeros(size), tol=1e-8).x


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_noise_a_few_steps_find_the_mode(name):
    method = Laplace.non_private(sampling=FULL)
    _, state, info = run(method, name, num_steps=15)
    np.testing.assert_allclose(flat(state.params), mode_of(name), atol=2e-3)
    assert float(info.length) < 1e-3


@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_without_noise_the_covariance_is_that_of_laplace(name):
    kernel, state, _ = run(Laplace.non_private(sampling=FULL), name, num_steps=15)
    out = X @ mode_of(name)
    slopes = np.exp(out) if name == "poisson" else expit(out) * expit(-out)
    precision = X.T @ (slopes[:, None] * X) + np.eye(DIM) / PRIOR_STD**2
    np.testing.assert_allclose(covariance_of(kernel, state), np.linalg.inv(precision), rtol=1e-2)


def test_separated_classes_without_a_prior_never_make_a_point_that_is_not_finite():
    model = model_of("separated", prior=FlatPrior())
    _, state, info = run(Laplace.non_private(sampling=FULL), "separated", 25, model=model)
    assert np.isfinite(flat(state.params)).all()
    assert np.isfinite(float(info.length))
    direction = flat(state.params) / np.linalg.norm(flat(state.params))
    assert direction @ TRUTH / np.linalg.norm(TRUTH) > 0.98


def test_one_step_is_exact_for_a_gaussian_linear_model_wherever_it_starts():
    method = Laplace.non_private(sampling=FULL, max_step=math.inf)
    model = model_of("gaussian")._replace(
        init=lambda key: {"network": 5 * jax.random.normal(key, (DIM, 1))}
    )
    kernel, state, _ = run(method, "gaussian", num_steps=1, model=model)
    x = X.astype(np.float64)
    precision = x.T @ x / STD**2 + np.eye(DIM) / PRIOR_STD**2
    mean = np.linalg.solve(precision, x.T @ TARGETS["gaussian"] / STD**2)
    np.testing.assert_allclose(flat(state.params), mean, rtol=1e-4)
    np.testing.assert_allclose(covariance_of(kernel, state), np.linalg.inv(precision), rtol=1e-3)


def test_noise_widens_the_covariance_by_the_formula():
    # So much noise that half of the information is lost, and hardly any in the curvature.
    clip_norm, noise_std = 1e3, 12.0
    release = GaussianSum(
        sampling=FULL, clip_norm=clip_norm, noise_multiplier=noise_std / clip_norm
    )
    method = Laplace(release=release, curvature_scale=clip_norm * 30, max_step=math.inf)
    kernel, state, _ = run(method, "gaussian", num_steps=1)
    x = X.astype(np.float64)
    curvature = x.T @ x / STD**2
    noisy = curvature + noise_std**2 * np.eye(DIM)
    precision = curvature @ np.linalg.solve(noisy, curvature) + np.eye(DIM) / PRIOR_STD**2
    np.testing.assert_allclose(
        covariance_of(kernel, state), np.linalg.inv(precision), rtol=0.02, atol=5e-5
    )


def test_noise_of_batches_widens_the_covariance_too():
    sampling = PoissonBatch(num_records=NUM_RECORDS, batch_size=100)
    kernel, state, _ = run(Laplace.non_private(sampling=sampling), "gaussian", num_steps=1)
    full_kernel, full_state, _ = run(Laplace.non_private(sampling=FULL), "gaussian", num_steps=1)
    ratio = covariance_of(kernel, state) / covariance_of(full_kernel, full_state)
    # One batch of a quarter: four times the variance, up to the sampling noise of the curvature.
    np.testing.assert_allclose(np.diag(ratio), 4.0, rtol=0.5)


def numbers_of(releases, method):
    """What a step took from its release, in the order and the scale of the clipped sum."""
    scale = method.curvature_scale / method.release.clip_norm
    # Counters have the same noise as all other numbers.
    counters = releases.norms[0] * np.sqrt(releases.variances[0] / releases.norm_variances[0])
    parts = (releases.gradients[0], releases.curvatures[0] * scale, counters)
    return np.concatenate([np.asarray(part, np.float64) for part in parts])


def of_all_sizes(size):
    """Numbers of an adversary: of all sizes and signs, nearly alike, or no numbers."""
    numbers = GENERATOR.normal(size=size) * 10.0 ** GENERATOR.uniform(-40, 38)
    kinds = [numbers, np.sign(numbers), numbers**0 * numbers[0], GENERATOR.normal(size=size)]
    chosen = kinds[GENERATOR.integers(len(kinds))].astype(np.float32)
    chosen[GENERATOR.random(size) < 0.05] = GENERATOR.choice([math.nan, math.inf])
    return chosen


@pytest.mark.parametrize("name", ["logistic", "poisson"])
@pytest.mark.parametrize("bad", [1.0, 3.0, 1e3, 1e30, math.inf, math.nan])
def test_a_record_that_weighs_nothing_is_as_good_as_absent(name, bad):
    release = GaussianSum(sampling=FULL, clip_norm=1.5, noise_multiplier=0.01)
    method = Laplace(release=release)
    kernel, records = method.build(model_of(name)), records_of(name)
    step = jax.jit(kernel.step)

    def released(records):
        state, _ = step(jax.random.key(1), kernel.init(seeded_key(0)), records)
        return numbers_of(state.releases, method)

    absent = records._replace(weight=records.weight.at[7].set(0.0))
    present = records._replace(x=records.x.at[7].set(bad))
    assert np.linalg.norm(released(present) - released(absent)) <= 1.5 * (1 + 1e-4)


@pytest.mark.parametrize("name", ["logistic", "poisson", "gaussian"])
def test_gradient_curvature_and_counters_of_any_record_are_clipped_together(name):
    clip_norm, noise_multiplier = 1.5, 2.0**-12
    release = GaussianSum(
        sampling=FullBatch(num_records=1), clip_norm=clip_norm, noise_multiplier=noise_multiplier
    )
    method = Laplace(release=release)
    kernel = method.build(model_of(name))
    state = kernel.init(seeded_key(0))
    step = jax.jit(
        lambda params, record: kernel.step(seeded_key(1), state._replace(params=params), record)[0]
    )
    found = []
    for _ in range(300):
        y = GENERATOR.integers(2) if name != "gaussian" else of_all_sizes(1)[0]
        record = Record(of_all_sizes(DIM)[None], np.array([y], TARGETS[name].dtype), np.ones(1))
        params = {"network": jnp.nan_to_num(of_all_sizes(DIM), posinf=1.0)[:, None]}
        releases = step(params, jax.tree.map(jnp.asarray, record)).releases
        found.append(np.linalg.norm(numbers_of(releases, method)) / clip_norm)
    noise = noise_multiplier * 6 * math.sqrt(DIM + DIM * (DIM + 1) / 2 + len(EDGES))
    assert max(found) <= 1 + noise
    # Long records are clipped, and short ones fill the room that they leave.
    assert np.mean(np.array(found) > 0.95) > 0.1


def test_the_histogram_tells_how_many_records_the_clip_has_shortened():
    release = GaussianSum(sampling=FULL, clip_norm=100.0, noise_multiplier=1e-4)
    for clip_norm, low, high in ((100.0, -0.01, 0.01), (0.2, 0.5, 1.01)):
        method = Laplace(release=dataclasses.replace(release, clip_norm=clip_norm))
        _, state, _ = run(method, "logistic", num_steps=1)
        assert low < 1 - float(state.releases.norms[0].sum()) < high


def test_evidence_has_a_row_for_each_release():
    release = GaussianSum(sampling=FULL, clip_norm=2.0, noise_multiplier=0.5)
    method = Laplace(release=release, noise_schedule=Exponential(half_life=2.0))
    kernel, state, _ = run(method, "logistic", num_steps=3)
    evidence = kernel.evidence(state)
    np.testing.assert_array_equal(evidence.counts[:4], [1, 1, 1, 0])
    np.testing.assert_allclose(evidence.variances[:3], [1.0, 0.5, 0.25], rtol=1e-5)
    factor = (2.0 / method.curvature_scale) ** 2
    np.testing.assert_allclose(
        evidence.curvature_variances[:3], factor * evidence.variances[:3], rtol=1e-5
    )
    assert not evidence.points[0].any()
    np.testing.assert_allclose(evidence.curvatures[0][0], np.sum(X[:, 0] ** 2) / 4, rtol=0.1)


def test_a_long_run_keeps_its_last_releases():
    release = GaussianSum(sampling=FULL, clip_norm=2.0, noise_multiplier=0.5)
    kernel, state, _ = run(Laplace(release=release), "logistic", num_steps=300)
    evidence = kernel.evidence(state)
    assert int(evidence.num_steps) == 300
    assert float(evidence.counts.sum()) == len(evidence.counts) < 300
    # In the order in which they were made: the noise of the last is the smallest.
    assert (np.diff(evidence.variances) < 0).all()


@pytest.mark.parametrize("noise_multiplier", [10.0, 1e3, 1e5])
@pytest.mark.parametrize("name", ["separated", "poisson"])
def test_noise_never_makes_a_step_longer_than_the_longest(name, noise_multiplier):
    release = GaussianSum(sampling=FULL, clip_norm=2.0, noise_multiplier=noise_multiplier)
    kernel, state, info = run(Laplace(release=release), name, num_steps=8)
    assert np.isfinite(flat(kernel.retain(state))).all()
    # The prior holds it: points are where the prior is.
    assert np.abs(flat(state.params)).max() < 10 * PRIOR_STD
    assert np.isfinite(float(info.length))


def test_the_clip_norm_leaves_the_share_of_records_that_was_asked_for():
    model = bayesian(
        MLP(num_inputs=DIM, num_outputs=1), prior=GaussianPrior(std=1.0), likelihood=Bernoulli()
    )
    synthetic = synthetic_records(model, jnp.asarray(X))
    half, most = (Laplace.clip_norm_for(model, synthetic, quantile=q) for q in (0.5, 0.99))
    # A record has at most four inputs, all of them up to one: gradients up to two.
    assert 0.3 < half < most < 2.0
    release = GaussianSum(sampling=FULL, clip_norm=most, noise_multiplier=1e-5)
    kernel = Laplace(release=release).build(model)
    state, _ = jax.jit(kernel.step)(jax.random.key(0), kernel.init(seeded_key(5)), synthetic)
    # One in a hundred is clipped, and few more are within three hundredths of it.
    assert 0.9 < float(state.releases.norms[0].sum()) <= 1.001


def test_a_private_fit_keeps_to_its_budget():
    release = GaussianSum(sampling=FULL, clip_norm=1.5, noise_multiplier=1.0)
    method = Laplace(release=release)
    budget = Budget(epsilon=8.0, delta=1e-3)
    plan = calibrate(Plan(method=method, num_steps=6), budget)
    result = fit(plan, model_of("logistic"), records_of("logistic"), budget=budget, seed=0)
    assert 7.9 < float(result.statement.epsilon) <= 8.0
    assert np.abs(flat(result.posterior.raw.kept["mean"]) - mode_of("logistic")).max() < 1.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda release: Laplace(release=release, curvature_scale=0.0), "curvature_scale must be"),
        (lambda release: Laplace(release=release, max_step=-1.0), "max_step must be"),
        (
            lambda release: Laplace(release=dataclasses.replace(release, clipping=PerLayer())),
            "release.clipping must be Flat",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name(build, message):
    release = GaussianSum(sampling=FULL, clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(InvalidArgumentError, match=message):
        build(release)
