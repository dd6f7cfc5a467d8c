"""Temperatures: the best one for public records, close to it for private ones."""

import math

import jax
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.metrics import accuracy, ece, nll
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.private_sums import Bisection
from tacit.recalibration import apply_temperature, private_temperature, public_temperature

ANY = Budget(epsilon=math.inf, delta=1e-5)


def predictions(num_records, sharpening=2.0, seed=0):
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_records, 3))
    true = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    labels = (true.cumsum(axis=1) < rng.random((num_records, 1))).sum(axis=1).clip(max=2)
    return apply_temperature(true, 1 / sharpening), labels


@pytest.mark.parametrize("sharpening", [0.5, 2.0])
def test_the_public_temperature_minimises_the_negative_log_likelihood(sharpening):
    told, labels = predictions(800, sharpening)
    best = minimize_scalar(
        lambda log: nll(apply_temperature(told, math.exp(log)), labels),
        bounds=(-3, 3),
        method="bounded",
        options={"xatol": 1e-8},
    )
    assert public_temperature(told, labels) == pytest.approx(math.exp(best.x), rel=1e-5)


def test_the_temperature_undoes_a_known_sharpening_and_calibrates():
    told, labels = predictions(20_000, sharpening=2.0)
    temperature = public_temperature(told, labels)
    assert temperature == pytest.approx(2.0, rel=0.1)
    mended = apply_temperature(told, temperature)
    assert ece(mended, labels) < ece(told, labels) / 3
    assert accuracy(mended, labels) == accuracy(told, labels)


def test_scaled_probabilities_are_the_softmax_of_scaled_logits():
    logits = np.random.default_rng(0).normal(size=(5, 3))
    told = np.asarray(jax.nn.softmax(logits, axis=-1))
    np.testing.assert_allclose(
        apply_temperature(told, 1.7), jax.nn.softmax(logits / 1.7, axis=-1), rtol=1e-5
    )
    np.testing.assert_allclose(apply_temperature(told, 1.0), told, rtol=1e-6)


def test_a_probability_of_zero_does_no_harm():
    scaled = apply_temperature([[1.0, 0.0]], 2.0)
    np.testing.assert_allclose(scaled, [[1.0, 0.0]], atol=1e-12)


def test_a_model_that_is_always_right_or_always_wrong_gets_an_end_of_the_range():
    assert public_temperature([[0.9, 0.1]], [0], lowest=0.1) == 0.1
    assert public_temperature([[0.9, 0.1]], [1], highest=9.0) == 9.0


def run_private(probabilities, labels, **settings):
    defaults = {"noise_multiplier": 1.0, "budget": ANY, "seed": 0}
    return private_temperature(probabilities, labels, **defaults | settings)


def test_with_next_to_no_noise_the_private_temperature_is_the_public_one_to_the_grid():
    told, labels = predictions(2000)
    ratio = (20 / 0.05) ** (1 / 254)
    private = run_private(told, labels, noise_multiplier=1e-4, clip_norm=50.0)[0]
    assert public_temperature(told, labels) == pytest.approx(private, rel=1.01 * (ratio - 1))


def test_a_private_temperature_is_close_at_a_modest_price():
    told, labels = predictions(4000)
    public = public_temperature(told, labels)
    found = [run_private(told, labels, seed=seed)[0] for seed in range(6)]
    np.testing.assert_allclose(found, public, rtol=0.2)
    for temperature in found:
        assert nll(apply_temperature(told, temperature), labels) < nll(told, labels) - 0.02


def test_bad_rows_do_not_spoil_the_private_temperature():
    told, labels = predictions(2000)
    clean = run_private(told, labels, noise_multiplier=0.1)[0]
    told = told.copy()
    told[:5] = np.nan
    spoiled = run_private(told, labels, noise_multiplier=0.1)[0]
    assert spoiled == pytest.approx(clean, rel=0.06)


def test_one_record_moves_the_slope_by_at_most_the_clip():
    told, labels = predictions(200)
    told[0] = [1.0, 0.0, 0.0]  # a slope of 69 nats at temperature one
    labels[0] = 1
    clipped = run_private(told, labels, noise_multiplier=1e-4, clip_norm=0.5)[0]
    without = run_private(told[1:], labels[1:], noise_multiplier=1e-4, clip_norm=0.5)[0]
    assert clipped == pytest.approx(without, rel=0.1)
    loose = run_private(told, labels, noise_multiplier=1e-4, clip_norm=1e3)[0]
    assert loose > 1.1 * without


def test_the_private_temperature_is_charged_before_a_record_is_read():
    class Full:
        charged = ()

        def begin(self, request):
            return self

        def charge(self, cost):
            self.charged = (*self.charged, cost)
            raise BudgetExceededError("the owner's budget is spent")

    ledger = Full()
    shapes = jax.ShapeDtypeStruct((60, 3), np.float32), jax.ShapeDtypeStruct((60,), np.int32)
    with pytest.raises(BudgetExceededError, match="owner"):
        run_private(*shapes, ledger=ledger)
    search = Bisection(num_queries=8, noise_multiplier=1.0, clip_norm=2.0)
    assert ledger.charged == (search.cost(60),)
    with pytest.raises(BudgetExceededError):
        run_private(*shapes, budget=Budget(epsilon=0.5, delta=1e-5))


def test_what_a_temperature_cost_is_returned_with_it():
    ledger = InMemoryLedger()
    _, cost = run_private(*predictions(50), ledger=ledger, num_queries=3)
    assert ledger.costs == [cost.event]
    assert not cost.is_secure


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"lowest": 30.0}, "lowest"),
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"noise_multiplier": 0.0}, "noise_multiplier"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_charged(wrong, message):
    ledger = InMemoryLedger()
    with pytest.raises(InvalidArgumentError, match=message):
        run_private(*predictions(5), ledger=ledger, **wrong)
    assert not ledger.costs


def test_arrays_of_other_shapes_are_refused():
    told, labels = predictions(5)
    with pytest.raises(InvalidArgumentError, match="shapes"):
        run_private(told, labels[:4])
    with pytest.raises(InvalidArgumentError, match="temperature"):
        apply_temperature(told, 0.0)
