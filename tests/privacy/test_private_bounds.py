from dataclasses import replace

import dp_accounting as dpa
import jax
import numpy as np
import pytest

from tacit import Budget
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.private_bounds import bounds_noise, private_bounds

BUDGET = Budget(epsilon=3.0, delta=1e-5)
NOISE = bounds_noise(BUDGET, share=0.1)


def columns(num_rows=2000, seed=0):
    rng = np.random.default_rng(seed)
    return np.stack(
        [
            rng.normal(size=num_rows),
            rng.normal(2000, 10, num_rows),
            rng.uniform(0, 1, num_rows),
            rng.integers(0, 2, num_rows).astype(float),
            -rng.exponential(1e4, num_rows),
        ],
        axis=1,
    )


@pytest.fixture(scope="module")
def found_and_cost():
    return private_bounds(columns(), budget=BUDGET, noise_multiplier=NOISE, seed=0)


@pytest.fixture(scope="module")
def found(found_and_cost):
    return found_and_cost[0]


def test_most_values_of_every_kind_of_column_lie_between_the_bounds(found):
    values = columns()
    inside = (values >= found.low) & (values <= found.high)
    assert inside.mean(axis=0).min() > 0.85


def test_bounds_are_not_much_wider_than_what_they_hold(found):
    middle = np.quantile(columns(), [0.02, 0.98], axis=0)
    assert np.all(found.high - found.low < 4.5 * (middle[1] - middle[0]))


def test_the_cost_is_two_releases_as_private_as_one_with_the_stated_noise(found_and_cost):
    _, cost = found_and_cost
    assert sum(count_releases(cost.event).values()) == 2
    one = BUDGET.spent(dpa.GaussianDpEvent(NOISE))
    assert BUDGET.spent(cost) == pytest.approx(one, rel=1e-6)
    assert not cost.is_secure


def test_a_share_of_the_budget_leaves_the_rest_with_little_more_noise():
    rest = dpa.GaussianDpEvent(NOISE * np.sqrt(0.1) / np.sqrt(0.9))
    both = dpa.ComposedDpEvent([dpa.GaussianDpEvent(NOISE), rest])
    assert BUDGET.spent(both) == pytest.approx(3.0, rel=1e-3)


def first_histograms(monkeypatch, values, **arguments):
    """Returns the first sum that is released, before noise, and its clip norm."""
    sums = []
    call = GaussianSum.__call__

    def spy(self, key, query, data):
        quiet = replace(self, noise_multiplier=0.0)
        sums.append((np.asarray(call(quiet, key, query, data)), self.clip_norm))
        return sums[-1][0]

    with monkeypatch.context() as patch, jax.disable_jit():
        patch.setattr(GaussianSum, "__call__", spy)
        private_bounds(values, budget=BUDGET, noise_multiplier=NOISE, seed=0, **arguments)
    return sums[0]


@pytest.mark.parametrize("bad", [np.inf, -1e300, 0.0])
def test_one_record_moves_the_histograms_by_at_most_the_clip(bad, monkeypatch):
    with_bad, without = columns(6), columns(6)
    with_bad[3] = bad
    without[3] = np.nan  # a record without values adds nothing
    sums, clip_norm = first_histograms(monkeypatch, with_bad)
    fewer, _ = first_histograms(monkeypatch, without)
    assert np.linalg.norm(sums - fewer) == pytest.approx(clip_norm, rel=1e-3)


def test_a_person_with_many_rows_counts_once(monkeypatch):
    mask = np.ones((3, 2), bool)
    mask[1, 1] = False
    sums, _ = first_histograms(monkeypatch, columns(6).reshape(3, 2, 5), mask=mask)
    np.testing.assert_allclose(sums.sum(axis=1), 3.0, rtol=1e-3)


def test_nothing_is_read_that_the_budget_or_the_ledger_does_not_allow():
    with pytest.raises(BudgetExceededError):
        private_bounds(columns(50), budget=Budget(epsilon=0.01, delta=1e-5), noise_multiplier=NOISE)
    ledger = InMemoryLedger()
    private_bounds(columns(50), budget=BUDGET, noise_multiplier=NOISE, seed=0, ledger=ledger)
    assert len(ledger.costs) == 1


def test_without_noise_bounds_hold_nearly_all_values_and_nothing_is_promised():
    free, cost = private_bounds(
        columns(300), budget=Budget.non_private(), noise_multiplier=0.0, seed=0
    )
    values = columns(300)
    assert ((values >= free.low) & (values <= free.high)).mean() > 0.9
    assert np.isinf(BUDGET.spent(cost))


@pytest.mark.parametrize("shape", [(5,), (0, 2), (5, 0), (2, 2, 2)])
def test_values_of_another_shape_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match="values must have one row"):
        private_bounds(np.zeros(shape), budget=BUDGET, noise_multiplier=NOISE)
