"""OOD detection against scikit-learn, with ties."""

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from tacit.errors import InvalidArgumentError
from tacit.metrics import classification_uncertainty, ood_auroc
from tacit.metrics.selection import fpr95, fpr_at, ood_scores


def scores(rounded, seed=0):
    rng = np.random.default_rng(seed)
    inside, outside = rng.normal(size=130), rng.normal(1.0, size=70)
    return (np.round(inside), np.round(outside)) if rounded else (inside, outside)


@pytest.mark.parametrize("rounded", [False, True])
def test_auroc_is_that_of_scikit_learn_with_and_without_ties(rounded):
    inside, outside = scores(rounded)
    labels = [0] * 130 + [1] * 70
    expected = roc_auc_score(labels, np.concatenate([inside, outside]))
    assert ood_auroc(inside, outside) == pytest.approx(expected)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("share", [0.5, 0.8, 0.95, 1.0])
def test_the_false_positive_rate_is_read_off_scikit_learns_curve(rounded, share):
    inside, outside = scores(rounded)
    accepted = [1] * 130 + [0] * 70
    fpr, tpr, _ = roc_curve(accepted, -np.concatenate([inside, outside]), drop_intermediate=False)
    assert fpr_at(inside, outside, share=share) == pytest.approx(fpr[np.argmax(tpr >= share)])


def test_a_perfect_score_and_a_useless_one():
    assert (ood_auroc([0, 1], [2, 3]), fpr95([0, 1], [2, 3])) == (1.0, 0.0)
    assert (ood_auroc([2, 2], [2, 2]), fpr95([2, 2], [2, 2])) == (0.5, 1.0)
    assert ood_auroc([2, 3], [0, 1]) == 0.0


def test_a_share_that_is_a_whole_number_of_records_needs_no_more_of_them():
    # .95 * 20 in floating point; the twentieth, foreign-looking record need not be accepted.
    assert fpr95([0.0] * 19 + [9.0], [5.0]) == 0.0
    assert fpr_at([0.0] * 19 + [9.0], [5.0], share=0.951) == 1.0


def test_every_score_is_larger_where_the_draws_are_less_certain():
    certain, torn = [[0.98, 0.02]] * 4, [[0.9, 0.1], [0.1, 0.9]] * 2
    draws = np.stack([certain, torn], axis=1)
    for score in ood_scores(classification_uncertainty(draws)):
        assert score[1] > score[0]


def test_the_max_probability_score_tells_confidences_close_to_one_apart():
    p = np.float32([1 - 1e-7, 1 - 2e-7])
    parts = classification_uncertainty(np.stack([p, 1 - p], axis=1)[None])
    parts = parts._replace(probabilities=jnp.asarray(parts.probabilities, jnp.float32))
    found = ood_scores(parts).max_probability
    assert found[0] < found[1]


@pytest.mark.parametrize("bad", [[], [[0.1]], [np.nan], 1.0])
def test_unusable_scores_are_refused_by_name(bad):
    with pytest.raises(InvalidArgumentError, match="outside"):
        ood_auroc([0.0], bad)
    with pytest.raises(InvalidArgumentError, match="inside"):
        fpr95(bad, [0.0])
