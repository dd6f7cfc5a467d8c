"""What is stated of a run holds however somebody chose to stop it."""

import math

import dp_accounting as dpa
import numpy as np
import pytest

from tacit.errors import UnprovenAccountingError
from tacit.privacy.accounting import GDP, PLD, RDP
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.budget import Budget
from tacit.privacy.statement.text import FIXED
from tacit.privacy.stopping import AnytimeRDP, Declared, claim_of

DELTA, SIGMA, NUM_STEPS = 0.01, 10.0, 300


def steps(number, noise_multiplier=SIGMA):
    return dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise_multiplier), number)


def stated(declared):
    """The epsilon that is stated after each number of full-batch steps."""
    budget = Budget(epsilon=100.0, delta=DELTA, accountant=GDP())
    claims = [
        claim_of(steps(t), num_steps=t, declared=declared, budget=budget)
        for t in range(1, NUM_STEPS + 1)
    ]
    return np.array([claim.budget.spent(claim.cost) for claim in claims])


def true_deltas(epsilons, excess, num_runs=100_000):
    """Of each run, what it adds to the true delta if it stops once its loss exceeds the claim."""
    generator, mu = np.random.default_rng(0), 1 / SIGMA
    loss, gain, runs = np.zeros(num_runs), np.zeros(num_runs), np.ones(num_runs, bool)
    for t, epsilon in enumerate(epsilons):
        loss += mu**2 / 2 + mu * generator.normal(size=num_runs)
        now = -np.expm1(np.minimum(epsilon - loss, 0))
        stops = runs & ((now > excess) | (t == NUM_STEPS - 1))
        gain[stops] = now[stops]
        runs &= ~stops
    return gain


@pytest.mark.parametrize("excess", [0.0, 0.2, 0.4])
@pytest.mark.parametrize("declared", [Declared(NUM_STEPS, steps(NUM_STEPS)), None])
def test_no_stopping_rule_makes_the_true_delta_larger_than_stated(declared, excess):
    gain = true_deltas(stated(declared), excess)
    # Four standard errors of the mean.
    assert gain.mean() <= DELTA + 4 * gain.std() / math.sqrt(len(gain))


def test_the_epsilon_of_the_steps_made_would_not_hold():
    naive = [GDP().epsilon(steps(t), delta=DELTA) for t in range(1, NUM_STEPS + 1)]
    gain = true_deltas(naive, 0.2)
    assert gain.mean() - 4 * gain.std() / math.sqrt(len(gain)) > 3 * DELTA


def test_the_best_order_chosen_afterwards_is_below_what_holds_at_any_time():
    cost = steps(20)
    fixed, best, anytime = (a.epsilon(cost, delta=1e-5) for a in (PLD(), RDP(), AnytimeRDP()))
    assert fixed < best < anytime < 1.3 * fixed
    assert AnytimeRDP().delta(cost, epsilon=anytime) == pytest.approx(1e-5, rel=1e-3)


def test_nothing_released_costs_nothing():
    assert AnytimeRDP().epsilon(dpa.NoOpDpEvent(), delta=1e-5) == 0
    assert AnytimeRDP().delta(dpa.NoOpDpEvent(), epsilon=0.0) == 0


def test_a_claim_is_that_of_what_was_declared_until_more_is_made():
    budget, declared = Budget(epsilon=9.0, delta=1e-5), Declared(100, steps(100))

    def claimed(number, declared, noise_multiplier=SIGMA):
        cost = steps(number, noise_multiplier)
        return claim_of(cost, num_steps=number, declared=declared, budget=budget)

    early, whole, beyond = (claimed(number, declared) for number in (40, 100, 101))
    assert early.cost == whole.cost == declared.cost
    assert early.budget == whole.budget == budget
    assert early.length == "stated for the 100 steps that were declared; 40 were made"
    assert whole.length == FIXED
    for claim in (beyond, claimed(40, None), claimed(40, declared, noise_multiplier=9.0)):
        assert claim.cost != declared.cost
        assert isinstance(claim.budget.accountant, AnytimeRDP)
        assert "wherever a run is stopped" in claim.length


def test_where_nothing_is_promised_nothing_is_computed():
    claim = claim_of(
        dpa.NonPrivateDpEvent(), num_steps=3, declared=None, budget=Budget.non_private()
    )
    assert claim.budget == Budget.non_private()


def test_a_cost_without_a_bound_at_any_time_names_the_remedy():
    cost = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(2.0))
    assert PLD(adjacency=Adjacency.REPLACE_ONE).epsilon(cost, delta=1e-5) > 0
    with pytest.raises(UnprovenAccountingError, match=r"declare it: give num_steps to DPSVI"):
        AnytimeRDP(adjacency=Adjacency.REPLACE_ONE).epsilon(cost, delta=1e-5)
