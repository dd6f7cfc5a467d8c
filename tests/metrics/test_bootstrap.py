"""Bootstrap intervals of metrics with any number of arrays, and of calibration errors."""

import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.metrics import bootstrap, ece, gaussian_nll
from tacit.metrics.calibration import ace, mce, sce
from tacit.metrics.confidence import calibration_interval


def predictions(num_records, sharpening, seed):
    """Predictions of three classes, too sure of themselves when ``sharpening`` is above one."""
    rng = np.random.default_rng(seed)
    logits = 1.5 * rng.normal(size=(num_records, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) < rng.random((num_records, 1))).sum(axis=1).clip(max=2)
    told = true**sharpening
    return told / told.sum(axis=1, keepdims=True), labels


def test_a_metric_of_three_arrays_keeps_their_rows_together():
    mean, variance = np.arange(40.0), np.ones(40)
    interval = bootstrap(gaussian_nll, mean, variance, mean, seed=0)
    np.testing.assert_allclose(interval, 0.5 * np.log(2 * np.pi))


def test_ninety_percent_of_intervals_cover_a_known_mean():
    rng = np.random.default_rng(0)
    covered = 0
    for repetition in range(300):
        interval = bootstrap(np.mean, rng.exponential(size=100), seed=repetition, level=0.9)
        covered += interval.low <= 1.0 <= interval.high
    # Binomial standard deviation sqrt(.9 * .1 / 300) = .017; four of them, and a small-n bias.
    assert 0.80 < covered / 300 < 0.97


@pytest.mark.parametrize("metric", [ece, mce, sce, ace])
@pytest.mark.parametrize("sharpening", [1.0, 3.0])
def test_calibration_intervals_cover_the_error_of_many_more_records(metric, sharpening):
    truth = metric(*predictions(200_000, sharpening, seed=999))
    covered = 0
    for seed in range(20):
        interval = calibration_interval(
            metric, *predictions(300, sharpening, seed), seed=seed, num_resamples=60, level=0.9
        )
        covered += interval.low <= truth <= interval.high
    # At nominal .9, sixteen or fewer of twenty have probability .13; the interval is wider.
    assert covered >= 17


@pytest.mark.parametrize("metric", [ece, sce, ace])
def test_a_clear_miscalibration_is_told_from_chance(metric):
    interval = calibration_interval(metric, *predictions(1000, 3.0, seed=0), seed=0)
    assert 0.05 < interval.low < interval.estimate < interval.high
    calibrated = calibration_interval(metric, *predictions(1000, 1.0, seed=0), seed=0)
    assert calibrated.low == 0.0


def test_the_percentile_interval_of_a_calibrated_model_misses_zero():
    # Why calibration errors have an interval of their own.
    assert bootstrap(ece, *predictions(300, 1.0, seed=0), seed=0).low > 0.02


def test_a_seed_reproduces_the_calibration_interval():
    data = predictions(100, 1.0, seed=0)
    assert calibration_interval(ece, *data, seed=1) == calibration_interval(ece, *data, seed=1)
    assert calibration_interval(ece, *data, seed=1) != calibration_interval(ece, *data, seed=2)


@pytest.mark.parametrize("option", [{"level": 1.0}, {"num_resamples": 0}])
def test_impossible_options_are_refused_by_name(option):
    with pytest.raises(InvalidArgumentError, match=next(iter(option))):
        calibration_interval(ece, [[0.5, 0.5]], [0], seed=0, **option)


def test_a_bootstrap_without_arrays_is_refused():
    with pytest.raises(InvalidArgumentError, match="one row for each"):
        bootstrap(lambda: 0.0, seed=0)
