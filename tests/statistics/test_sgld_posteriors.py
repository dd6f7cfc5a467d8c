"""SGLD on posteriors known in closed form: right mean, right variance, right temperature."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.inference import SGLD, Plan, fit
from tacit.models import Model
from tacit.privacy.budget import Budget
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.typing import Record

ANY = Budget(epsilon=math.inf, delta=1e-5)
DIM = 2000  # independent coordinates are as good as chains


def records(y):
    y = jnp.asarray(y, jnp.float32)
    return Record(jnp.zeros((len(y), 1)), y, jnp.ones(len(y)))


def standard_normal():
    """One record whose loss is |w|^2 / 2: every coordinate of w is N(0, 1)."""
    return Model(
        lambda key: jnp.zeros(DIM),
        lambda w: jnp.zeros(()),
        lambda w, record, key: -0.5 * jnp.sum(w**2),
        lambda w, x, key: w,
    )


def normal_mean(prior_std, dim=DIM):
    """Coordinates with prior N(0, prior_std^2); each record observes all of them with N(0, 1)."""
    return Model(
        lambda key: jnp.zeros(dim),
        lambda w: -0.5 * jnp.sum(w**2) / prior_std**2,
        lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
        lambda w, x, key: w,
    )


def draws(method, model, data, *, num_steps, burn_in, thinning):
    plan = Plan(method=method, num_steps=num_steps, burn_in=burn_in, thinning=thinning)
    budget = ANY if method.release.is_private else Budget.non_private()
    return np.asarray(fit(plan, model, data, budget=budget, seed=0).posterior.kept)[0]


@pytest.mark.parametrize("step_size", [0.1, 0.5])
def test_private_full_batch_sgld_has_the_exact_stationary_variance(step_size):
    # Clip far above any gradient norm, so that nothing is clipped: |w| stays near sqrt(DIM).
    method = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=1), clip_norm=4 * math.sqrt(DIM), step_size=step_size
    )
    every = math.ceil(8 / step_size)
    kept = draws(
        method,
        standard_normal(),
        records([0.0]),
        num_steps=30 * every,
        burn_in=5 * every,
        thinning=every,
    )
    expected = 1 / (1 - step_size / 4)
    effective = kept.size * (1 - math.exp(-8)) / (1 + math.exp(-8))
    assert kept.var() == pytest.approx(expected, abs=5 * expected * math.sqrt(2 / effective))
    assert abs(kept.mean()) < 5 * math.sqrt(expected / effective)


def test_zhangs_form_samples_at_temperature_one_half():
    eta = 0.1
    method = SGLD.zhang(
        sampling=FullBatch(num_records=1), clip_norm=4 * math.sqrt(DIM), learning_rate=eta
    )
    kept = draws(
        method, standard_normal(), records([0.0]), num_steps=1200, burn_in=200, thinning=50
    )
    expected = 1 / (2 - eta)
    assert kept.var() == pytest.approx(expected, abs=5 * expected * math.sqrt(2 / kept.size))


@pytest.mark.parametrize("is_private", [True, False])
def test_sgld_finds_mean_and_variance_of_a_conjugate_posterior(is_private):
    y = np.random.default_rng(0).normal(0.7, 1.0, size=20)
    prior_std = 0.5
    precision = len(y) + 1 / prior_std**2
    mean, variance = y.sum() / precision, 1 / precision
    step_size = 0.1 * variance
    sampling = FullBatch(num_records=len(y))
    if is_private:
        method = SGLD.fixed_temperature(
            sampling=sampling, clip_norm=6 * math.sqrt(DIM), step_size=step_size
        )
    else:
        method = SGLD.non_private(sampling=sampling, step_size=step_size)
    kept = draws(
        method, normal_mean(prior_std), records(y), num_steps=3000, burn_in=500, thinning=125
    )
    expected = variance / (1 - step_size * precision / 4)
    assert kept.mean() == pytest.approx(mean, abs=5 * math.sqrt(variance / kept.size) * 1.2)
    assert kept.var() == pytest.approx(expected, abs=5 * expected * math.sqrt(2 / kept.size) * 1.2)


@pytest.mark.parametrize("temperature", [0.25, 2.0])
def test_the_variance_scales_with_the_temperature(temperature):
    method = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=1),
        clip_norm=8 * math.sqrt(DIM),
        step_size=0.1,
        temperature=temperature,
    )
    kept = draws(
        method, standard_normal(), records([0.0]), num_steps=1500, burn_in=300, thinning=80
    )
    expected = temperature / (1 - 0.1 / 4)
    assert kept.var() == pytest.approx(expected, rel=5 * math.sqrt(2 / kept.size))


def test_poisson_batches_heat_the_chain_so_that_the_temperature_is_a_lower_bound():
    y = np.random.default_rng(1).normal(size=200)
    sampling = PoissonBatch(num_records=200, batch_size=20, max_batch_size=60)
    variance = 1 / 200
    method = SGLD.fixed_temperature(sampling=sampling, clip_norm=40.0, step_size=0.1 * variance)
    plan = Plan(method=method, num_steps=2400, burn_in=400, thinning=100, num_chains=4)
    model = normal_mean(1e3, dim=100)
    kept = np.asarray(fit(plan, model, records(y), budget=ANY, seed=0).posterior.kept)
    # The same batch serves all coordinates, so their common part carries the sampling noise.
    assert kept.var() > 1.1 * variance
    assert method.temperature() == pytest.approx(1.0, rel=1e-5)


def test_clipping_moves_the_target_to_the_potential_of_the_clipped_gradients():
    # One far outlier: unclipped it pulls the mean to 10; clipped at 1 it counts as one sign.
    y = np.concatenate([np.zeros(9), [100.0]])
    clipped = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=10), clip_norm=1.0, step_size=0.01
    )
    plan = Plan(method=clipped, num_steps=6000, burn_in=1000, thinning=50, num_chains=4)
    kept = fit(plan, normal_mean(1e3, dim=1), records(y), budget=ANY, seed=0).posterior.kept
    assert 0.0 < float(jnp.mean(kept)) < 1.0


def test_several_chains_agree():
    method = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=1), clip_norm=4 * math.sqrt(DIM), step_size=0.3
    )
    plan = Plan(method=method, num_steps=400, burn_in=100, thinning=30, num_chains=3)
    kept = np.asarray(
        fit(plan, standard_normal(), records([0.0]), budget=ANY, seed=1).posterior.kept
    )
    variances = kept.var(axis=(1, 2))
    assert np.ptp(variances) < 10 * math.sqrt(2 / kept[0].size) * variances.mean()
    assert jax.tree.leaves(kept)[0].shape == (3, 10, DIM)
