"""The experiments on robust posteriors choose honestly and certify what they score."""

import numpy as np
import pytest
from experiments import choosing_robust, robust_mnist, robust_pneumonia, together
from experiments.cells import read_rows
from experiments.choosing import winner
from experiments.images import image_set
from experiments.interval_training import certified_share, robust_fit, robust_scores
from experiments.markdown import at
from experiments.scoring import predictions

import tacit

ROWS = read_rows("choosing_robust")
SMALL = (
    robust_mnist.EXPERIMENT.cells[0]
    | robust_mnist.QUICK
    | {"epsilon": 20.0, "batch_size": 400, "num_steps": 40, "average": 0.0, "radius": 0.02}
)


@pytest.mark.parametrize("key", robust_mnist.CHOSEN)
def test_headline_settings_won_on_the_stand_in(key):
    stand_in, method, epsilon = key
    tried = at(ROWS, {"data": stand_in, "method": method, "epsilon": epsilon})
    chosen = robust_mnist.cell(stand_in, method, epsilon, robust_mnist.CHOSEN[key])
    assert winner(tried, choosing_robust.score) == chosen


def test_settings_for_pneumonia_won_on_shirts():
    settings = robust_pneumonia.EXPERIMENT.cells[0]
    won = winner(at(ROWS, {"data": "shirts"}), choosing_robust.score)
    assert won == settings | {"data": "shirts"}


def test_the_same_posterior_is_asked_for_all_properties():
    for settings in together.EXPERIMENT.cells:
        base = {name: settings[name] for name in robust_mnist.EXPERIMENT.cells[0]}
        twins = [
            each
            for each in robust_mnist.EXPERIMENT.cells
            if each | {"epsilon": None} == base | {"epsilon": None}
        ]
        assert twins


@pytest.fixture(scope="module")
def fitted():
    train, test = image_set("digits")
    return robust_fit(SMALL, train, num_classes=10, seed=0), test


def test_accuracy_and_certificate_are_of_the_same_predictor(fitted):
    fit, test = fitted
    scores = robust_scores(fit.posterior, SMALL, test)
    assert scores["certified by intervals"] <= scores["certified"] <= scores["accuracy"]


def test_at_radius_zero_all_that_is_right_is_certain(fitted):
    fit, test = fitted
    scores = robust_scores(fit.posterior, SMALL | {"radius": 0.0}, test)
    assert scores["certified"] == pytest.approx(scores["accuracy"], abs=2 / len(test.y))


def test_no_attack_goes_below_what_is_certified(fitted):
    fit, test = fitted
    ball = tacit.Linf(radius=SMALL["radius"], low=0.0, high=1.0)
    found = tacit.robust_accuracy(
        fit.posterior,
        tacit.PGD(ball=ball, num_steps=5),
        test.x,
        test.y,
        num_draws=SMALL["num_draws"],
    )
    certified = certified_share(fit.posterior, SMALL, test)["certified"]
    assert certified > 0.1
    assert int(found.is_robust.sum()) >= round(certified * len(test.y))


def test_a_folded_network_says_the_same_of_an_image_and_of_its_mirror_image():
    train, test = image_set("digits")
    fit = robust_fit(SMALL | {"mirrored": True}, train, num_classes=10, seed=0)
    both = [
        predictions(fit.posterior, x).probabilities for x in (test.x[:50], test.x[:50, :, ::-1])
    ]
    np.testing.assert_allclose(*both, atol=1e-5)
    kernel = fit.posterior.kept["network"]["dense_0"]["kernel"]
    assert kernel.shape[-2] == 14 * 14
    assert np.ptp(both[0]) > 0.01  # and it says something
