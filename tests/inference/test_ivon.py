"""IVON steps as written: curvature from the released gradient, the prior exact, always positive."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from tacit.errors import InvalidArgumentError
from tacit.inference import IVON
from tacit.inference.ivon import _prior_moments
from tacit.inference.schedules import Exponential
from tacit.models import FixedGaussian, GaussianPrior, LaplacePrior, from_function
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.samplers import DiagonalGaussian
from tacit.typing import Record

NUM_RECORDS, PRIOR_STD = 5, 0.5
X = np.random.default_rng(0).normal(size=(NUM_RECORDS, 3)).astype(np.float32)
Y = X @ np.array([0.5, -1.0, 0.3], np.float32)
RECORDS = Record(jnp.asarray(X), jnp.asarray(Y), jnp.ones(NUM_RECORDS))
linear = from_function(
    lambda key: jnp.zeros(3),
    lambda w, x, key: (x @ w)[None],
    prior=GaussianPrior(std=PRIOR_STD),
    likelihood=FixedGaussian(std=1.0),
)
FULL = FullBatch(num_records=NUM_RECORDS)


def test_two_steps_follow_the_formulas():
    rate, curvature_rate, beta, half_life = 0.1, 0.05, 0.8, 3.0
    method = IVON.non_private(
        sampling=FULL,
        learning_rate=rate,
        curvature_rate=curvature_rate,
        momentum=beta,
        init_std=0.25,
        schedule=Exponential(half_life=half_life),
    )
    kernel = method.build(linear)
    state, step = kernel.init(seeded_key(0)), jax.jit(kernel.step)
    mean, precision, momentum = np.zeros(3), np.full(3, 16.0), np.zeros(3)
    for t in range(2):
        key = jax.random.fold_in(seeded_key(1), t)
        state, _ = step(key, state, RECORDS)
        std = {"network": jnp.asarray(precision**-0.5, jnp.float32)}
        zero = {"network": jnp.zeros(3)}
        offset = DiagonalGaussian().draw(jax.random.split(key)[0], {"mean": zero, "std": std})
        offset = np.asarray(offset["network"], np.float64)
        gradient = X.T @ (X @ (mean + offset) - Y)
        observed = gradient * offset * precision + PRIOR_STD**-2
        change = curvature_rate * (observed - precision) / precision
        precision = precision * (1 + change + change**2 / 2)
        momentum = beta * momentum + (1 - beta) * gradient
        slope = momentum / (1 - beta ** (t + 1)) + mean / PRIOR_STD**2
        mean = mean - rate * 0.5 ** (t / half_life) * slope / precision
    kept = kernel.retain(state)
    np.testing.assert_allclose(kept["mean"]["network"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(kept["std"]["network"], precision**-0.5, rtol=1e-4)


def test_the_precision_stays_positive_whatever_the_noise():
    release = GaussianSum(sampling=FULL, clip_norm=1.0, noise_multiplier=1e4)
    kernel = IVON(release=release, learning_rate=1e-9, curvature_rate=1.0).build(linear)

    def advance(state, key):
        state, _ = kernel.step(key, state, RECORDS)
        return state, state.precision["network"]

    keys = jax.random.split(seeded_key(1), 200)
    _, precisions = jax.jit(lambda state: jax.lax.scan(advance, state, keys))(
        kernel.init(seeded_key(0))
    )
    assert float(jnp.min(precisions)) > 0
    assert float(jnp.max(precisions) / jnp.min(precisions)) > 100  # it was really shaken


@pytest.mark.parametrize("std", [0.01, 0.4])
def test_the_prior_gives_its_expected_gradient_and_curvature(std):
    mean, spread = jnp.array([-0.3, 0.0, 0.02]), jnp.full(3, std)

    class Expectation:
        def __init__(self, prior):
            self.expected = prior.expected_log_prob

    slope, curvature = _prior_moments(Expectation(GaussianPrior(std=0.5)), mean, spread)
    np.testing.assert_allclose(slope, mean / 0.25, rtol=1e-5)
    np.testing.assert_allclose(curvature, 4.0, rtol=1e-5)
    slope, curvature = _prior_moments(Expectation(LaplacePrior(scale=0.2)), mean, spread)
    normal = scipy.stats.norm(0, std)
    np.testing.assert_allclose(slope, (2 * normal.cdf(mean) - 1) / 0.2, rtol=1e-4, atol=1e-5)
    # |w| bends only at zero: twice the density there.
    np.testing.assert_allclose(curvature, 2 * normal.pdf(mean) / 0.2, rtol=1e-4, atol=1e-5)


def test_half_precision_means_are_kept_beside_precise_curvature():
    half = linear._replace(init=lambda key: {"network": jnp.zeros(3, jnp.bfloat16)})
    method = IVON.non_private(sampling=FULL, learning_rate=0.1)
    kernel = method.build(half)
    state, _ = jax.jit(kernel.step)(seeded_key(1), kernel.init(seeded_key(0)), RECORDS)
    assert state.mean["network"].dtype == jnp.bfloat16
    assert state.precision["network"].dtype == jnp.float32
    kept = jax.eval_shape(kernel.retain, state)
    assert kept == DiagonalGaussian().template(half)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("learning_rate", 0.0),
        ("curvature_rate", 0.0),
        ("curvature_rate", 1.5),
        ("momentum", 1.0),
        ("init_std", math.inf),
    ],
)
def test_settings_that_cannot_learn_are_refused(setting, value):
    settings = {"learning_rate": 0.1} | {setting: value}
    with pytest.raises(InvalidArgumentError, match=setting):
        IVON.non_private(sampling=FULL, **settings)
