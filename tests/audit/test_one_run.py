"""One-run auditing: the bound is the paper's, and honest noise is not accused."""

import numpy as np
import pytest
from scipy.special import expit
from scipy.stats import binom, norm

from tacit.audit.bounds import (
    AuditedData,
    guess_rules,
    one_run_lower_bound,
    one_run_p_value,
    right_guesses,
)
from tacit.audit.runs import coins, membership_figures, one_run_result
from tacit.errors import InvalidArgumentError
from tacit.privacy.interpretation import gaussian_mu

DATA = AuditedData(name="test", num_records=1, public=True, statement="synthetic")


def concave_envelope(points):
    """The corners of the best curve through points (false, true positives), in rising order."""
    corners = []
    for x, y in points:
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (x1 - x0) * (y - y0) < (y1 - y0) * (x - x0):
                break
            corners.pop()
        corners.append((x, y))
    return corners


@pytest.mark.parametrize(("shift", "epsilon"), [(1, 1.13346), (2, 2.311945), (4, 4.395568)])
def test_the_bound_is_the_published_one_for_shifted_normal_scores(shift, epsilon):
    # 10 000 present and 10 000 absent canaries at normal quantiles, significance 0.05 shared by all
    # corners of their curve, delta 1e-6: the values that JAX Privacy's own tests hold.
    count = 10_000
    absent = norm.ppf((np.arange(count) + 0.5) / count)
    present = absent + shift
    at = np.append(np.union1d(absent, present), np.inf)
    found = count - np.searchsorted(present, at)
    accused = count - np.searchsorted(absent, at)
    corners = concave_envelope(sorted(set(zip(accused.tolist(), found.tolist(), strict=True))))
    confidence = 1 - 0.05 / len(corners)

    def is_refuted(corner, claimed):
        wrong, right = corner
        p_value = one_run_p_value(right, right + wrong, 2 * count, epsilon=claimed, delta=1e-6)
        return p_value <= 1 - confidence

    refuting = [c for c in corners if c[1] > c[0] and is_refuted(c, epsilon - 1e-5)]
    assert refuting
    best = max(
        one_run_lower_bound(right, right + wrong, 2 * count, delta=1e-6, confidence=confidence)
        for wrong, right in refuting
    )
    assert best == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize(
    ("right", "guesses", "canaries"), [(9, 10, 10), (70, 100, 1000), (1, 1, 5)]
)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0])
def test_the_p_value_is_the_theorem_written_out(right, guesses, canaries, epsilon, delta):
    def at_least(count):
        return binom.sf(count - 1, guesses, expit(epsilon)) if count > 0 else 1.0

    gain = max((at_least(right - i) - at_least(right)) / i for i in range(1, canaries + 1))
    expected = min(1.0, at_least(right) + 2 * canaries * delta * gain)
    found = one_run_p_value(right, guesses, canaries, epsilon=epsilon, delta=delta)
    assert found == pytest.approx(expected, rel=1e-9)


def test_nothing_right_refutes_nothing():
    assert one_run_p_value(0, 10, 10, epsilon=0.0, delta=0.0) == 1.0
    assert one_run_lower_bound(0, 0, 10, delta=0.0, confidence=0.95) == 0.0
    assert one_run_lower_bound(5, 10, 10, delta=0.0, confidence=0.95) == 0.0


def test_with_delta_zero_the_bound_is_an_exact_binomial_one():
    bound = one_run_lower_bound(90, 100, 100, delta=0.0, confidence=0.95)
    assert binom.sf(89, 100, expit(bound)) == pytest.approx(0.05, rel=1e-6)


def test_rules_guess_at_most_once_for_each_canary():
    for count in (2, 3, 5, 64, 1000, 1001):
        assert all(1 <= sum(rule) <= count for rule in guess_rules(count))
    assert len(guess_rules(1000)) == 20
    assert len(set(guess_rules(1000))) == 20


def test_guesses_are_counted_on_both_sides_and_ties_follow_the_number():
    scores, present = [5.0, 1.0, 3.0, 3.0], [True, False, False, True]
    assert right_guesses(scores, present, (1, 1)) == 2
    assert right_guesses(scores, present, (2, 0)) == 1
    assert right_guesses(scores, present, (2, 2)) == 2


def test_coins_are_fair_and_independent_of_each_other():
    tossed = np.stack([coins(50, seed=seed) for seed in range(400)])
    # Five sigma of a mean of 20 000 fair coins, and of the correlations of 400.
    assert abs(tossed.mean() - 0.5) < 5 * 0.5 / np.sqrt(tossed.size)
    correlations = np.corrcoef(tossed.T)[np.triu_indices(50, 1)]
    assert np.abs(correlations).max() < 5.5 / np.sqrt(400)


def result(scores, present, epsilon=1.0, delta=1e-5, confidence=0.95):
    return one_run_result(
        scores,
        present,
        attack="a test",
        data=DATA,
        epsilon=epsilon,
        delta=delta,
        confidence=confidence,
    )


def test_honest_gaussian_noise_is_accused_no_more_often_than_the_confidence_allows():
    # Scores of Dirac canaries in one Gaussian release that spends exactly the claim.
    generator = np.random.default_rng(0)
    mu, num_runs = gaussian_mu(epsilon=1.0, delta=1e-5), 100
    bounds, verdicts = [], 0
    for _ in range(num_runs):
        present = generator.integers(0, 2, 300).astype(bool)
        found = result(mu * present + generator.normal(size=300), present, confidence=0.8)
        bounds.append(found.lower_bound)
        verdicts += found.violation is not None
    # One in five may be wrong; five sigma above that never happens by chance. In truth it is
    # far rarer, as the attack does not reach the bound.
    assert verdicts <= num_runs * 0.2 + 5 * np.sqrt(num_runs * 0.2 * 0.8)
    assert np.mean(bounds) < 0.5


def test_ten_times_too_little_noise_is_a_violation():
    generator = np.random.default_rng(0)
    present = generator.integers(0, 2, 300).astype(bool)
    mu = 10 * gaussian_mu(epsilon=1.0, delta=1e-5)
    found = result(mu * present + generator.normal(size=300), present)
    assert found.verdict.startswith("VIOLATION: epsilon is at least")
    assert 1.0 < found.lower_bound < 7.0


def test_scores_that_are_no_numbers_count_as_low():
    present = np.arange(100) % 2 == 0
    scores = np.where(present, 1.0, np.nan)
    assert result(scores, present).lower_bound > 2.0


def test_scores_and_coins_must_match():
    with pytest.raises(InvalidArgumentError, match="one value for each canary"):
        result([1.0, 2.0], [True])


def test_impossible_counts_are_refused():
    with pytest.raises(InvalidArgumentError, match="rising order"):
        one_run_p_value(11, 10, 20, epsilon=1.0, delta=0.0)


def test_the_usual_figures_describe_an_attack():
    present = np.arange(200) < 100
    perfect = membership_figures(present.astype(float), present)
    assert perfect["auc"] == 1.0
    assert perfect["true_positive_rate_at_0.01"]["value"] == 1.0
    blind = membership_figures(np.zeros(200), present)
    assert blind["auc"] == 0.5
    assert blind["true_positive_rate_at_0.001"]["value"] == 0.0
    assert membership_figures([1.0], [True]) == {}
