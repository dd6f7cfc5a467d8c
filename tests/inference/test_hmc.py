"""HMC's costs, its settings, and what a chain does where numbers end."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.inference import HMC, Plan, calibrate, fit, load_checkpoint, save_checkpoint
from tacit.inference.method import objective_of
from tacit.metrics import diagnose
from tacit.models import Model
from tacit.privacy.accounting import GDP, epsilon
from tacit.privacy.budget import Budget
from tacit.privacy.clipping import Normalised
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Record

N = 60_000
FULL = FullBatch(num_records=N)


def engine(noise_multiplier, sampling=FULL, **changes):
    return GaussianSum(
        sampling=sampling, clip_norm=1.0, noise_multiplier=noise_multiplier, **changes
    )


def hmc(gradient, ratio, **changes):
    settings = {"step_size": 0.1, "num_leapfrog": 10} | changes
    return HMC(gradient=gradient, ratio=ratio, **settings)


@pytest.mark.parametrize("reuse", [False, True])
def test_in_gdp_a_run_costs_its_gradients_and_its_ratios(reuse):
    plan = Plan(
        method=hmc(engine(40.0), engine(30.0), reuse_gradient=reuse), num_steps=7, num_chains=3
    )
    num_gradients = 7 * 10 + 1 if reuse else 7 * 11
    mu = math.sqrt(3 * (num_gradients / 40.0**2 + 7 / 30.0**2))
    same = engine(1 / mu).cost
    assert GDP().epsilon(plan.cost, delta=1e-5) == pytest.approx(GDP().epsilon(same, delta=1e-5))


# The thesis' table 5.8 for MNIST, L = 10, delta 1e-5, with honest sensitivities: 1, 5, 21 steps.
@pytest.mark.parametrize(
    ("noise_multiplier", "expected"), [(4.0, (3.7, 9.6, 24.1)), (2.0, (8.385, 23.35, 64.55))]
)
def test_full_batch_epsilons_are_the_recomputed_ones_of_the_thesis(noise_multiplier, expected):
    method = hmc(engine(noise_multiplier), engine(noise_multiplier))
    found = [epsilon(method.cost(k), 1e-5, GDP()) for k in (1, 5, 21)]
    assert found == pytest.approx(expected, rel=0.015 if noise_multiplier == 4.0 else 1e-3)


@pytest.mark.parametrize(
    ("noise_multiplier", "expected"), [(4.0, (0.99, 2.4, 5.5)), (2.0, (2.15, 5.36, 12.76))]
)
def test_poisson_gradients_amplify_and_the_ratio_does_not(noise_multiplier, expected):
    poisson = PoissonBatch(num_records=N, batch_size=N // 10)
    method = hmc(engine(noise_multiplier, poisson), engine(noise_multiplier))
    found = [epsilon(method.cost(k), 1e-5) for k in (1, 5, 21)]
    assert found == pytest.approx(expected, rel=0.02)


def test_only_the_first_step_of_a_run_pays_for_the_gradient_at_its_start():
    method = hmc(engine(5.0), engine(3.0), reuse_gradient=True)
    gradient, ratio = engine(5.0).cost, engine(3.0).cost
    assert count_releases(method.cost(0)) == {}
    assert count_releases(method.cost(1)) == {gradient: 11, ratio: 1}
    assert count_releases(method.cost(2)) == {gradient: 21, ratio: 2}
    assert count_releases(method.cost(2, start=4)) == {gradient: 20, ratio: 2}


def test_calibration_scales_both_noises_alike():
    plan = Plan(method=hmc(engine(1.0), engine(0.5)), num_steps=3)
    budget = Budget(epsilon=4.0, delta=1e-5, accountant=GDP())
    method = calibrate(plan, budget).method
    assert method.gradient.noise_multiplier == pytest.approx(2 * method.ratio.noise_multiplier)
    assert 3.9 < budget.spent(method.cost(3)) <= 4.0


REFUSED = {
    "ratio.sampling must be FullBatch": {
        "ratio": engine(1.0, PoissonBatch(num_records=N, batch_size=100))
    },
    "ratio.clipping must be Flat": {"ratio": engine(1.0, clipping=Normalised())},
    "must have the same num_records": {"ratio": engine(1.0, FullBatch(num_records=3))},
    "must both have noise, or neither": {"ratio": engine(0.0)},
    "mass must have positive": {"mass": {"w": -1.0}},
    "jitter must lie in": {"jitter": 1.0},
    "num_leapfrog must be": {"num_leapfrog": 0},
    "step_size must be": {"step_size": 0.0},
}


@pytest.mark.parametrize("message", REFUSED)
def test_settings_that_cannot_be_right_are_refused_by_name(message):
    settings = {"gradient": engine(1.0), "ratio": engine(1.0)} | REFUSED[message]
    with pytest.raises(InvalidArgumentError, match=message):
        hmc(**settings)


# A small posterior: two weights and a scale, which have masses of their own.
NUM = 8
records = Record(
    jnp.asarray(np.random.default_rng(0).normal(size=(NUM, 2)), jnp.float32),
    jnp.asarray(np.random.default_rng(1).normal(size=NUM), jnp.float32),
    jnp.ones(NUM),
)
model = Model(
    lambda key: {"w": 0.1 * jax.random.normal(key, (2,)), "b": jnp.zeros(())},
    lambda p: -0.5 * jnp.sum(p["w"] ** 2) - 0.5 * p["b"] ** 2,
    lambda p, record, key: -0.5 * (record.y - record.x @ p["w"] - p["b"]) ** 2,
    lambda p, x, key: x @ p["w"] + p["b"],
)
small = FullBatch(num_records=NUM)
method = HMC(
    gradient=engine(0.5, small),
    ratio=engine(0.5, small),
    step_size=0.2,
    num_leapfrog=3,
    mass={"w": np.array([1.0, 2.0]), "b": 0.5},
    jitter=0.1,
    reuse_gradient=True,
)
ANY = Budget(epsilon=math.inf, delta=1e-5)


@pytest.fixture(scope="module")
def saved_and_whole():
    saved = {}
    whole = fit(
        Plan(method=method, num_steps=40, num_chains=2, thinning=5),
        model,
        records,
        budget=ANY,
        seed=5,
        chunk_steps=20,
        on_chunk=lambda checkpoint: saved.update({checkpoint.step: checkpoint}),
    )
    return saved, whole


def test_a_fit_reports_its_acceptance_rate_and_its_chains_can_be_diagnosed(saved_and_whole):
    _, whole = saved_and_whole
    rate, probability, step_size = whole.info
    assert rate.shape == (2, 8)
    assert 0.1 < float(rate.mean()) < 1.0
    assert float(rate.mean()) == pytest.approx(float(probability.mean()), abs=5 * 0.5 / 80**0.5)
    assert (np.abs(step_size / 0.2 - 1) <= 0.1).all()
    assert np.unique(step_size).size == step_size.size
    assert whole.statement.releases == 2 * (40 * 4 + 1)
    assert all(np.isfinite(diagnose(whole.posterior.kept)))


def test_a_resumed_run_goes_on_with_the_gradient_and_the_masks_that_it_had(
    saved_and_whole, tmp_path
):
    saved, whole = saved_and_whole
    save_checkpoint(saved[20], tmp_path)
    checkpoint = load_checkpoint(tmp_path, whole.plan, model, records)
    resumed = fit(whole.plan, model, records, budget=ANY, seed=5, resume=checkpoint)
    jax.tree.map(np.testing.assert_array_equal, whole.posterior.kept, resumed.posterior.kept)
    assert count_releases(resumed.checkpoint.cost.event) == count_releases(whole.plan.cost)


def test_the_stored_key_is_none_that_noise_or_batches_come_from(saved_and_whole):
    saved, _ = saved_and_whole
    stored = np.asarray(saved[20].states.record_key)
    root = seeded_key(5)
    init_key, run_key = jax.random.split(root)
    others = [root, init_key, run_key, *jax.random.split(run_key, 2)]
    assert stored.shape == (2, 8)
    assert not any((row == jax.random.key_data(key)).all() for row in stored for key in others)
    # It hangs on the start alone: chains have their own, and no step changes it.
    assert (stored[0] != stored[1]).any()
    np.testing.assert_array_equal(stored, saved[40].states.record_key)


def test_a_record_key_fixes_what_a_record_draws_and_nothing_else():
    def drawn(call, record_key, noise_multiplier):
        release = engine(noise_multiplier, small)
        return float(
            release(
                jax.random.key(call),
                lambda record, key: jax.random.uniform(key),
                records,
                record_key=None if record_key is None else jax.random.key(record_key),
            )
        )

    assert drawn(0, 7, 0.0) == drawn(1, 7, 0.0) != drawn(0, 8, 0.0)
    assert drawn(0, None, 0.0) != drawn(1, None, 0.0)
    assert drawn(0, 7, 0.5) != drawn(1, 7, 0.5)


def one_step(method):
    kernel = method.build(model)
    state = kernel.init(jax.random.key(0))
    return state, *jax.jit(kernel.step)(jax.random.key(1), state, records)


def test_a_mass_that_does_not_fit_the_parameters_is_refused():
    for mass in ({"w": 1.0}, {"w": np.ones(3), "b": 1.0}):
        with pytest.raises(InvalidArgumentError, match="begins like the parameters"):
            dataclasses.replace(method, mass=mass).build(model)


def test_a_trajectory_that_diverges_is_rejected_and_says_so():
    wild = dataclasses.replace(method, step_size=1e15)
    before, after, info = one_step(wild)
    jax.tree.map(np.testing.assert_array_equal, before.params, after.params)
    assert float(info.acceptance) == float(info.acceptance_probability) == 0.0


@pytest.mark.parametrize(("bad_at", "sign"), [("new", -1.0), ("old", 1.0)])
def test_records_without_a_finite_loss_push_away_as_far_as_the_clip_lets_them(bad_at, sign):
    cliff = model._replace(
        log_prior=lambda p: jnp.zeros(()),
        log_likelihood=lambda p, record, key: jnp.where(p["b"] > 1, jnp.nan, 0.0),
    )
    inside, outside = ({"w": jnp.zeros(2), "b": jnp.asarray(b)} for b in (0.0, 2.0))
    ends = (inside, outside) if bad_at == "new" else (outside, inside)
    quiet = dataclasses.replace(method, gradient=engine(1e-6, small), ratio=engine(1e-6, small))
    log_ratio, variance, _ = quiet._log_ratio(
        jax.random.key(0),
        objective_of(cliff),
        ends,
        records,
        record_key=jax.random.key(1),
    )
    # Eight records, a clip of one for each unit of distance, a distance of two.
    assert float(log_ratio) == pytest.approx(sign * 16, rel=1e-4)
    assert float(variance) == pytest.approx((1e-6 * 2) ** 2)


def test_a_proposal_that_goes_nowhere_has_a_ratio_of_one():
    here = model.init(jax.random.key(0))
    log_ratio, variance, _ = method._log_ratio(
        jax.random.key(0),
        objective_of(model),
        (here, here),
        records,
        record_key=jax.random.key(1),
    )
    assert float(log_ratio) == float(variance) == 0.0


def test_without_privacy_small_steps_conserve_the_energy():
    exact = HMC.non_private(num_records=NUM, step_size=1e-3, num_leapfrog=3)
    before, after, info = one_step(exact)
    assert float(info.acceptance_probability) == pytest.approx(1.0, abs=1e-4)
    assert float(jnp.abs(after.params["w"] - before.params["w"]).sum()) > 0
