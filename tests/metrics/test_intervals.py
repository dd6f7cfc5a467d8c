"""Intervals against SciPy's quantiles, and their coverage where the truth is known."""

import numpy as np
import pytest
from scipy.stats import norm

from tacit.errors import InvalidArgumentError
from tacit.metrics import interval_coverage, quantile_interval
from tacit.metrics.calibration import gaussian_interval, interval_score, mixture_interval


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_the_gaussian_interval_is_that_of_scipy(level):
    mean, variance = np.array([0.0, 3.0]), np.array([1.0, 4.0])
    np.testing.assert_allclose(
        gaussian_interval(mean, variance, level=level),
        norm.interval(level, loc=mean, scale=np.sqrt(variance)),
    )


def test_a_mixture_of_equal_parts_is_that_part():
    np.testing.assert_allclose(
        mixture_interval(np.full((5, 2), 3.0), np.full((5, 2), 4.0), level=0.9),
        gaussian_interval([3.0, 3.0], [4.0, 4.0], level=0.9),
        rtol=1e-9,
    )


def test_the_ends_of_a_mixture_leave_its_tails_outside():
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(7, 3)), rng.gamma(1.0, size=(7, 3)) + 0.1
    for end, share in zip(mixture_interval(mean, variance, level=0.8), (0.1, 0.9), strict=True):
        found = norm.cdf(end, mean, np.sqrt(variance)).mean(axis=0)
        np.testing.assert_allclose(found, share, atol=1e-10)


def test_predictive_intervals_cover_as_often_as_they_say_and_credible_ones_of_means_do_not():
    # y = w + e with w ~ N(0, 1) known only through its draws, e ~ N(0, .5^2).
    rng = np.random.default_rng(0)
    num_inputs = 2000
    draws = rng.normal(size=(400, num_inputs))
    targets = rng.normal(size=num_inputs) + 0.5 * rng.normal(size=num_inputs)
    predictive = mixture_interval(draws, np.full(draws.shape, 0.25), level=0.9)
    credible = quantile_interval(draws, level=0.9)
    # Binomial standard deviation sqrt(.09 / 2000) = .0067; five of them, and .003 for the draws.
    assert abs(interval_coverage(*predictive, targets) - 0.9) < 0.04
    assert interval_coverage(*credible, targets) < 0.88
    assert interval_coverage(*credible, rng.normal(size=num_inputs)) == pytest.approx(0.9, abs=0.04)


@pytest.mark.parametrize("factor", [0.7, 1.4])
def test_the_score_prefers_the_true_interval_to_narrower_and_wider_ones(factor):
    targets = np.random.default_rng(0).normal(size=20_000)
    low, high = gaussian_interval(np.zeros(20_000), np.ones(20_000), level=0.9)
    true = interval_score(low, high, targets, level=0.9)
    assert true < interval_score(factor * low, factor * high, targets, level=0.9)


def test_the_score_of_a_covering_interval_is_its_width():
    assert interval_score([-1.0], [2.0], [0.0], level=0.5) == 3.0
    assert interval_score([-1.0], [2.0], [4.0], level=0.5) == 3.0 + 4 * 2


def test_infinite_intervals_cover_everything():
    assert interval_coverage([-np.inf], [np.inf], [5.0]) == 1.0


@pytest.mark.parametrize(
    ("low", "high", "targets"),
    [([0.0], [1.0], [[0.5]]), ([1.0], [0.0], [0.5]), ([np.nan], [1.0], [0.5]), ([0.0], [1.0], [])],
)
def test_intervals_that_are_none_are_refused(low, high, targets):
    with pytest.raises(InvalidArgumentError):
        interval_coverage(low, high, targets)


@pytest.mark.parametrize("level", [0.0, 1.0, 90])
def test_an_impossible_level_is_refused(level):
    with pytest.raises(InvalidArgumentError, match="level"):
        gaussian_interval([0.0], [1.0], level=level)


def test_a_mixture_without_noise_is_refused_with_the_remedy():
    with pytest.raises(InvalidArgumentError, match="observation noise"):
        mixture_interval([[0.0], [1.0]], [[0.0], [1.0]], level=0.9)
    with pytest.raises(InvalidArgumentError, match="num_draws"):
        quantile_interval([0.0, 1.0], level=0.9)
