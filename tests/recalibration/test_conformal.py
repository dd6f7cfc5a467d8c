"""Conformal thresholds: exact coverage when public, never less when private."""

import math

import jax
import numpy as np
import pytest

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.metrics import interval_coverage
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.private_sums import Bisection
from tacit.recalibration import (
    aps_scores,
    conformal_interval,
    lac_scores,
    prediction_sets,
    private_threshold,
    public_threshold,
    residual_scores,
    scores_of_labels,
)

ANY = Budget(epsilon=math.inf, delta=1e-5)


def predictions(num_records, seed):
    """Predictions that are too sure of themselves, with labels of the true probabilities."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_records, 4))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) < rng.random((num_records, 1))).sum(axis=1).clip(max=3)
    told = np.exp(3 * logits) / np.exp(3 * logits).sum(axis=1, keepdims=True)
    return told, labels


def test_the_threshold_has_the_finite_sample_rank():
    scores = np.random.default_rng(0).permutation(np.arange(1.0, 20.0))
    # (19 + 1) * .9 = 18: the eighteenth smallest.
    assert public_threshold(scores, miscoverage=0.1) == 18.0
    assert public_threshold(scores, miscoverage=0.05) == 19.0
    assert public_threshold(scores, miscoverage=0.04) == math.inf


def test_public_coverage_is_exactly_what_the_rank_says_on_average():
    # With n = 19 and continuous scores coverage is 18/20 on average, not only at least .9.
    rng = np.random.default_rng(0)
    scores = rng.random((4000, 20))
    thresholds = np.array([public_threshold(row[:-1], miscoverage=0.1) for row in scores])
    covered = np.mean(scores[:, -1] <= thresholds)
    assert covered == pytest.approx(0.9, abs=5 * math.sqrt(0.09 / 4000))


@pytest.mark.parametrize(
    "scores_of",
    [lambda p, seed: lac_scores(p), lambda p, seed: aps_scores(p, seed=seed)],
    ids=["lac", "aps"],
)
def test_sets_of_an_overconfident_model_cover_as_often_as_they_say(scores_of):
    told, labels = predictions(4000, seed=0)
    scores = scores_of_labels(scores_of(told, 1), labels)
    threshold = public_threshold(scores, miscoverage=0.1)
    told, labels = predictions(4000, seed=1)
    sets = prediction_sets(scores_of(told, 2), threshold)
    coverage = sets[np.arange(4000), labels].mean()
    # Two binomials of 4000: standard deviation sqrt(2 * .09 / 4000) = .0067; five of them.
    assert coverage == pytest.approx(0.9, abs=0.034)
    assert sets.sum(axis=1).mean() < 3.5


def test_aps_scores_by_hand():
    scores = aps_scores([[0.2, 0.5, 0.3]], seed=0)
    part = np.random.default_rng(0).random()
    np.testing.assert_allclose(scores, [[0.8 + part * 0.2, part * 0.5, 0.5 + part * 0.3]])


def test_conformal_intervals_mend_a_model_with_the_wrong_noise():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=(2, 3000)), np.full((2, 3000), 0.3)
    targets = mean + rng.normal(size=(2, 3000))
    threshold = public_threshold(residual_scores(mean[0], std[0], targets[0]), miscoverage=0.2)
    band = conformal_interval(mean[1], std[1], threshold)
    assert interval_coverage(*band, targets[1]) == pytest.approx(0.8, abs=5 * 0.0103)


def run_private(scores, **settings):
    defaults = {"miscoverage": 0.1, "noise_multiplier": 2.0, "budget": ANY, "seed": 0}
    return private_threshold(scores, **defaults | settings)


def test_with_next_to_no_noise_the_private_threshold_is_the_public_one_rounded_up():
    scores = np.random.default_rng(0).random(2000)
    public = public_threshold(scores, miscoverage=0.1)
    private, _ = run_private(scores, noise_multiplier=1e-4, failure=1e-6)
    assert public <= private.threshold <= public + 2 / 254
    assert private.margin < 0.01


@pytest.fixture(scope="module")
def thresholds():
    scores = np.random.default_rng(0).random(1000)
    return scores, [run_private(scores, seed=seed, failure=0.01)[0] for seed in range(60)]


def test_noise_never_takes_the_threshold_below_what_coverage_needs(thresholds):
    scores, found = thresholds
    rank = math.ceil(1001 * 0.9 / 0.99)
    needed = np.sort(scores)[rank - 1]
    # The chance of failure is .01 for each of 60.
    assert sum(choice.threshold < needed for choice in found) <= 3


def test_private_coverage_exceeds_the_asked_by_little_more_than_the_margin(thresholds):
    _, found = thresholds
    # Scores are uniform, so that a threshold is its coverage.
    coverage = np.mean([choice.threshold for choice in found])
    margin = found[0].margin
    assert margin == pytest.approx(2 * math.sqrt(8) * (3.023 + 1 / 32), rel=1e-3)
    # Rank and margin, one grid cell of 1/254, and five standard deviations of the score's own
    # empirical distribution, .009 each.
    assert 0.9 < coverage < 0.909 + margin / 1000 + 1 / 254 + 5 * 0.009


def test_noise_that_hides_everything_gives_a_set_of_all_classes():
    choice, _ = run_private(np.random.default_rng(0).random(200), noise_multiplier=50.0)
    assert choice.threshold == math.inf
    assert prediction_sets(lac_scores([[0.999, 0.001]]), choice.threshold).all()


def test_scores_that_are_no_numbers_count_as_the_largest():
    scores = np.full(1000, 0.2)
    scores[:150] = np.nan
    assert run_private(scores, noise_multiplier=0.1)[0].threshold == math.inf
    scores[:150] = 0.1
    assert run_private(scores, noise_multiplier=0.1)[0].threshold == pytest.approx(0.2, abs=1 / 254)


def test_the_private_threshold_is_charged_before_a_record_is_read():
    class Full:
        charged = ()

        def begin(self, request):
            return self

        def charge(self, cost):
            self.charged = (*self.charged, cost)
            raise BudgetExceededError("the owner's budget is spent")

    ledger, shapes = Full(), jax.ShapeDtypeStruct((500,), np.float32)
    with pytest.raises(BudgetExceededError, match="owner"):
        run_private(shapes, ledger=ledger)
    search = Bisection(num_queries=8, noise_multiplier=2.0, clip_norm=1.0)
    assert ledger.charged == (search.cost(500),)
    with pytest.raises(BudgetExceededError):
        run_private(shapes, budget=Budget(epsilon=0.5, delta=1e-5))


def test_what_a_threshold_cost_is_returned_with_it():
    ledger = InMemoryLedger()
    _, cost = run_private(np.full(200, 0.2), ledger=ledger, num_queries=4)
    assert ledger.costs == [cost.event]
    assert not cost.is_secure
    assert run_private(np.full(200, 0.2), seed=None, num_queries=4)[1].is_secure


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"miscoverage": 1.0}, "miscoverage"),
        ({"failure": 0.2}, "failure"),
        ({"lowest": 1.0}, "lowest"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
        ({"miscoverage": 0.006}, "more records"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_charged(wrong, message):
    ledger = InMemoryLedger()
    with pytest.raises(InvalidArgumentError, match=message):
        run_private(np.zeros(50), ledger=ledger, **wrong)
    assert not ledger.costs


@pytest.mark.parametrize("scores", [np.zeros((5, 2)), np.zeros(0)])
def test_scores_of_another_shape_are_refused(scores):
    with pytest.raises(InvalidArgumentError, match="scores must be"):
        run_private(scores)
    with pytest.raises(InvalidArgumentError, match="scores must be"):
        public_threshold(scores, miscoverage=0.1)
