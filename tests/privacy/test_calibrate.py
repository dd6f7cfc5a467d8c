"""Calibration satisfies the budget, and is tight."""

import math

import dp_accounting as dpa
import numpy as np
import pytest

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.privacy.accounting import GDP, PLD, RDP, Adjacency
from tacit.privacy.accounting.losses import compose_losses
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import (
    largest_batch,
    most_steps,
    noise_multiplier,
    smallest_noise,
)
from tacit.privacy.sampling import PoissonBatch


def run(rate, noise, steps):
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


class Counting:
    """A cost function that knows how often it was asked."""

    def __init__(self, cost_of):
        self.cost_of, self.calls = cost_of, 0

    def __call__(self, value):
        self.calls += 1
        return self.cost_of(value)


@pytest.mark.parametrize(
    "budget",
    [
        Budget(1.0, 1e-5),
        Budget(0.05, 1e-6),
        Budget(8.0, 1e-3),
        Budget(2.0, 1e-5, RDP()),
    ],
    ids=str,
)
def test_the_noise_found_is_within_the_budget_and_slightly_less_is_not(budget):
    cost_of = Counting(lambda noise: run(0.01, noise, 500))
    noise = smallest_noise(cost_of, budget, tolerance=1e-3)
    assert cost_of.calls <= 20
    assert budget.allows(run(0.01, noise, 500))
    assert not budget.allows(run(0.01, noise / 1.002, 500))


def test_a_schedule_of_a_thousand_noises_is_calibrated_in_few_compositions(monkeypatch):
    sampling = PoissonBatch(num_records=60_000, batch_size=256)
    composed = []

    def compose(counts, adjacency, interval):
        composed.append((interval, len(counts)))
        return compose_losses(counts, adjacency, interval)

    monkeypatch.setattr("tacit.privacy.accounting.accountants.compose_losses", compose)

    def cost_of(factor):
        noises = factor * np.geomspace(0.8, 3.0, 1000)
        return dpa.ComposedDpEvent([sampling.cost(float(noise)) for noise in noises])

    budget = Budget(1.0, 1e-5)
    factor = smallest_noise(cost_of, budget)
    # Two seconds on two cores: a rough search, then a few compositions of many parts.
    assert sum(interval == 1e-4 for interval, _ in composed) <= 4
    assert max(num_parts for _, num_parts in composed) <= 130
    assert 0.995 < budget.spent(cost_of(factor)) <= 1.0
    assert not budget.allows(cost_of(factor / 1.002))


def test_the_noise_of_one_subsampled_release_is_the_known_one():
    noise = smallest_noise(lambda s: run(0.01, s, 1), Budget(1.0, 1e-5), tolerance=1e-4)
    assert noise == pytest.approx(0.67379294682, rel=2e-4)


def test_the_noise_of_full_batches_is_exact():
    budget = Budget(1.0, 1e-5, GDP())
    noise = smallest_noise(lambda s: run(1.0, s, 100), budget, tolerance=1e-4)
    assert noise == pytest.approx(10 * smallest_noise(dpa.GaussianDpEvent, budget), rel=2e-3)


def test_an_infinite_budget_needs_no_noise():
    assert smallest_noise(dpa.GaussianDpEvent, Budget.non_private()) == 0.0


def test_a_cost_that_never_exceeds_the_budget_needs_the_least_noise():
    assert smallest_noise(lambda _: dpa.NoOpDpEvent(), Budget(1.0, 1e-5)) == pytest.approx(1e-3)


def test_a_cost_that_noise_cannot_lower_is_an_error_that_says_so():
    with pytest.raises(BudgetExceededError, match="does not depend on the noise"):
        smallest_noise(lambda _: dpa.GaussianDpEvent(0.1), Budget(1.0, 1e-5))


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE], ids=str)
def test_one_step_more_than_the_most_would_exceed_the_budget(adjacency):
    budget = Budget(1.0, 1e-5, RDP(adjacency=adjacency))

    def cost_of(steps):
        return dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(60.0), steps)

    steps = most_steps(cost_of, budget)
    assert budget.allows(cost_of(steps))
    assert not budget.allows(cost_of(steps + 1))


def test_the_most_steps_of_poisson_batches_are_tight():
    budget = Budget(1.0, 1e-5)
    cost_of = Counting(lambda steps: run(256 / 60000, 1.3, steps))
    steps = most_steps(cost_of, budget)
    assert steps > 3515
    assert cost_of.calls <= 36
    assert budget.allows(run(256 / 60000, 1.3, steps))
    assert not budget.allows(run(256 / 60000, 1.3, steps + 1))


def test_steps_stop_at_the_maximum():
    assert most_steps(lambda n: run(0.1, 1.0, n), Budget.non_private(), maximum=100) == 100
    assert most_steps(lambda n: run(0.1, 1e6, n), Budget(9.0, 0.1), maximum=77) == 77


def test_no_possible_step_is_an_error_that_says_so():
    with pytest.raises(BudgetExceededError, match="not even one step"):
        most_steps(lambda n: run(1.0, 0.1, n), Budget(1.0, 1e-5))


def test_one_record_more_than_the_largest_batch_would_exceed_the_budget():
    budget = Budget(0.5, 1e-5)
    batch = largest_batch(lambda b: run(b / 1000, 2.0, 10), budget, maximum=1000)
    assert 1 <= batch < 1000
    assert budget.allows(run(batch / 1000, 2.0, 10))
    assert not budget.allows(run((batch + 1) / 1000, 2.0, 10))


def test_the_largest_batch_is_all_records_when_the_budget_is_large():
    assert largest_batch(lambda b: run(b / 64, 5.0, 1), Budget(50.0, 1e-5), maximum=64) == 64


def test_a_fraction_of_a_step_is_never_asked_for():
    asked = []

    def cost_of(steps):
        asked.append(steps)
        return dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(50.0), steps)

    most_steps(cost_of, Budget(1.0, 1e-5, GDP()))
    assert all(isinstance(steps, int) and steps >= 1 for steps in asked)
    assert math.isfinite(max(asked))


@pytest.mark.parametrize(("rate", "num_steps"), [(1.0, 10), (0.01, 1000)])
def test_the_least_multiplier_of_a_run_spends_the_budget_and_no_more(rate, num_steps):
    noise = noise_multiplier(epsilon=1.0, delta=1e-5, rate=rate, num_steps=num_steps)
    spent = PLD().epsilon(run(rate, noise, num_steps), delta=1e-5)
    assert 0.99 < spent <= 1


def test_the_least_multiplier_of_all_records_is_that_of_the_gaussian_mechanism():
    noise = noise_multiplier(epsilon=1.0, delta=1e-5, rate=1.0, num_steps=4)
    one = noise_multiplier(epsilon=1.0, delta=1e-5, rate=1.0, num_steps=1)
    assert noise == pytest.approx(2 * one, rel=2e-3)


@pytest.mark.parametrize("bad", [{"rate": 0.0}, {"rate": 1.5}, {"num_steps": 0}, {"epsilon": -1}])
def test_a_run_that_is_none_is_refused(bad):
    settings = {"epsilon": 1.0, "delta": 1e-5, "rate": 0.1, "num_steps": 10}
    with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
        noise_multiplier(**settings | bad)
