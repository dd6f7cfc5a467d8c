"""Certificates hold against attacks, for the very predictor whose accuracy is reported."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from certify.posteriors import (
    CLASSIFIER,
    NETWORK,
    X,
    linear_binary,
    posterior_of,
    random_draws,
)
from tacit.certify import Intervals, Linear, certify_predictive, robust_draws
from tacit.certify.predictive import MeanLogit, MeanSoftmax, certified_curve
from tacit.errors import InvalidArgumentError
from tacit.models import MLP, Bernoulli, Categorical, EmbeddingBag, FixedGaussian
from tacit.posterior import predict
from tacit.robust import L2, PGD, Linf, attack_posterior

Y = jnp.argmax(predict(CLASSIFIER, X).probabilities, axis=-1)
BALLS = [Linf(radius=0.1), L2(radius=0.15)]


@pytest.fixture(scope="module", params=BALLS, ids=lambda ball: type(ball).__name__)
def case(request):
    """Returns a ball, its certificate, and classes under an attack and at points of the ball."""
    ball = request.param
    certified = certify_predictive(CLASSIFIER, X, Y, ball, batch_size=40)
    attacked = attack_posterior(CLASSIFIER, PGD(ball=ball, num_steps=10), X, Y)
    classes = [
        jnp.argmax(predict(CLASSIFIER, x).probabilities, axis=-1)
        for x in [attacked] + [points_of(ball, seed) for seed in range(5)]
    ]
    return ball, certified, classes


def points_of(ball, seed):
    """Returns a point on the border of each input's ball."""
    moves = np.random.default_rng(seed).normal(size=X.shape)
    norm = np.linalg.norm(moves, axis=1, keepdims=True, ord=np.inf if ball == BALLS[0] else 2)
    return X + np.float32(0.999 * ball.radius * moves / norm)


def test_no_attack_changes_a_certified_prediction(case):
    _, certified, classes = case
    assert 0.2 < jnp.mean(certified.is_certified) < 0.9  # both kinds are put to the test
    for found in classes:
        assert ((found == certified.predicted) | ~certified.is_certified).all()


def test_an_attack_changes_some_prediction_without_a_certificate(case):
    _, certified, (attacked, *_) = case
    assert jnp.any(attacked != certified.predicted)


def test_certified_predictions_of_the_mean_logit_hold_at_points_of_the_ball():
    ball = Linf(radius=0.3)
    certified = certify_predictive(CLASSIFIER, X, Y, ball, predictor=MeanLogit(), batch_size=40)
    assert 0.2 < jnp.mean(certified.is_certified) < 0.9

    @jax.jit
    def mean_logits(x):
        one = lambda params, x: NETWORK.apply(params, x, jax.random.key(0))  # noqa: E731
        params = CLASSIFIER.draws()["network"]
        return jnp.mean(jax.vmap(jax.vmap(one, (None, 0)), (0, None))(params, x), axis=0)

    moves = np.random.default_rng(0).uniform(-0.3, 0.3, size=(20, *X.shape)).astype(np.float32)
    for move in moves:
        found = jnp.argmax(mean_logits(X + move), axis=-1)
        assert ((found == certified.predicted) | ~certified.is_certified).all()


def test_averaging_the_softmax_of_worst_logits_certifies_what_an_attack_changes():
    # In both draws nine classes have logits in [-20, 0]; that of class 0 is fixed.
    fixed = [math.log(0.73 / 0.27), math.log(0.12 / 0.88)]
    network = MLP(num_inputs=9, num_outputs=10)
    kernel = jnp.eye(10)[1:]
    posterior = posterior_of(
        network,
        Categorical(num_classes=10),
        [{"dense_0": {"kernel": kernel, "bias": jnp.array([z] + [-10.0] * 9)}} for z in fixed],
    )
    worst = jnp.array([[z] + [0.0] * 9 for z in fixed])
    averaged = jnp.mean(jax.nn.softmax(worst), axis=0)
    np.testing.assert_allclose(averaged[:2], [0.123, 0.097], atol=6e-4)  # "certified"

    centre, witness = jnp.zeros((1, 9)), jnp.array([[10.0] + [-10.0] * 8])
    found = predict(posterior, jnp.concatenate([centre, witness])).probabilities
    assert jnp.argmax(found[0]) == 0
    np.testing.assert_allclose(found[1, :2], [0.425, 0.575], atol=6e-4)

    ball = Linf(radius=10.0)
    for bounds in (Intervals(), Linear()):
        at_ten, at_five = certified_curve(
            posterior, centre, jnp.zeros(1), ball, [10.0, 5.0], bounds=bounds
        )
        assert not at_ten.is_certified[0]
        assert at_five.is_certified[0]


@pytest.mark.parametrize(("ball", "order"), [(Linf(radius=0.3), 1), (L2(radius=0.3), 2)])
def test_a_logistic_regression_is_certified_where_the_dual_norm_says(ball, order):
    kernel = np.array([1.0, -2.0, 0.5])
    y = (X @ kernel > 0).astype(int)
    is_safe = np.abs(X @ kernel) > 0.3 * np.linalg.norm(kernel, ord=order)
    for predictor in (MeanSoftmax(), MeanLogit()):
        certified = certify_predictive(linear_binary(kernel), X, y, ball, predictor=predictor)
        np.testing.assert_array_equal(certified.is_certified, is_safe)
        assert certified.certified_accuracy.estimate == np.mean(is_safe)


def test_several_binary_draws_are_certified_on_their_mean():
    posterior = linear_binary([3.0], [-1.0])  # together the logit is x
    x, y = jnp.array([[0.5], [-0.2], [0.9]]), jnp.array([1, 0, 1])
    certified = certify_predictive(posterior, x, y, Linf(radius=0.3), predictor=MeanLogit())
    # Lower bounds are taken draw by draw: 3 (|x| - r) - (|x| + r) must be positive.
    np.testing.assert_array_equal(certified.is_certified, [False, False, True])


def test_predictions_are_those_of_predict_with_the_same_draws_and_masks():
    network = dataclasses.replace(NETWORK, dropout=0.5)
    posterior = posterior_of(network, Categorical(num_classes=3), random_draws(network, 3, seed=2))
    options = {"num_draws": 7, "seed": 3}
    certified = certify_predictive(
        posterior, X, Y, Linf(radius=0.0), bounds=Intervals(), batch_size=16, **options
    )
    probabilities = predict(posterior, X, **options).probabilities
    np.testing.assert_array_equal(certified.predicted, jnp.argmax(probabilities, axis=-1))
    top = jnp.sort(probabilities, axis=-1)
    assert certified.is_certified[top[:, -1] - top[:, -2] > 0.01].all()


def test_a_curve_falls_and_agrees_with_single_certificates():
    curve = certified_curve(CLASSIFIER, X, Y, BALLS[0], [0.2, 0.0, 0.1], batch_size=40)
    assert [each.radius for each in curve] == [0.2, 0.0, 0.1]
    far, none, near = (each.certified_accuracy.estimate for each in curve)
    assert far < near < none == curve[0].accuracy.estimate == 1.0
    single = certify_predictive(CLASSIFIER, X, Y, BALLS[0], batch_size=40)
    np.testing.assert_array_equal(curve[2].is_certified, single.is_certified)


def test_linear_bounds_certify_more_than_intervals(case):
    ball, certified, _ = case
    loose = certify_predictive(CLASSIFIER, X, Y, ball, bounds=Intervals())
    assert (certified.is_certified | ~loose.is_certified).all()
    assert jnp.sum(certified.is_certified) > jnp.sum(loose.is_certified)


def test_wrong_predictions_do_not_count_as_certified_accuracy():
    certified = certify_predictive(CLASSIFIER, X, (Y + 1) % 3, BALLS[0], batch_size=40)
    assert certified.is_certified.any()
    assert certified.certified_accuracy.estimate == 0.0
    assert certified.certified_accuracy.high < 0.1
    assert "certified accuracy 0.000 [0.000" in str(certified)


def test_robust_draws_are_counted_one_by_one():
    posterior = linear_binary([1.0], [2.0], [-1.0], [1.0])
    found = robust_draws(posterior, jnp.array([[1.0], [0.1]]), jnp.array([1, 1]), Linf(radius=0.5))
    np.testing.assert_array_equal(found.share, [0.75, 0.0])
    assert found.num_draws == 4
    # The probability p at which three or more of four happen 5% of the time: 4 p^3 - 3 p^4 = 0.05.
    low = found.lower[0]
    assert 4 * low**3 - 3 * low**4 == pytest.approx(0.05)
    assert found.lower[1] == 0.0


@pytest.mark.parametrize(
    ("network", "likelihood"),
    [
        (MLP(num_inputs=3, num_outputs=1), FixedGaussian(std=1.0)),
        (EmbeddingBag(num_tokens=3, num_features=2, num_outputs=1), Bernoulli()),
    ],
    ids=["regression", "bag"],
)
def test_what_has_no_classes_or_no_ball_is_refused(network, likelihood):
    posterior = posterior_of(network, likelihood, random_draws(network, 1, seed=0))
    with pytest.raises(InvalidArgumentError, match="must be an MLP or a CNN"):
        certify_predictive(posterior, X, Y, BALLS[0])
