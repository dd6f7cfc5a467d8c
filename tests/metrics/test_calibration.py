"""Calibration errors against a naive loop, hand calculation and their inequalities."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tacit.errors import InvalidArgumentError
from tacit.metrics import accuracy, ece, reliability
from tacit.metrics.calibration import ace, mce, sce

ERRORS = [ece, mce, sce, ace]


def binary(confidence):
    confidence = np.asarray(confidence, dtype=float)
    return np.stack([confidence, 1 - confidence], axis=1)


@st.composite
def predictions(draw):
    num_records, num_classes = draw(st.integers(1, 40)), draw(st.integers(2, 5))
    # Whole numbers make exact ties, zeros and bin edges common.
    weights = draw(arrays(float, (num_records, num_classes), elements=st.integers(0, 10)))
    weights[:, 0] += weights.sum(axis=1) == 0
    labels = draw(arrays(int, num_records, elements=st.integers(0, num_classes - 1)))
    return weights / weights.sum(axis=1, keepdims=True), labels


def naive_gaps(confidence, happened, num_bins):
    """Yields (share, gap) of each non-empty bin, straight from the definition."""
    for m in range(num_bins):
        inside = [
            i
            for i, c in enumerate(confidence)
            if (m / num_bins < c <= (m + 1) / num_bins) or (m == 0 and c == 0)
        ]
        if inside:
            mean_confidence = sum(confidence[i] for i in inside) / len(inside)
            frequency = sum(happened[i] for i in inside) / len(inside)
            yield len(inside) / len(confidence), abs(frequency - mean_confidence)


def naive_top(probabilities, labels):
    return [max(p) for p in probabilities], [
        list(p).index(max(p)) == y for p, y in zip(probabilities, labels, strict=True)
    ]


# Powers of two, so that m / num_bins is the same float however it is computed.
@given(predictions(), st.sampled_from([1, 2, 4, 16]))
@settings(deadline=None, max_examples=60)
def test_errors_equal_a_naive_loop_over_bins(case, num_bins):
    probabilities, labels = case
    top = list(naive_gaps(*naive_top(probabilities, labels), num_bins))
    classes = [
        sum(s * g for s, g in naive_gaps(probabilities[:, k], labels == k, num_bins))
        for k in range(probabilities.shape[1])
    ]
    options = {"num_bins": num_bins}
    assert ece(*case, **options) == pytest.approx(sum(s * g for s, g in top), abs=1e-12)
    assert mce(*case, **options) == pytest.approx(max(g for _, g in top), abs=1e-12)
    assert sce(*case, **options) == pytest.approx(np.mean(classes), abs=1e-12)


@given(predictions(), st.integers(1, 20))
@settings(deadline=None, max_examples=60)
def test_ece_lies_between_the_overall_gap_and_mce(case, num_bins):
    probabilities, labels = case
    overall = abs(accuracy(probabilities, labels) - probabilities.max(axis=1).mean())
    expected, maximum = ece(*case, num_bins=num_bins), mce(*case, num_bins=num_bins)
    assert overall <= expected + 1e-12
    assert expected <= maximum + 1e-12
    assert maximum <= 1


@given(predictions(), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_the_order_of_records_does_not_matter(case, random):
    probabilities, labels = case
    order = list(range(len(labels)))
    random.shuffle(order)
    for error in ERRORS:
        shuffled = error(probabilities[order], labels[order])
        assert shuffled == pytest.approx(error(probabilities, labels), abs=1e-12)


@given(predictions())
@settings(deadline=None, max_examples=40)
def test_with_one_bin_every_error_is_an_overall_gap(case):
    probabilities, labels = case
    overall = abs(accuracy(probabilities, labels) - probabilities.max(axis=1).mean())
    marginal = np.eye(probabilities.shape[1])[labels].mean(axis=0) - probabilities.mean(axis=0)
    assert ece(*case, num_bins=1) == pytest.approx(overall, abs=1e-12)
    assert mce(*case, num_bins=1) == pytest.approx(overall, abs=1e-12)
    assert sce(*case, num_bins=1) == pytest.approx(np.abs(marginal).mean(), abs=1e-12)
    assert ace(*case, num_bins=1) == pytest.approx(np.abs(marginal).mean(), abs=1e-12)


def test_a_small_example_agrees_with_hand_calculation():
    # Bins (.5, .75] and (.75, 1]: confidences .6, .7 with one right; .8, .9, 1 with two right.
    probabilities, labels = binary([0.6, 0.7, 0.8, 0.9, 1.0]), np.array([0, 1, 0, 0, 1])
    table = reliability(probabilities, labels, num_bins=4)
    np.testing.assert_array_equal(table.counts, [0, 0, 2, 3])
    np.testing.assert_allclose(table.confidence, [np.nan, np.nan, 0.65, 0.9])
    np.testing.assert_allclose(table.accuracy, [np.nan, np.nan, 1 / 2, 2 / 3])
    assert table.ece == pytest.approx((2 * 0.15 + 3 * (0.9 - 2 / 3)) / 5)
    assert table.mce == pytest.approx(0.9 - 2 / 3)


def test_bins_are_closed_on_the_right():
    table = reliability(binary([0.5, 0.75, 1.0]), [0, 0, 0], num_bins=4)
    np.testing.assert_array_equal(table.counts, [0, 1, 1, 1])


def test_probability_zero_belongs_to_the_first_bin():
    # Class 2 always has probability zero and never happens: no error comes from it.
    probabilities = np.array([[0.5, 0.5, 0.0], [0.5, 0.5, 0.0]])
    assert sce(probabilities, [0, 1], num_bins=4) == 0.0


def test_empty_bins_are_nan_and_do_not_count():
    table = reliability(binary([0.95] * 4), [0, 0, 0, 1], num_bins=10)
    assert np.isnan(table.accuracy[:-1]).all()
    assert table.mce == pytest.approx(0.2)


@pytest.mark.parametrize("error", [ece, sce, ace])
def test_labels_drawn_from_the_predictions_are_calibrated(error):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), size=50_000)
    labels = (probabilities.cumsum(axis=1) < rng.random((50_000, 1))).sum(axis=1)
    # A bin of m records adds about 0.4 / sqrt(m): 15 bins of 50 000 / 15 give about 0.006.
    assert error(probabilities, labels) < 0.012
    assert error(probabilities**3 / (probabilities**3).sum(axis=1, keepdims=True), labels) > 0.05


def test_ace_has_bins_of_equal_mass():
    # By probability of class 1: .1 .2 | .3 .9 with labels 0 1 | 0 1, the same gaps for class 0.
    probabilities = binary([0.9, 0.8, 0.7, 0.1])
    assert ace(probabilities, [0, 1, 0, 1], num_bins=2) == pytest.approx((0.7 + 0.2) / 4)


def test_ace_keeps_equal_probabilities_in_one_bin():
    # Were they split, the bins would have gaps of one half whatever the order.
    assert ace(binary([0.5] * 4), [0, 0, 1, 1], num_bins=2) == 0.0


def test_ace_with_more_bins_than_records_scores_each_record():
    assert ace(binary([0.9, 0.6]), [0, 1], num_bins=50) == pytest.approx((0.1 + 0.6) / 2)


@pytest.mark.parametrize("error", [*ERRORS, reliability])
@pytest.mark.parametrize("num_bins", [0, -1, 2.5, True])
def test_a_number_of_bins_that_is_no_count_is_refused(error, num_bins):
    with pytest.raises(InvalidArgumentError, match="num_bins"):
        error(binary([0.9]), [0], num_bins=num_bins)
