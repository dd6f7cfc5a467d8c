"""Calibration: the result is within the budget, and not needlessly far below it."""

from dataclasses import replace

import dp_accounting
import optax
import pytest

from tacit.errors import InvalidArgumentError
from tacit.inference import SGD, SGLD, Plan, calibrate, calibrate_steps
from tacit.inference.plan import calibrate_batch_size
from tacit.privacy.budget import Budget
from tacit.privacy.cost import Cost, count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch

BUDGET = Budget(epsilon=2.0, delta=1e-5)


def plan(**changes):
    sampling = PoissonBatch(num_records=10_000, batch_size=100)
    release = GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=1.0)
    settings = {"method": SGD(release=release, optimizer=optax.sgd(1.0)), "num_steps": 500}
    return Plan(**settings | changes)


def test_calibrated_noise_is_within_the_budget_and_barely():
    result = calibrate(plan(), BUDGET)
    noise = result.method.release.noise_multiplier
    assert BUDGET.allows(result.cost)
    assert not BUDGET.allows(replace(result, method=result.method.scale_noise(0.98)).cost)
    assert noise == pytest.approx(0.88, abs=0.1)


def test_what_was_spent_must_say_whether_its_noise_was_secret():
    with pytest.raises(InvalidArgumentError, match=r"spent must be a tacit\.Cost"):
        plan(spent=dp_accounting.GaussianDpEvent(4.0))


def test_calibrated_noise_counts_chains_and_what_was_spent_before():
    earlier = Cost(dp_accounting.GaussianDpEvent(4.0), is_secure=True)
    alone = calibrate(plan(), BUDGET).method.release.noise_multiplier
    charged = calibrate(plan(spent=earlier), BUDGET)
    chains = calibrate(plan(num_chains=3), BUDGET)
    assert charged.method.release.noise_multiplier > alone
    assert chains.method.release.noise_multiplier > alone
    assert count_releases(charged.cost)[earlier.event] == 1
    assert BUDGET.allows(charged.cost)
    assert BUDGET.allows(chains.cost)


def test_calibrated_steps_are_the_most_that_the_budget_allows():
    result = calibrate_steps(plan(num_steps=None), BUDGET)
    assert BUDGET.allows(result.cost)
    assert not BUDGET.allows(result.with_steps(result.num_steps + 1).cost)


def test_an_infinite_budget_sets_no_number_of_steps():
    with pytest.raises(InvalidArgumentError, match="budget must be finite"):
        calibrate_steps(plan(num_steps=None), Budget.non_private())


def test_a_calibrated_batch_stays_within_its_capacity():
    sampling = PoissonBatch(num_records=10_000, batch_size=100, max_batch_size=150)
    release = GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=4.0)
    method = SGD(release=release, optimizer=optax.sgd(1.0))
    result = calibrate_batch_size(plan(method=method), BUDGET)
    assert result.method.release.sampling == replace(sampling, batch_size=150)


def test_a_batch_size_is_not_calibrated_where_it_would_change_the_temperature():
    method = SGLD.fixed_temperature(
        sampling=PoissonBatch(num_records=10_000, batch_size=100), clip_norm=1.0, step_size=1e-4
    )
    with pytest.raises(InvalidArgumentError, match="holds its temperature"):
        calibrate_batch_size(plan(method=method), BUDGET)


def test_calibrated_batches_are_the_largest_that_the_budget_allows():
    result = calibrate_batch_size(plan(), BUDGET)
    size = result.method.release.sampling.batch_size
    assert BUDGET.allows(result.cost)
    bigger = replace(result.method.release.sampling, batch_size=size + 1)
    method = replace(result.method, release=replace(result.method.release, sampling=bigger))
    assert not BUDGET.allows(replace(result, method=method).cost)


def test_a_full_batch_has_no_size_to_calibrate():
    release = GaussianSum(sampling=FullBatch(num_records=10), clip_norm=1.0, noise_multiplier=1.0)
    with pytest.raises(InvalidArgumentError, match="Poisson or fixed"):
        calibrate_batch_size(plan(method=SGD(release=release, optimizer=optax.sgd(1.0))), BUDGET)


def test_at_fixed_temperature_the_budget_sets_the_step_size():
    method = SGLD.fixed_temperature(
        sampling=PoissonBatch(num_records=10_000, batch_size=100), clip_norm=1.0, step_size=1e-4
    )
    result = calibrate(plan(method=method), BUDGET)
    assert BUDGET.allows(result.cost)
    assert result.method.temperature() == pytest.approx(1.0, rel=1e-5)
    assert result.method.step_size != method.step_size


def test_a_plan_without_a_length_has_no_cost_yet():
    with pytest.raises(InvalidArgumentError, match="num_steps must be known"):
        plan(num_steps=None).cost  # noqa: B018
