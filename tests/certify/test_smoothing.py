"""Smoothed classifiers: radii that are known for a linear classifier, and doubt where it is due."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom

from certify.posteriors import linear_binary, posterior_of, random_draws
from tacit.certify import smooth
from tacit.certify.smoothing import ABSTAINED
from tacit.errors import InvalidArgumentError
from tacit.metrics.confidence import clopper_pearson, clopper_pearson_lower
from tacit.models import MLP, FixedGaussian

KERNEL = np.array([2.0, -1.0])


def at_distance(distances):
    """Returns points at these signed distances from where the linear classifier decides."""
    return jnp.array(np.outer(distances, KERNEL / np.linalg.norm(KERNEL)), jnp.float32)


def test_the_radius_of_a_linear_classifier_is_just_under_its_distance():
    distances = np.array([-1.0, -0.4, 0.3, 0.7])
    found = smooth(linear_binary(KERNEL), at_distance(distances), std=0.5, num_estimation=2000)
    np.testing.assert_array_equal(found.predicted, (distances > 0).astype(int))
    assert (found.radius <= np.abs(distances)).all()
    # The lower bound is 3.1 standard errors below a share that errs by 5 at the very most. At the
    # farthest point the share is 0.977 +- 0.0034, and the radius has a slope of std / pdf(2) = 9.3.
    assert (found.radius >= np.abs(distances) - 8.1 * 0.0034 * 9.3).all()


def test_no_radius_exceeds_what_the_number_of_votes_can_show():
    found = smooth(linear_binary(KERNEL), at_distance([50.0]), std=0.5, num_estimation=200)
    assert found.radius[0] == pytest.approx(0.5 * ndtri(0.001 ** (1 / 200)))


def test_an_input_on_the_boundary_is_abstained_from():
    found = smooth(linear_binary(KERNEL), at_distance([0.0]), std=0.5, num_estimation=200)
    assert found.predicted[0] == ABSTAINED
    assert found.radius[0] == 0.0


def test_certified_accuracy_counts_what_is_right_and_far_enough():
    found = smooth(linear_binary(KERNEL), at_distance([1.0, 0.2, -1.0, 0.0]), std=0.5)
    labels = jnp.array([1, 1, 1, 1])
    assert found.certified_accuracy(labels, 0.0).estimate == 0.5
    assert found.certified_accuracy(labels, 0.5).estimate == 0.25


def test_batches_of_any_size_count_the_same_votes():
    posterior, x = linear_binary(KERNEL, [1.0, 1.0]), at_distance([0.2])
    options = {"std": 0.5, "num_selection": 10, "num_estimation": 100}
    first, second = (smooth(posterior, x, batch_size=size, **options) for size in (64, 500))
    np.testing.assert_array_equal(first.radius, second.radius)


def test_a_regression_is_refused():
    network = MLP(num_inputs=2, num_outputs=1)
    posterior = posterior_of(network, FixedGaussian(std=1.0), random_draws(network, 1, seed=0))
    with pytest.raises(InvalidArgumentError, match="must be a classifier"):
        smooth(posterior, at_distance([1.0]), std=0.5)


@pytest.mark.parametrize(("successes", "trials"), [(0, 5), (3, 10), (10, 10)])
def test_the_exact_interval_ends_where_the_tails_of_the_binomial_are_half_of_the_rest(
    successes, trials
):
    low, estimate, high = clopper_pearson(successes, trials, level=0.9)
    assert estimate == successes / trials
    if successes > 0:
        assert binom.sf(successes - 1, trials, low) == pytest.approx(0.05)
    if successes < trials:
        assert binom.cdf(successes, trials, high) == pytest.approx(0.05)
    assert (low == 0.0) == (successes == 0)
    assert (high == 1.0) == (successes == trials)


def test_the_exact_lower_bound_is_above_the_truth_no_more_often_than_allowed():
    bounds = np.array([clopper_pearson_lower(k, 20, level=0.9) for k in range(21)])
    for truth in np.linspace(0.05, 0.95, 19):
        assert binom.pmf(np.arange(21), 20, truth)[bounds > truth].sum() <= 0.1


def test_more_successes_than_trials_are_refused():
    with pytest.raises(InvalidArgumentError, match="between 0 and trials"):
        clopper_pearson_lower(3, 2)
