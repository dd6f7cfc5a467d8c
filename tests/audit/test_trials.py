"""Auditing by trials: exact intervals, thresholds paid for, honest claims left alone."""

import numpy as np
import pytest
from scipy.stats import binom

from tacit.audit.bounds import _rates, trial_bound
from tacit.errors import InvalidArgumentError
from tacit.privacy.interpretation import TradeOff

CLAIM = TradeOff.gaussian(1.0)


@pytest.mark.parametrize("right", [1, 30, 99])
def test_rates_are_bounded_by_exact_binomial_intervals(right):
    scores = np.where(np.arange(100) < right, 1.0, 0.0)
    attack = np.array([[1.0, 0.5]])
    (low,), (high,) = _rates(attack, scores, scores, 0.975)
    assert binom.sf(right - 1, 100, low) == pytest.approx(0.025)
    assert binom.cdf(right, 100, high) == pytest.approx(0.025)


def test_rates_of_nobody_and_everybody_stay_probabilities():
    attack = np.array([[1.0, 0.5], [-1.0, -0.5]])
    low, high = _rates(attack, np.zeros(10), np.ones(10), 0.975)
    np.testing.assert_array_equal(low, [0.0, 0.0])
    np.testing.assert_array_equal(high, [1.0, 1.0])


def test_an_honest_claim_is_refuted_no_more_often_than_the_confidence_allows():
    # The claim is reached exactly by these scores: nothing is more likely to be refuted.
    generator = np.random.default_rng(0)
    refuted = 0
    for _ in range(300):
        present, absent = generator.normal(1.0, size=400), generator.normal(size=400)
        refuted += trial_bound(present, absent, CLAIM, delta=1e-5, confidence=0.8).excess > 0
    # One in five may be; five sigma above that never happens by chance.
    assert refuted <= 60 + 5 * np.sqrt(300 * 0.2 * 0.8)


def test_a_tenth_less_noise_is_found_with_enough_trials():
    generator = np.random.default_rng(0)
    count = 40_000
    present, absent = generator.normal(1.1, size=count), generator.normal(size=count)
    assert trial_bound(present, absent, CLAIM, delta=1e-5, confidence=0.95).excess > 0


def test_the_lower_bound_is_sharp_for_randomised_response():
    generator = np.random.default_rng(0)
    count, epsilon = 100_000, 1.0
    chance = np.exp(epsilon) / (1 + np.exp(epsilon))
    present = (generator.random(count) < chance).astype(float)
    absent = (generator.random(count) >= chance).astype(float)
    claim = TradeOff.of_promise(epsilon=epsilon, delta=0.0)
    bound = trial_bound(present, absent, claim, delta=0.0, confidence=0.95)
    assert 0.95 < bound.lower_bound < 1.0
    assert bound.excess <= 0


def test_who_is_absent_can_be_found_too():
    # Half of the absent score low, which the present never do: high scores tell little.
    generator = np.random.default_rng(0)
    present = generator.random(4000)
    absent = generator.random(4000) - (np.arange(4000) % 2) * (generator.random(4000) < 0.9)
    bound = trial_bound(
        generator.permutation(present),
        generator.permutation(absent),
        TradeOff.of_promise(epsilon=2.0, delta=0.0),
        delta=0.0,
        confidence=0.95,
    )
    assert bound.lower_bound > 4.0


def test_too_few_trials_are_refused():
    with pytest.raises(InvalidArgumentError, match="at least 8 scores"):
        trial_bound([1.0], [0.0], CLAIM, delta=0.0, confidence=0.95)
