"""Scores against hand calculation, scikit-learn, and inputs that must be refused."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm
from sklearn.metrics import log_loss, roc_auc_score

from tacit.errors import InvalidArgumentError
from tacit.metrics import accuracy, auroc, brier, ece, gaussian_nll, nll, rmse
from tacit.metrics.scores import mse

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3], [0.2, 0.5, 0.3]])
LABELS = np.array([0, 2, 0, 1])


def random_predictions(num_records, num_classes, seed=0):
    rng = np.random.default_rng(seed)
    probabilities = rng.dirichlet(np.ones(num_classes), size=num_records)
    return probabilities, rng.integers(num_classes, size=num_records)


def test_accuracy_counts_the_most_probable_class():
    assert accuracy(PROBABILITIES, LABELS) == 0.75


def test_the_first_of_tied_classes_is_the_prediction():
    assert accuracy([[0.5, 0.5]], [0]) == 1.0
    assert accuracy([[0.5, 0.5]], [1]) == 0.0


def test_nll_is_that_of_scikit_learn():
    probabilities, labels = random_predictions(200, 4)
    assert nll(probabilities, labels) == pytest.approx(log_loss(labels, probabilities))


def test_a_label_of_probability_zero_costs_infinity_unless_a_floor_is_given():
    assert nll([[1.0, 0.0], [0.5, 0.5]], [1, 0]) == np.inf
    assert nll([[1.0, 0.0]], [1], floor=0.01) == pytest.approx(-np.log(0.01))


def test_a_floor_below_every_probability_changes_nothing():
    assert nll(PROBABILITIES, LABELS, floor=0.05) == nll(PROBABILITIES, LABELS)


def test_brier_sums_squares_over_classes_and_averages_over_records():
    by_hand = (0.14 + 0.06 + 0.74 + 0.38) / 4
    assert brier(PROBABILITIES, LABELS) == pytest.approx(by_hand)


def test_brier_of_a_certain_mistake_is_two():
    assert brier([[1.0, 0.0]], [1]) == 2.0


def test_auroc_of_two_classes_ranks_by_the_second():
    probabilities, labels = random_predictions(100, 2)
    assert auroc(probabilities, labels) == roc_auc_score(labels, probabilities[:, 1])


def test_auroc_of_many_classes_is_the_macro_average_against_the_rest():
    probabilities, labels = random_predictions(100, 4)
    expected = roc_auc_score(labels, probabilities, multi_class="ovr", average="macro")
    assert auroc(probabilities, labels) == pytest.approx(expected)


def test_auroc_tells_tiny_float32_probabilities_apart():
    p = np.array([1e-9, 2e-9, 3e-9, 4e-9], dtype=np.float32)
    assert auroc(np.stack([1 - p, p], axis=1), [0, 0, 1, 1]) == 1.0


def test_auroc_without_a_record_of_some_class_is_refused():
    with pytest.raises(InvalidArgumentError, match="class 1 is missing"):
        auroc(PROBABILITIES, [0, 2, 0, 2])


def test_rmse_is_the_root_of_mse():
    assert mse([0.0, 0.0], [3.0, 4.0]) == 12.5
    assert rmse([0.0, 0.0], [3.0, 4.0]) == pytest.approx(np.sqrt(12.5))


def test_gaussian_nll_is_minus_the_log_density_of_scipy():
    rng = np.random.default_rng(0)
    mean, targets = rng.normal(size=(2, 50))
    variance = rng.gamma(2.0, size=50)
    expected = -norm.logpdf(targets, mean, np.sqrt(variance)).mean()
    assert gaussian_nll(mean, variance, targets) == pytest.approx(expected)


@pytest.mark.parametrize("score", [accuracy, nll, brier, auroc, ece])
def test_jax_arrays_score_as_numpy_arrays_do(score):
    probabilities, labels = random_predictions(50, 3)
    as_float32 = probabilities.astype(np.float32)
    assert score(jnp.asarray(as_float32), jnp.asarray(labels)) == score(as_float32, labels)


@pytest.mark.parametrize("score", [accuracy, nll, brier, auroc, ece])
def test_scores_are_plain_floats(score):
    assert type(score(*random_predictions(50, 3))) is float


@pytest.mark.parametrize("score", [accuracy, nll, brier, auroc, ece])
@pytest.mark.parametrize(
    ("probabilities", "labels", "message"),
    [
        ([[0.5, np.nan]], [0], r"finite; got nan at index \(0, 1\)"),
        ([[2.0, -1.0]], [0], r"\[0, 1\]; got values from -1 to 2.*softmax"),
        ([[0.5, 0.5], [0.5, 0.4]], [0, 0], r"sum to 1 .* got 0.9 at index \(1,\)"),
        ([0.5, 0.5], [0, 1], r"stack \[1 - p, p\]"),
        ([[[0.5, 0.5]]], [0], r"shape \(num_records, num_classes\); got \(1, 1, 2\)"),
        (np.zeros((0, 2)), [], "empty"),
        ([[0.5, 0.5], [0.5]], [0, 0], "one array of numbers"),
        ([[0.5, 0.5]], [0, 1], r"labels must have shape \(1,\)"),
        ([[0.5, 0.5]], [[0, 1]], "argmax"),
        ([[0.5, 0.5]], [0.0], "labels must be integers"),
        ([[0.5, 0.5]], [2], r"0\.\.1.* got 2 to 2"),
        ([[0.5, 0.5]], [-1], r"0\.\.1.* got -1 to -1"),
    ],
)
def test_unusable_classifications_are_refused_with_a_reason(score, probabilities, labels, message):
    with pytest.raises(InvalidArgumentError, match=message):
        score(probabilities, labels)


def test_float32_softmax_that_misses_one_by_rounding_is_accepted():
    probabilities = np.array([[1.0000001, -1e-8], [0.49999997, 0.5]], dtype=np.float32)
    assert nll(probabilities, [0, 1]) == pytest.approx(np.log(2) / 2)


@pytest.mark.parametrize("floor", [-0.1, 1.0, np.nan])
def test_a_floor_that_is_no_probability_is_refused(floor):
    with pytest.raises(InvalidArgumentError, match="floor"):
        nll(PROBABILITIES, LABELS, floor=floor)


def test_a_column_is_not_broadcast_against_a_row():
    with pytest.raises(InvalidArgumentError, match=r"predictions \(3, 1\), targets \(3,\)"):
        mse(np.zeros((3, 1)), np.zeros(3))


@pytest.mark.parametrize("variance", [[0.0], [-1.0]])
def test_gaussian_nll_refuses_a_variance_that_is_not_positive(variance):
    with pytest.raises(InvalidArgumentError, match="variance must be positive"):
        gaussian_nll([0.0], variance, [0.0])
