"""Laplace with a curvature of low rank: a level and a few directions, for models of any size."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.inference import Laplace, Plan, calibrate, fit, synthetic_records
from tacit.inference.few_directions import FewDirections, shrinkage, solved
from tacit.models import (
    MLP,
    Bernoulli,
    Categorical,
    FixedGaussian,
    FlatPrior,
    GaussianPrior,
    PoissonCounts,
    bayesian,
    from_function,
)
from tacit.posterior import load_posterior, predict
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian, ShrunkGaussian
from tacit.typing import Record

NUM_RECORDS, DIM, NUM_STEEP = 600, 12, 2
GENERATOR = np.random.default_rng(0)
# Inputs of two long directions that are not axes; the others are alike.
BASIS = np.linalg.qr(GENERATOR.normal(size=(DIM, DIM)))[0]
LENGTHS = np.where(np.arange(DIM) < NUM_STEEP, [4.0, 2.5, *[0.0] * (DIM - 2)], 0.5)
X = (GENERATOR.normal(size=(NUM_RECORDS, DIM)) * LENGTHS) @ BASIS.T
# Exactly uncorrelated: what is not a long direction has one curvature.
X = (np.linalg.qr(X @ BASIS)[0] * LENGTHS * math.sqrt(NUM_RECORDS) @ BASIS.T).astype(np.float32)
TRUTH = BASIS @ np.where(LENGTHS > 1, 0.3, 0.6)
LINEAR = X @ TRUTH
FULL = FullBatch(num_records=NUM_RECORDS)
THREE = GENERATOR.normal(size=(DIM, 3)) / 3
TARGETS = {
    "logistic": (GENERATOR.random(NUM_RECORDS) < 1 / (1 + np.exp(-LINEAR))).astype(np.int32),
    "separated": (LINEAR > 0).astype(np.int32),
    "multinomial": np.argmax(X @ THREE + GENERATOR.gumbel(size=(NUM_RECORDS, 3)), 1),
    "poisson": GENERATOR.poisson(np.exp(LINEAR / 2)),
    "gaussian": (LINEAR + 0.5 * GENERATOR.normal(size=NUM_RECORDS)).astype(np.float32),
}
LIKELIHOODS = {
    "logistic": Bernoulli(),
    "separated": Bernoulli(),
    "multinomial": Categorical(num_classes=3),
    "poisson": PoissonCounts(),
    "gaussian": FixedGaussian(std=0.5),
}


def model_of(name, prior=None):
    likelihood = LIKELIHOODS[name]
    return from_function(
        lambda key: jnp.zeros((DIM, likelihood.num_outputs)),
        lambda w, x, key: x @ w,
        prior=prior or GaussianPrior(std=2.0),
        likelihood=likelihood,
    )


def records_of(name):
    y = TARGETS[name]
    return Record(
        jnp.asarray(X),
        jnp.asarray(y, jnp.float32 if name == "gaussian" else jnp.int32),
        jnp.ones(NUM_RECORDS),
    )


def run(method, name, num_steps, model=None):
    kernel = method.build(model or model_of(name))
    state, step = kernel.init(seeded_key(0)), jax.jit(kernel.step)
    for t in range(num_steps):
        state, info = step(jax.random.fold_in(jax.random.key(0), t), state, records_of(name))
    return kernel, state, info


def covariance_of(kept):
    """In closed form, of the parameters of one output."""
    std = np.asarray(kept["std"]["network"], np.float64)[:, 0]
    factors = np.asarray(kept["factors"]["network"], np.float64)
    root = np.diag(std) @ (np.eye(DIM) - factors.T @ factors)
    return root @ root.T


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_without_noise_the_mean_is_that_of_the_whole_curvature(name):
    _, whole, _ = run(Laplace.non_private(sampling=FULL), name, 25)
    low = Laplace.non_private(sampling=FULL, rank=NUM_STEEP)
    _, state, info = run(low, name, 120)
    # Where classes are separated the loss is nearly flat at the end, and the way is long.
    tolerance = 0.03 if name == "separated" else 0.01
    np.testing.assert_allclose(
        state.params["network"], whole.params["network"], atol=tolerance, rtol=tolerance
    )
    assert float(info.length) < 0.01


def test_with_the_rank_that_matters_the_covariance_is_that_of_the_whole_curvature():
    kernel, state, _ = run(Laplace.non_private(sampling=FULL, rank=NUM_STEEP), "gaussian", 60)
    x = X.astype(np.float64)
    wanted = np.linalg.inv(x.T @ x / 0.5**2 + np.eye(DIM) / 2.0**2)
    np.testing.assert_allclose(
        covariance_of(kernel.retain(state)), wanted, atol=0.02 * np.max(np.diag(wanted))
    )


def test_of_a_logistic_regression_the_covariance_is_that_of_the_whole_curvature_up_to_a_tenth():
    kernel, state, _ = run(Laplace.non_private(sampling=FULL, rank=NUM_STEEP), "logistic", 60)
    whole, whole_state, _ = run(Laplace.non_private(sampling=FULL), "logistic", 25)
    root = np.asarray(whole.retain(whole_state)["root"]["network"])[:, :, 0]
    wanted = root.T @ root
    np.testing.assert_allclose(
        covariance_of(kernel.retain(state)), wanted, atol=0.1 * np.max(np.diag(wanted))
    )


def test_a_lower_rank_misses_the_directions_that_it_does_not_have():
    kernel, state, _ = run(Laplace.non_private(sampling=FULL, rank=1), "gaussian", 60)
    covariance = covariance_of(kernel.retain(state))
    steep = [BASIS[:, i] @ covariance @ BASIS[:, i] * NUM_RECORDS * 4 for i in range(2)]
    np.testing.assert_allclose(steep[0], 1 / LENGTHS[0] ** 2, rtol=0.05)
    assert steep[1] > 1.5 / LENGTHS[1] ** 2


def test_directions_that_noise_hides_are_not_counted():
    found = []
    for noise_multiplier in (0.01, 1e4):
        release = GaussianSum(sampling=FULL, clip_norm=3.0, noise_multiplier=noise_multiplier)
        kernel, state, _ = run(Laplace(release=release, rank=NUM_STEEP), "logistic", 12)
        found.append(np.abs(kernel.retain(state)["factors"]["network"]).max())
    assert found[0] > 0.3
    assert found[1] < 1e-3


@pytest.mark.parametrize("noise_multiplier", [1.0, 30.0, 1e3, 1e5])
@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("name", ["separated", "poisson", "multinomial"])
def test_noise_never_drives_a_run_away(name, rank, noise_multiplier):
    release = GaussianSum(sampling=FULL, clip_norm=3.0, noise_multiplier=noise_multiplier)
    kernel, state, info = run(Laplace(release=release, rank=rank), name, 25)
    kept = kernel.retain(state)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(kept))
    assert np.abs(state.params["network"]).max() < 60
    assert np.asarray(kept["std"]["network"]).max() <= 2.0 * (1 + 1e-5)
    assert np.isfinite(float(info.length))


def test_separated_classes_without_a_prior_never_make_a_point_that_is_not_finite():
    model = model_of("separated", prior=FlatPrior())
    method = Laplace.non_private(sampling=FULL, rank=2)
    _, state, _ = run(method, "separated", 40, model=model)
    w = np.asarray(state.params["network"])[:, 0]
    assert np.isfinite(w).all()
    assert np.mean((X @ w > 0) == (LINEAR > 0)) > 0.98


@pytest.mark.parametrize("bad", [1.0, 30.0, 1e10, 1e30, math.inf, math.nan])
@pytest.mark.parametrize("name", ["logistic", "poisson", "multinomial"])
def test_one_record_moves_all_that_is_released_by_the_clip_norm_at_most(name, bad):
    clip_norm = 1.5
    release = GaussianSum(sampling=FULL, clip_norm=clip_norm, noise_multiplier=2.0**-12)
    method = Laplace(release=release, rank=2)
    kernel, records = method.build(model_of(name)), records_of(name)
    step = jax.jit(kernel.step)
    shares = (math.sqrt(1 / LIKELIHOODS[name].num_outputs) / 2, 1 / 8, 1 / 2)

    def released(records):
        found = step(jax.random.key(1), kernel.init(seeded_key(0)), records)[0].releases
        curvature = (found.products, found.traces[:1], found.steepest[:1])
        evidence = found.evidence
        # Counters have the same noise as all other numbers.
        counters = evidence.norms[0] * np.sqrt(evidence.variances[0] / evidence.norm_variances[0])
        parts = [evidence.gradients[0], counters]
        parts += [method.scale * share * p for share, p in zip(shares, curvature, strict=True)]
        return np.concatenate([np.ravel(part).astype(np.float64) for part in parts])

    absent = records._replace(weight=records.weight.at[7].set(0.0))
    present = records._replace(x=records.x.at[7].set(bad))
    moved = np.linalg.norm(released(present) - released(absent))
    assert moved <= clip_norm * (1 + 1e-3)
    # The test sees the record: an ordinary one moves the sum.
    if bad == 1.0:
        assert moved > 0.1 * clip_norm


def large_model():
    return bayesian(
        MLP(num_inputs=60, num_outputs=10),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=10),
    )


def test_a_model_of_610_parameters_is_fitted_saved_and_says_what_its_intervals_are(tmp_path):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(800, 60)).astype(np.float32) / math.sqrt(60)
    y = np.argmax(x @ generator.normal(size=(60, 10)), axis=1).astype(np.int32)
    records = Record(jnp.asarray(x), jnp.asarray(y), jnp.ones(800))
    release = GaussianSum(sampling=FullBatch(num_records=800), clip_norm=2.0, noise_multiplier=1.0)
    budget = Budget(epsilon=8.0, delta=1e-4)
    plan = calibrate(Plan(method=Laplace(release=release), num_steps=8), budget)
    posterior = fit(plan, large_model(), records, budget=budget, seed=0).posterior
    (caveat,) = posterior.intervals.caveats
    assert "its Gaussian counts the privacy noise" in caveat
    assert "not corrected" in caveat
    assert "do not include" not in caveat
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        posterior.save(tmp_path)
    loaded = load_posterior(tmp_path)
    assert loaded.sampler == ShrunkGaussian(rank=4, num_outputs=10)
    found, again = (predict(each, x[:5]).probabilities for each in (posterior, loaded))
    np.testing.assert_array_equal(found, again)


def test_without_directions_the_posterior_has_independent_parameters():
    kernel, state, _ = run(Laplace.non_private(sampling=FULL, rank=0), "logistic", 3)
    assert kernel.sampler == DiagonalGaussian()
    assert set(kernel.retain(state)) == {"mean", "std"}


def test_the_clip_norm_leaves_nearly_all_synthetic_records_as_they_are():
    model = large_model()
    inputs = np.random.default_rng(1).normal(size=(300, 60)).astype(np.float32)
    synthetic = synthetic_records(model, inputs)
    half, most = (Laplace.clip_norm_for(model, synthetic, quantile=q) for q in (0.5, 0.99))
    assert half < most
    release = GaussianSum(
        sampling=FullBatch(num_records=300), clip_norm=most, noise_multiplier=1e-5
    )
    kernel = Laplace(release=release).build(model)
    state, _ = jax.jit(kernel.step)(jax.random.key(0), kernel.init(seeded_key(5)), synthetic)
    # One in a hundred is clipped, and few more are within three hundredths of it.
    assert 0.9 < float(state.releases.evidence.norms[0].sum()) <= 1.001


def test_equations_with_few_directions_are_solved_exactly():
    generator = np.random.default_rng(3)
    directions = np.linalg.qr(generator.normal(size=(5, 2)))[0].T
    curvature = FewDirections(
        jnp.array(0.5), jnp.array([3.0, 7.0]), jnp.asarray(directions, jnp.float32)
    )
    prior = generator.uniform(1, 2, 5).astype(np.float32)
    inner = 0.5 * np.eye(5) + directions.T @ np.diag([2.5, 6.5]) @ directions
    right = generator.normal(size=(5, 3)).astype(np.float32)
    wanted = np.linalg.solve(np.diag(prior) + inner, right)
    found = solved(jnp.asarray(prior), curvature, jnp.asarray(right.ravel()))
    np.testing.assert_allclose(found.reshape(5, 3), wanted, rtol=1e-4, atol=1e-5)
    times = curvature.times(jnp.asarray(right.ravel())).reshape(5, 3)
    np.testing.assert_allclose(times, inner @ right, rtol=1e-4, atol=1e-5)


def test_shrinkage_is_the_inverse_root():
    rows = np.random.default_rng(4).normal(size=(2, 6)).astype(np.float32) * 5
    factors = np.asarray(shrinkage(jnp.asarray(rows)), np.float64)
    root = np.eye(6) - factors.T @ factors
    np.testing.assert_allclose(
        root @ root, np.linalg.inv(np.eye(6) + rows.T @ rows), rtol=1e-3, atol=1e-4
    )


def test_a_wrong_rank_is_refused_by_name():
    with pytest.raises(InvalidArgumentError, match="rank must be"):
        Laplace.non_private(sampling=FULL, rank=-1)
    with pytest.raises(InvalidArgumentError, match=r"rank must be less than .*12; got 12"):
        Laplace.non_private(sampling=FULL, rank=DIM).build(model_of("logistic"))
    with pytest.raises(InvalidArgumentError, match="rank must be"):
        ShrunkGaussian(rank=0)
