"""Selective prediction against curves by brute force."""

import itertools

import numpy as np
import pytest

from tacit.errors import InvalidArgumentError
from tacit.metrics import bootstrap
from tacit.metrics.selection import accuracy_at_coverage, aurc, excess_aurc, risk_coverage


def test_without_ties_the_curve_is_the_mean_loss_of_the_most_certain():
    rng = np.random.default_rng(0)
    doubts, losses = rng.normal(size=50), rng.random(50)
    curve = risk_coverage(doubts, losses)
    order = np.argsort(doubts)
    expected = [losses[order[:k]].mean() for k in range(1, 51)]
    np.testing.assert_allclose(curve.risk, expected)
    np.testing.assert_allclose(curve.coverage, np.arange(1, 51) / 50)


def test_with_ties_the_curve_is_the_mean_over_all_orders():
    doubts, losses = np.array([0, 1, 1, 1, 2]), np.array([1.0, 0.0, 1.0, 3.0, 0.0])
    curves = []
    for middle in itertools.permutations([1, 2, 3]):
        order = [0, *middle, 4]
        curves.append(np.cumsum(losses[order]) / np.arange(1, 6))
    np.testing.assert_allclose(risk_coverage(doubts, losses).risk, np.mean(curves, axis=0))


def test_no_order_of_the_records_changes_the_area():
    rng = np.random.default_rng(0)
    doubts, losses = rng.integers(4, size=60), rng.integers(2, size=60)
    shuffled = rng.permutation(60)
    assert aurc(doubts, losses) == pytest.approx(aurc(doubts[shuffled], losses[shuffled]))


def test_doubt_that_knows_nothing_has_the_risk_of_all_records_at_every_coverage():
    losses = np.array([0.0, 1.0, 1.0, 0.0])
    np.testing.assert_allclose(risk_coverage(np.zeros(4), losses).risk, 0.5)


def test_the_excess_is_zero_for_the_best_order_and_positive_for_the_worst():
    losses = np.array([0, 0, 0, 1, 1])
    assert excess_aurc(losses * 2.0, losses) == pytest.approx(0.0)
    assert excess_aurc(-losses, losses) > 0.3


def test_accuracy_at_full_coverage_is_the_accuracy_and_rises_with_good_doubt():
    doubts, correct = np.arange(10), np.array([True] * 7 + [False] * 3)
    assert accuracy_at_coverage(doubts, correct, coverage=1.0) == pytest.approx(0.7)
    assert accuracy_at_coverage(doubts, correct, coverage=0.7) == 1.0
    assert accuracy_at_coverage(doubts, correct, coverage=0.71) == pytest.approx(7 / 8)
    assert accuracy_at_coverage(doubts, correct, coverage=1e-6) == 1.0


def test_the_area_can_be_bootstrapped():
    rng = np.random.default_rng(0)
    doubts = rng.random(200)
    interval = bootstrap(aurc, doubts, (rng.random(200) < doubts).astype(float), seed=0)
    assert interval.low < interval.estimate < interval.high


@pytest.mark.parametrize(("doubts", "losses"), [([0.1], [0.1, 0.2]), ([[0.1]], [[0.1]]), ([], [])])
def test_arrays_of_other_shapes_are_refused(doubts, losses):
    with pytest.raises(InvalidArgumentError, match="uncertainty"):
        aurc(doubts, losses)


def test_what_is_neither_right_nor_wrong_is_refused():
    with pytest.raises(InvalidArgumentError, match="correct"):
        accuracy_at_coverage([0.1, 0.2], [0.5, 1.0], coverage=0.5)
    with pytest.raises(InvalidArgumentError, match="coverage"):
        accuracy_at_coverage([0.1, 0.2], [1.0, 1.0], coverage=0.0)
