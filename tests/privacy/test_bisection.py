"""Noisy bisection finds crossings, costs what it says, and reads nothing before it is paid."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.privacy.accounting import GDP
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.private_sums import Bisection
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key

SCORES = jnp.arange(100.0)
SEARCH = Bisection(num_queries=5, noise_multiplier=0.01, clip_norm=1.0)
POINTS = np.arange(31.0) * 3


def nothing(point, score, key):
    return 0.0 * score


def is_below(point, score, key):
    return jnp.where(score <= point, 1.0, 0.0)


@pytest.mark.parametrize(
    ("level", "index"), [(-1.0, 0), (0.5, 0), (1.5, 1), (45.5, 15), (90.5, 30), (91.5, 31)]
)
def test_with_little_noise_the_first_point_at_the_level_is_found(level, index):
    # POINTS[i] has 3 i + 1 scores at or below; the last point has 91.
    assert SEARCH.run(seeded_key(0), is_below, SCORES, POINTS, level=level) == index


def test_a_search_is_as_private_as_one_release_with_its_multiplier():
    cost = Bisection(num_queries=7, noise_multiplier=3.0, clip_norm=2.0).cost(50)
    alone = FullBatch(num_records=50).cost(3.0)
    assert GDP().epsilon(cost, delta=1e-5) == pytest.approx(GDP().epsilon(alone, delta=1e-5))


def test_the_cost_is_that_of_the_releases_made_with_the_noise_stated(monkeypatch):
    seen, original = [], GaussianSum._release

    def spy(self, *arguments):
        seen.append((self.cost, self.noise_std))
        return original(self, *arguments)

    monkeypatch.setattr(GaussianSum, "_release", spy)
    search = Bisection(num_queries=3, noise_multiplier=2.0, clip_norm=1.5)
    search.run(seeded_key(0), is_below, SCORES, np.arange(7.0), level=3.0)
    # Compiled once, run three times.
    (cost, noise_std), *_ = set(seen)
    assert count_releases(search.cost(100)) == {cost: 3}
    assert noise_std == search.noise_std == pytest.approx(1.5 * 2.0 * math.sqrt(3))


def test_every_query_has_fresh_noise():
    # Nothing but noise: a search goes either way at each query, and ends anywhere.
    search = Bisection(num_queries=3, noise_multiplier=1.0, clip_norm=1.0)
    ends = {
        search.run(
            seeded_key(seed),
            nothing,
            SCORES[:5],
            np.arange(7.0),
            level=0.0,
        )
        for seed in range(40)
    }
    # Each of the eight ends has chance 1/8: one of them is missing with chance 8 (7/8)^40 = .04.
    assert len(ends) >= 7


def test_points_of_another_number_are_refused():
    with pytest.raises(InvalidArgumentError, match="31 numbers"):
        SEARCH.run(seeded_key(0), is_below, SCORES, np.arange(30.0), level=3.0)


@pytest.mark.parametrize("wrong", ["num_queries", "noise_multiplier", "clip_norm"])
def test_an_impossible_search_is_refused_by_name(wrong):
    settings = {"num_queries": 3, "noise_multiplier": 1.0, "clip_norm": 1.0} | {wrong: 0}
    with pytest.raises(InvalidArgumentError, match=wrong):
        Bisection(**settings)


def test_a_key_is_given_only_for_what_budget_and_ledger_allow():
    cost = SEARCH.cost(100)
    with pytest.raises(BudgetExceededError):
        charged_key(cost, budget=Budget(epsilon=1.0, delta=1e-5), ledger=None, seed=0)
    ledger = InMemoryLedger()
    key, paid = charged_key(
        cost, budget=Budget(epsilon=math.inf, delta=1e-5), ledger=ledger, seed=None
    )
    assert ledger.costs == [cost] == [paid.event]
    other, _ = charged_key(
        cost, budget=Budget(epsilon=math.inf, delta=1e-5), ledger=None, seed=None
    )
    assert (key != other).any() if key.shape else key != other
