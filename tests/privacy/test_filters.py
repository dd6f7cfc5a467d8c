"""Filters: what they let pass is private, also when every cost is chosen after the last result."""

import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting import rdp
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from tacit.errors import BudgetExceededError, InvalidArgumentError, UnprovenAccountingError
from tacit.privacy.accounting import PLD, RDP, Adjacency, divergences
from tacit.privacy.accounting.divergences import gaussian_epsilon
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import smallest_noise
from tacit.privacy.filters import FilterAccountant, GDPFilter, RDPFilter, Spending, filter_from_json

DELTA = 1e-5
RULES = [RDPFilter.of_budget(epsilon=1.0, delta=DELTA), GDPFilter(epsilon=1.0, delta=DELTA)]
NAMES = [rule.name for rule in RULES]


def poisson(rate, noise, count):
    return dpa.SelfComposedDpEvent(
        dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise)), count
    )


@pytest.mark.parametrize(
    "cost", [dpa.GaussianDpEvent(4.3), poisson(0.03, 4.2, 1000), poisson(0.01, 1.2, 200)]
)
def test_the_rdp_filter_converts_the_divergences_of_dp_accounting_by_the_mixture(cost):
    rule = RULES[0]
    accountant = rdp.RdpAccountant(divergences.ORDERS, dpa.NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(cost)
    # The definition: the least epsilon with z - e^epsilon <= delta F(z), on a fine grid of z.
    u = np.linspace(0, 4, 20_001)[:, np.newaxis]
    with np.errstate(over="ignore"):
        logs = divergences.ORDERS * u - (divergences.ORDERS - 1) * accountant.rdp
        mixture = np.exp(logs) @ np.array(rule.weights)
        wanted = math.log(np.max(np.exp(u[:, 0]) - rule.delta * mixture))
    assert rule.spent(rule.weigh(cost), delta=rule.delta) == pytest.approx(wanted, abs=1e-6)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.floats(0.3, 100.0), st.integers(1, 50)), min_size=1, max_size=4),
    st.sampled_from(RULES),
)
def test_a_filter_never_claims_less_than_the_truth(costs, rule):
    spending, squared_mu = Spending.none(rule), 0.0
    for noise, count in costs:
        before = spending.epsilon
        spending = spending.plus(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise), count))
        squared_mu += count / noise**2
        assert spending.epsilon >= before
    assert spending.epsilon >= gaussian_epsilon(math.sqrt(squared_mu), rule.delta) - 1e-12
    assert spending.is_within_budget == (spending.epsilon <= 1.0)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from([0.01, 0.1]), st.sampled_from([1.0, 2.0, 6.0])),
        min_size=1,
        max_size=30,
    )
)
def test_whatever_is_asked_for_what_was_paid_is_within_budget(wishes):
    spending, paid = Spending.none(RULES[0]), []
    for rate, noise in wishes:
        try:
            spending = spending.require(poisson(rate, noise, 20))
        except BudgetExceededError:
            continue
        paid.append(poisson(rate, noise, 20))
    assert spending.epsilon <= 1.0
    if paid:
        assert PLD().epsilon(dpa.ComposedDpEvent(paid), delta=DELTA) <= 1.0
        assert spending.num_charges == len(paid)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_adversary_who_adapts_the_second_cost_to_the_first_result_gains_nothing(rule):
    first = 6.0
    grid = np.linspace(-12, 12, 1501)
    mass = norm.pdf(grid) * (grid[1] - grid[0])  # of the noise, in standard deviations
    before = Spending.none(rule).require(dpa.GaussianDpEvent(first))

    def ratios(noise, rate):
        """Densities with the record over those without, at points drawn without."""
        return 1 - rate + rate * np.exp(grid / noise - 0.5 / noise**2)

    # For each menu entry the most that the filter lets pass, as one release.
    menu = [np.ones_like(grid)]  # stop
    for rate in (1.0,) if isinstance(rule, GDPFilter) else (1.0, 0.3, 0.05):

        def cost(noise, rate=rate):
            event = dpa.GaussianDpEvent(noise)
            return event if rate == 1.0 else dpa.PoissonSampledDpEvent(rate, event)

        budget = Budget(1.0, rule.delta, FilterAccountant(before))
        noise = smallest_noise(cost, budget)
        assert before.plus(cost(noise)).is_within_budget
        assert not before.plus(cost(0.97 * noise)).is_within_budget
        menu.append(ratios(noise, rate))

    edge = math.exp(rule.epsilon)
    known = ratios(first, 1.0)
    with_record, without = 0.0, 0.0
    for weight, ratio in zip(mass, known, strict=True):
        # The adversary sees the first result and takes what hurts most.
        with_record += weight * max(mass @ np.maximum(0, ratio * z - edge) for z in menu)
        without += weight * max(mass @ np.maximum(0, 1 - edge * ratio * z) for z in menu)
    assert max(with_record, without) <= rule.delta
    # Nearly all of delta is really used: a filter that let a little more pass would fail here.
    if isinstance(rule, GDPFilter):
        assert with_record > 0.9 * rule.delta


def test_what_one_plan_pays_for_being_adaptive_is_a_few_percent():
    for epsilon in (0.5, 1.0, 3.0, 8.0):
        rule = RDPFilter.of_budget(epsilon=epsilon, delta=DELTA)
        noise = smallest_noise(
            lambda noise: poisson(0.03, noise, 1000), Budget(epsilon, DELTA, RDP())
        )
        spent = rule.spent(rule.weigh(poisson(0.03, noise, 1000)), delta=rule.delta)
        assert 1.0 < spent / epsilon < 1.06


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_nothing_without_noise_is_ever_paid(rule):
    for cost in (dpa.NonPrivateDpEvent(), dpa.GaussianDpEvent(0.0)):
        with pytest.raises(BudgetExceededError):
            Spending.none(rule).require(cost)
    assert Spending.none(rule).epsilon == 0.0


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_filter_comes_back_from_json_exactly(rule):
    assert filter_from_json(rule.to_json()) == rule


def test_a_filter_with_orders_of_another_version_is_refused():
    with pytest.raises(InvalidArgumentError, match="of this version"):
        filter_from_json(RULES[0].to_json() | {"orders": [2.0, 3.0]})


def test_a_budget_that_could_pay_for_nothing_is_refused_at_once():
    with pytest.raises(InvalidArgumentError, match="Use the GDP filter"):
        RDPFilter.of_budget(epsilon=0.01, delta=1e-9)
    for wrong in ({"epsilon": math.inf}, {"epsilon": -1.0}, {"delta": 0.0}, {"delta": 1.0}):
        with pytest.raises(InvalidArgumentError):
            RDPFilter.of_budget(**({"epsilon": 1.0, "delta": 1e-5} | wrong))


def test_the_gdp_filter_refuses_sampled_batches():
    with pytest.raises(UnprovenAccountingError):
        RULES[1].weigh(poisson(0.1, 1.0, 1))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_delta_and_epsilon_on_top_of_what_was_paid_are_inverse(rule):
    accountant = FilterAccountant(Spending.none(rule).plus(dpa.GaussianDpEvent(8.0)))
    cost = dpa.GaussianDpEvent(8.0)
    epsilon = accountant.epsilon(cost, delta=1e-6)
    assert accountant.delta(cost, epsilon=epsilon) == pytest.approx(1e-6, rel=1e-4)
    assert accountant.delta(dpa.NonPrivateDpEvent(), epsilon=1.0) == 1.0
    assert accountant.adjacency is Adjacency.ZERO_OUT
    assert rule.name in accountant.describe()
