"""SGHMC and cyclical steps on posteriors known in closed form."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from tacit.inference import SGHMC, SGLD, Plan, fit
from tacit.inference.schedules import Constant, Cyclical
from tacit.models import Model
from tacit.privacy.budget import Budget
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.typing import Record

DIM = 2000  # independent coordinates are as good as chains
ANY = Budget(epsilon=math.inf, delta=1e-5)


def records(y):
    y = jnp.asarray(y, jnp.float32)
    return Record(jnp.zeros((len(y), 1)), y, jnp.ones(len(y)))


def normal_mean(prior_precision, dim=DIM):
    """Coordinates with a normal prior; each record observes all of them with N(0, 1)."""
    return Model(
        lambda key: jnp.zeros(dim),
        lambda w: -0.5 * prior_precision * jnp.sum(w**2),
        lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
        lambda w, x, key: w,
    )


def stationary_covariance(step_size, friction, precision, temperature):
    """Of position and momentum, from the discrete Lyapunov equation S = A S A' + Q."""
    time, kept = math.sqrt(step_size), 1 - friction
    # m' = kept m - time precision w + noise, then w' = w + time m'.
    transition = np.array([[1 - time**2 * precision, time * kept], [-time * precision, kept]])
    direction = np.array([time, 1.0])
    noise = 2 * friction * temperature * np.outer(direction, direction)
    return linalg.solve_discrete_lyapunov(transition, noise)


@pytest.mark.parametrize("friction", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("step_size", [0.01, 0.5])
def test_the_stated_variance_solves_the_lyapunov_equation(step_size, friction):
    covariance = stationary_covariance(step_size, friction, precision=1.7, temperature=1.3)
    stated = 1.3 / 1.7 / (1 - step_size * 1.7 / (2 * (2 - friction)))
    assert covariance[0, 0] == pytest.approx(stated)


def sampler(is_private, num_records, **settings):
    sampling = FullBatch(num_records=num_records)
    if not is_private:
        return SGHMC.non_private(sampling=sampling, **settings)
    # Far above any gradient norm: nothing is clipped.
    return SGHMC.fixed_temperature(sampling=sampling, clip_norm=8 * math.sqrt(DIM), **settings)


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize(
    ("step_size", "friction", "temperature"), [(0.5, 0.3, 1.0), (0.2, 0.1, 0.5), (1.0, 1.0, 2.0)]
)
def test_the_chain_has_the_exact_stationary_covariance(
    step_size, friction, temperature, is_private
):
    method = sampler(is_private, 1, step_size=step_size, friction=friction, temperature=temperature)
    budget = ANY if is_private else Budget.non_private()
    expected = stationary_covariance(step_size, friction, 1.0, temperature)
    plan = Plan(method=method, num_steps=1500, burn_in=300, thinning=80)
    result = fit(plan, normal_mean(0.0), records([0.0]), budget=budget, seed=0)
    kept = np.asarray(result.posterior.kept)[0]
    # After 80 steps at most exp(-4) of a state is left, so the draws are as good as independent.
    tolerance = 5 * math.sqrt(2 / kept.size) * 1.02
    assert kept.var() == pytest.approx(expected[0, 0], rel=tolerance)
    assert abs(kept.mean()) < 5 * math.sqrt(expected[0, 0] / kept.size) * 1.02
    state = jax.tree.map(lambda leaf: leaf[0], result.checkpoint.states)
    assert float(state.momentum.var()) == pytest.approx(expected[1, 1], rel=5 * math.sqrt(2 / DIM))
    cross = float(jnp.mean(state.params * state.momentum))
    spread = math.sqrt((expected[0, 0] * expected[1, 1] + expected[0, 1] ** 2) / DIM)
    assert cross == pytest.approx(expected[0, 1], abs=5 * spread)


@pytest.mark.parametrize("is_private", [True, False])
def test_the_chain_finds_mean_and_variance_of_a_conjugate_posterior(is_private):
    y = np.random.default_rng(0).normal(0.7, 1.0, size=20)
    precision = len(y) + 4.0
    step_size = 0.2 / precision
    method = sampler(is_private, len(y), step_size=step_size, friction=0.2)
    plan = Plan(method=method, num_steps=1500, burn_in=300, thinning=60)
    budget = ANY if is_private else Budget.non_private()
    kept = np.asarray(fit(plan, normal_mean(4.0), records(y), budget=budget, seed=0).posterior.kept)
    variance = stationary_covariance(step_size, 0.2, precision, 1.0)[0, 0]
    assert kept.mean() == pytest.approx(
        y.sum() / precision, abs=5 * math.sqrt(variance / kept.size)
    )
    assert kept.var() == pytest.approx(variance, rel=5 * math.sqrt(2 / kept.size))
    assert variance == pytest.approx(1 / precision, rel=0.1)


def test_poisson_batches_heat_the_chain_so_that_the_temperature_is_a_lower_bound():
    y = np.random.default_rng(1).normal(size=200)
    sampling = PoissonBatch(num_records=200, batch_size=20, max_batch_size=60)
    method = SGHMC.fixed_temperature(
        sampling=sampling, clip_norm=40.0, step_size=0.1 / 200, friction=0.2
    )
    plan = Plan(method=method, num_steps=1600, burn_in=400, thinning=60, num_chains=4)
    kept = fit(plan, normal_mean(1e-6, dim=100), records(y), budget=ANY, seed=0).posterior.kept
    # The same batch serves all coordinates, so their common part carries the sampling noise.
    assert float(jnp.var(kept)) > 1.1 / 200
    assert method.temperature() == pytest.approx(1.0, rel=1e-5)


# Two modes at -3 and 3 of std 0.3, eighteen times their width apart: the barrier has exp(-39) of
# their density.
bimodal = Model(
    lambda key: jnp.full((), -3.0),
    lambda w: jnp.zeros(()),
    lambda w, record, key: jnp.logaddexp(*(-0.5 * ((w - mode) / 0.3) ** 2 for mode in (-3.0, 3.0))),
    lambda w, x, key: w,
)


@pytest.mark.parametrize("method", [SGLD, SGHMC])
def test_cyclical_steps_visit_modes_that_constant_ones_never_reach(method):
    one = FullBatch(num_records=1)
    settings = {"sampling": one, "clip_norm": 12.0}
    if method is SGHMC:
        settings["friction"] = 0.3
    cycle = Cyclical(num_steps=200, floor=0.004)

    def kept(step_size, schedule):
        chain = method.fixed_temperature(step_size=step_size, schedule=schedule, **settings)
        plan = Plan(method=chain, num_steps=20_000, thinning=200)
        return np.asarray(fit(plan, bimodal, records([0.0]), budget=ANY, seed=0).posterior.kept)[0]

    # The constant run has the step size with which cycles end, and as many releases.
    constant = kept(3.0 * cycle.floor, Constant())
    assert (constant < 0).all()
    cyclical = kept(3.0, cycle)
    changes = np.count_nonzero(np.diff(np.sign(cyclical)))
    assert changes > 20
    assert 0.25 < (cyclical > 0).mean() < 0.75
    # What ends a cycle has come to rest in a mode.
    assert np.abs(np.abs(cyclical) - 3.0).max() < 5 * 0.3
    assert np.abs(cyclical).std() == pytest.approx(0.3, rel=0.35)
