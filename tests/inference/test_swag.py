"""Averages of iterates: their moments, their price, and what they say of known posteriors."""

import math
from dataclasses import dataclass

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.errors import InvalidArgumentError
from tacit.inference import SGD, SGLD, SWAG, IterateAverage, Plan, fit
from tacit.inference.method import Kernel
from tacit.models import Model
from tacit.posterior import load_posterior, predict
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian, LowRankGaussian, Points
from tacit.typing import Record

ITERATES = np.random.default_rng(0).normal(1e3, 1.0, size=(40, 3)).astype(np.float32)
DIM = 500


@dataclass(frozen=True)
class Recorded:
    """A method that walks through a known sequence."""

    num_records: int = 1
    sampler: object = Points()

    def cost(self, num_steps, *, start=0):
        return dp_accounting.NoOpDpEvent()

    def scale_noise(self, factor):
        return self

    def build(self, model):
        def step(key, state, records):
            return state + 1, ()

        def retain(state):
            return {"w": jnp.asarray(ITERATES)[state - 1]}

        return Kernel(lambda key: jnp.zeros((), jnp.int32), step, retain, self.sampler)


def after(method, num_steps):
    kernel = method.build(None)
    step = jax.jit(lambda state: kernel.step(None, state, None))
    state, info = kernel.init(seeded_key(0)), None
    for _ in range(num_steps):
        state, info = step(state)
    return jax.tree.map(np.asarray, kernel.retain(state)), info


@pytest.mark.parametrize(("num_steps", "every"), [(40, 1), (40, 3), (16, 1)])
def test_swag_has_the_moments_of_the_iterates_it_took(num_steps, every):
    taken = ITERATES[10:num_steps:every].astype(np.float64)
    kept, info = after(SWAG(base=Recorded(), start=10, every=every, rank=8), num_steps)
    assert info.num_taken == len(taken)
    # Far from zero, where a difference of mean squares would lose the variance in float32.
    np.testing.assert_allclose(kept["mean"]["w"], taken.mean(0), rtol=1e-6)
    np.testing.assert_allclose(kept["std"]["w"], np.sqrt(taken.var(0) / 2), rtol=2e-3)
    running = np.cumsum(taken, 0) / np.arange(1, len(taken) + 1)[:, None]
    columns = (taken - running)[-8:]
    covariance = columns.T @ columns / (2 * (len(columns) - 1))
    factors = kept["factors"]["w"]
    np.testing.assert_allclose(factors.T @ factors, covariance, rtol=5e-3, atol=1e-3)


def test_without_deviations_the_diagonal_has_its_full_weight():
    kept, _ = after(SWAG(base=Recorded(), start=10, rank=0), 40)
    np.testing.assert_allclose(kept["std"]["w"], ITERATES[10:].std(0), rtol=2e-3)
    assert kept.keys() == {"mean", "std"}


def test_a_run_that_never_reaches_the_start_retains_its_last_iterate_and_says_so():
    kept, info = after(SWAG(base=Recorded(), start=30, rank=4), 20)
    np.testing.assert_array_equal(kept["mean"]["w"], ITERATES[19])
    assert not kept["std"]["w"].any()
    assert not kept["factors"]["w"].any()
    assert info.num_taken == 0
    kept, info = after(IterateAverage(base=Recorded(), start=30), 20)
    np.testing.assert_array_equal(kept["w"], ITERATES[19])
    assert info.num_taken == 0


def test_the_iterate_average_is_the_mean_from_the_start_on():
    kept, _ = after(IterateAverage(base=Recorded(), start=10), 40)
    np.testing.assert_allclose(kept["w"], ITERATES[10:].mean(0), rtol=1e-6)


def test_a_decaying_average_is_a_plain_mean_at_first_and_then_forgets():
    by_hand = ITERATES[0].astype(np.float64)
    for number, iterate in enumerate(ITERATES[1:], start=2):
        share = max(1 / number, 1 - 0.9)
        by_hand = (1 - share) * by_hand + share * iterate
    kept, _ = after(IterateAverage(base=Recorded(), start=0, decay=0.9), 40)
    np.testing.assert_allclose(kept["w"], by_hand, rtol=1e-6)


@pytest.mark.parametrize("wrapper", [SWAG, IterateAverage])
def test_a_base_that_retains_no_points_is_refused(wrapper):
    with pytest.raises(InvalidArgumentError, match="retains DiagonalGaussian"):
        wrapper(base=Recorded(sampler=DiagonalGaussian()), start=0).build(None)


@pytest.mark.parametrize(
    ("wrapper", "wrong"),
    [
        (SWAG, {"start": -1}),
        (SWAG, {"every": 0}),
        (SWAG, {"rank": 1}),
        (IterateAverage, {"start": 1.5}),
        (IterateAverage, {"decay": 1.0}),
    ],
)
def test_an_impossible_setting_is_refused_by_name(wrapper, wrong):
    with pytest.raises(InvalidArgumentError, match=next(iter(wrong))):
        wrapper(**{"base": Recorded(), "start": 0} | wrong)


def normal_mean():
    """Coordinates with prior N(0, 1), each of which every record observes with N(0, 1)."""
    return Model(
        lambda key: jnp.zeros(DIM),
        lambda w: -0.5 * jnp.sum(w**2),
        lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
        lambda w, x, key: jax.nn.softmax(w[:2]),
    )


Y = np.random.default_rng(1).normal(3.0, 1.0, size=9).astype(np.float32)
TABLE = Record(jnp.zeros((9, 1)), jnp.asarray(Y), jnp.ones(9))
MODE, PRECISION = Y.sum() / 10, 10.0


def run(method, num_steps):
    plan = Plan(method=method, num_steps=num_steps)
    return fit(plan, normal_mean(), TABLE, budget=Budget(epsilon=math.inf, delta=1e-5), seed=0)


def test_the_mean_of_noisy_sgd_iterates_is_near_the_posterior_mode():
    # The clip is far above every gradient's norm, |y - w| sqrt(DIM).
    clip_norm, rate, num_taken = 10 * math.sqrt(DIM), 0.3, 900
    release = GaussianSum(
        sampling=FullBatch(num_records=9), clip_norm=clip_norm, noise_multiplier=0.01
    )
    base = SGD(release=release, optimizer=optax.sgd(rate))
    kept = run(SWAG(base=base, start=100, rank=4), 100 + num_taken).posterior.kept
    # w' - mode = (1 - a)(w - mode) + rate noise / 9 with a = rate PRECISION / 9: the mean of many
    # has standard deviation noise / (PRECISION sqrt(num_taken)), each coordinate its own.
    std = release.noise_std / PRECISION / math.sqrt(num_taken)
    error = np.asarray(kept["mean"][0, 0]) - MODE
    assert np.abs(error).max() < 5 * std
    # One iterate is much further away, and the retained spread says how far.
    a = rate * PRECISION / 9
    spread = rate / 9 * release.noise_std / math.sqrt(a * (2 - a))
    assert spread > 5 * std
    np.testing.assert_allclose(np.mean(kept["std"][0, 0]), spread / math.sqrt(2), rtol=0.03)


def test_on_langevin_iterates_the_gaussian_is_the_posterior():
    step_size, num_taken = 0.02, 600
    base = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=9), clip_norm=10 * math.sqrt(DIM), step_size=step_size
    )
    kept = run(SWAG(base=base, start=100, every=10, rank=0), 100 + 10 * num_taken).posterior.kept
    variance = 1 / PRECISION / (1 - step_size * PRECISION / 4)
    # (1 - h lambda / 2)^10 = .35: num_taken draws are worth num_taken (1 - .12) / (1 + .12) for
    # variances; DIM coordinates are independent.
    worth = DIM * num_taken * 0.78
    np.testing.assert_allclose(
        np.mean(kept["std"] ** 2), variance, rtol=5 * math.sqrt(2 / worth) + 3 / num_taken
    )


def test_averaging_is_free_and_calibration_reaches_the_base():
    base = SGLD.fixed_temperature(sampling=FullBatch(num_records=9), clip_norm=1.0, step_size=0.1)
    for wrapper in (SWAG(base=base, start=1), IterateAverage(base=base, start=1)):
        assert wrapper.cost(7, start=3) == base.cost(7, start=3)
        assert wrapper.scale_noise(2.0).cost(7) == base.scale_noise(2.0).cost(7)
        assert wrapper.num_records == 9


def test_a_swag_posterior_is_saved_loaded_and_predicted_with(tmp_path):
    base = SGLD.fixed_temperature(sampling=FullBatch(num_records=9), clip_norm=1.0, step_size=0.1)
    result = run(SWAG(base=base, start=5, rank=3), 12)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        result.posterior.save(tmp_path)
    loaded = load_posterior(tmp_path, model=normal_mean())
    assert loaded.sampler == LowRankGaussian(rank=3)
    x = jnp.zeros((4, 1))
    for one, other in zip(predict(loaded, x), predict(result.posterior, x), strict=True):
        np.testing.assert_array_equal(one, other)
