"""Sampling error: coverage, reproducibility, and scipy's own Wilson interval."""

import numpy as np
import pytest
from scipy.stats import binomtest

from tacit.errors import InvalidArgumentError
from tacit.metrics import accuracy, bootstrap, nll, rmse
from tacit.metrics.confidence import wilson_interval


def mean_of(predictions, targets):
    return float((predictions - targets).mean())


def test_eighty_percent_of_bootstrap_intervals_cover_the_truth():
    rng = np.random.default_rng(0)
    covered = 0
    for repetition in range(300):
        errors = rng.normal(size=80)
        interval = bootstrap(mean_of, errors, np.zeros(80), seed=repetition, level=0.8)
        covered += interval.low <= 0 <= interval.high
    # Binomial standard deviation sqrt(.8 * .2 / 300) = .023; four of them, and a small-n bias.
    assert 0.69 < covered / 300 < 0.90


def test_the_estimate_is_the_metric_itself_and_lies_inside():
    rng = np.random.default_rng(0)
    predictions, targets = rng.normal(size=(2, 100))
    interval = bootstrap(rmse, predictions, targets, seed=0)
    assert interval.estimate == rmse(predictions, targets)
    assert interval.low < interval.estimate < interval.high


def test_predictions_keep_their_targets_when_resampled():
    values = np.arange(50.0)
    assert bootstrap(rmse, values, values, seed=0) == (0.0, 0.0, 0.0)


def test_a_seed_reproduces_the_interval_and_another_changes_it():
    values, zeros = np.random.default_rng(0).normal(size=100), np.zeros(100)
    first = bootstrap(mean_of, values, zeros, seed=1)
    assert bootstrap(mean_of, values, zeros, seed=1) == first
    assert bootstrap(mean_of, values, zeros, seed=2) != first


def test_more_records_and_a_lower_level_give_a_narrower_interval():
    values = np.random.default_rng(0).normal(size=1600)

    def width(num_records, level):
        low, _, high = bootstrap(
            mean_of, values[:num_records], np.zeros(num_records), seed=0, level=level
        )
        return high - low

    assert width(1600, 0.95) < width(100, 0.95) / 2
    assert width(100, 0.5) < width(100, 0.95)


def test_an_infinite_score_widens_the_interval_to_infinity():
    probabilities = np.array([[1.0, 0.0]] * 9 + [[0.5, 0.5]])
    low, estimate, high = bootstrap(nll, probabilities, [1] + [0] * 9, seed=0)
    assert np.isfinite(low)
    assert estimate == high == np.inf
    assert bootstrap(nll, probabilities[:9], [1] * 9, seed=0) == (np.inf, np.inf, np.inf)


@pytest.mark.parametrize(
    ("predictions", "targets"), [([], []), ([1.0, 2.0], [1.0]), (1.0, 1.0), ([1.0], 1.0)]
)
def test_predictions_without_as_many_targets_are_refused(predictions, targets):
    with pytest.raises(InvalidArgumentError, match="one row for each"):
        bootstrap(mean_of, predictions, targets, seed=0)


@pytest.mark.parametrize(
    ("option", "value"), [("level", 0.0), ("level", 1.0), ("level", 95), ("num_resamples", 0)]
)
def test_an_impossible_bootstrap_option_is_refused_by_name(option, value):
    with pytest.raises(InvalidArgumentError, match=option):
        bootstrap(accuracy, [[0.5, 0.5]], [0], seed=0, **{option: value})


@pytest.mark.parametrize(("successes", "trials"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20)])
@pytest.mark.parametrize("level", [0.5, 0.95])
def test_wilson_interval_is_that_of_scipy(successes, trials, level):
    expected = binomtest(successes, trials).proportion_ci(level, method="wilson")
    low, high = wilson_interval(successes, trials, level=level)
    np.testing.assert_allclose((low, high), expected, atol=1e-12)


def test_wilson_interval_without_trials_is_everything():
    np.testing.assert_array_equal(wilson_interval([0], [0]), [[0.0], [1.0]])


@pytest.mark.parametrize("successes", [-1, 3, np.nan])
def test_wilson_interval_refuses_impossible_counts(successes):
    with pytest.raises(InvalidArgumentError, match="successes"):
        wilson_interval(successes, 2)
