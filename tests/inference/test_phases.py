"""Runs in phases: each from where the last ended, all of them counted, none begun beyond budget."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.inference import (
    HMC,
    SGHMC,
    Phase,
    Plan,
    calibrate_phases,
    fit_phases,
    phases,
    tempered,
)
from tacit.models import Model
from tacit.privacy.accounting import GDP
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.cost import composed, count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Record

N = 20
RECORDS = Record(jnp.zeros((N, 1)), jnp.linspace(-1.0, 1.0, N), jnp.ones(N))
MODEL = Model(
    jax.random.normal,
    lambda w: -0.5 * w**2,
    lambda w, record, key: -0.5 * (record.y - w) ** 2,
    lambda w, x, key: w,
)
full = FullBatch(num_records=N)
BUDGETS = [Budget(epsilon=epsilon, delta=1e-5, accountant=GDP()) for epsilon in (3.0, 8.0)]


def release(noise_multiplier=1.0):
    return GaussianSum(sampling=full, clip_norm=1.0, noise_multiplier=noise_multiplier)


def hmc(num_steps, *, temperature=1.0, num_chains=2, step_size=0.1):
    method = HMC(gradient=release(), ratio=release(), step_size=step_size, num_leapfrog=2)
    plan = Plan(method=method, num_steps=num_steps, num_chains=num_chains, thinning=1)
    return Phase(plan=plan, transform=lambda model: tempered(model, temperature))


def downhill(num_steps, *, num_chains=2):
    method = SGHMC.fixed_noise(release=release(), step_size=1e-2, friction=0.5)
    return Phase(plan=Plan(method=method, num_steps=num_steps, num_chains=num_chains))


CALIBRATED = calibrate_phases([downhill(5), hmc(6, temperature=0.5)], BUDGETS)


def test_each_phase_is_calibrated_so_that_all_until_its_end_are_within_its_budget():
    costs = [phase.plan.cost for phase in CALIBRATED]
    assert 2.95 < BUDGETS[0].spent(costs[0]) <= 3.0
    assert 7.95 < BUDGETS[1].spent(composed(*costs)) <= 8.0


def test_the_last_statement_counts_all_phases_and_a_ledger_is_charged_for_them():
    ledger = InMemoryLedger(budget=BUDGETS[1])
    fits = fit_phases(CALIBRATED, MODEL, RECORDS, budget=BUDGETS[1], seed=0, ledger=ledger)
    whole = count_releases(composed(*(phase.plan.cost for phase in CALIBRATED)))
    assert count_releases(fits[-1].checkpoint.cost.event) == whole
    assert count_releases(composed(*ledger.costs)) == whole
    assert float(fits[0].statement.epsilon) <= 3.0
    assert 7.9 < float(fits[1].statement.epsilon) <= 8.0


def test_every_chain_goes_on_from_where_it_ended():
    # Steps so short that no state moves by more than a thousandth.
    last = hmc(1, num_chains=5, step_size=1e-5)
    first, second = fit_phases(
        [downhill(4, num_chains=5), last],
        MODEL,
        RECORDS,
        budget=Budget(epsilon=math.inf, delta=1e-5),
        seed=3,
    )
    ends, starts = first.posterior.chains[:, -1], second.posterior.chains[:, 0]
    assert np.ptp(ends) > 0.1
    np.testing.assert_allclose(starts, ends, atol=1e-3)


@pytest.fixture
def no_run(monkeypatch):
    def refused(*others, **settings):
        raise AssertionError("a record would have been read")

    monkeypatch.setattr(phases, "fit", refused)


def test_phases_that_exceed_budget_or_ledger_together_are_refused_before_the_first(no_run):
    with pytest.raises(BudgetExceededError, match="but the budget is 3"):
        fit_phases(CALIBRATED, MODEL, RECORDS, budget=BUDGETS[0], seed=0)
    ledger = InMemoryLedger(budget=BUDGETS[0])
    with pytest.raises(BudgetExceededError, match="ledger refuses"):
        fit_phases(CALIBRATED, MODEL, RECORDS, budget=BUDGETS[1], seed=0, ledger=ledger)
    assert ledger.costs == []


def test_phases_that_do_not_fit_together_are_refused_by_name(no_run):
    for unequal in ([downhill(2), hmc(2, num_chains=3)], []):
        with pytest.raises(InvalidArgumentError, match="same num_chains"):
            fit_phases(unequal, MODEL, RECORDS, budget=BUDGETS[1])
    with pytest.raises(InvalidArgumentError, match="one for each of 2 phases"):
        calibrate_phases(CALIBRATED, BUDGETS[:1])
    with pytest.raises(InvalidArgumentError, match="temperature"):
        tempered(MODEL, 0.0)


def test_a_temperature_divides_the_likelihood_and_nothing_else():
    cold, record = tempered(MODEL, 0.25), jax.tree.map(lambda leaf: leaf[0], RECORDS)
    w, key = jnp.asarray(0.7), jax.random.key(0)
    assert float(cold.log_likelihood(w, record, key)) == pytest.approx(
        4 * float(MODEL.log_likelihood(w, record, key))
    )
    assert cold.log_prior is MODEL.log_prior
