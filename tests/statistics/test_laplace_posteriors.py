"""Private Laplace approximations of linear models are as wide as they should be, noise included."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tacit.inference import Laplace
from tacit.models import Bernoulli, FixedGaussian, GaussianPrior, from_function
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.typing import Record

NUM_SETS, NUM_RECORDS, DIM = 200, 500, 3


def model_of(likelihood):
    return from_function(
        lambda key: jnp.zeros((DIM, 1)),
        lambda w, x, key: x @ w,
        prior=GaussianPrior(std=1.0),
        likelihood=likelihood,
    )


def standardised_errors(method, likelihood, observe, *, num_steps):
    """Errors of the mean, ``(num_sets, DIM)``, made independent by the stated covariance."""
    kernel = method.build(model_of(likelihood))

    def one(key):
        truth_key, x_key, y_key, run_key = jax.random.split(key, 4)
        truth = jax.random.normal(truth_key, (DIM,))
        x = jax.random.uniform(x_key, (NUM_RECORDS, DIM), minval=-1.0)
        records = Record(x, observe(y_key, x @ truth), jnp.ones(NUM_RECORDS))

        def step(state, key):
            return kernel.step(key, state, records)[0], None

        keys = jax.random.split(run_key, num_steps)
        state, _ = jax.lax.scan(step, kernel.init(run_key), keys)
        kept = kernel.retain(state)
        error = truth - kept["mean"]["network"][:, 0]
        rows = kept["root"]["network"][:, :, 0]
        return jnp.linalg.solve(jnp.linalg.cholesky(rows.T @ rows), error)

    keys = jax.random.split(jax.random.key(0), NUM_SETS)
    return np.asarray(jax.jit(lambda keys: jax.lax.map(one, keys))(keys), np.float64)


@pytest.mark.parametrize("noise_multiplier", [0.2, 1.2])
def test_the_exact_posterior_of_a_linear_model_needs_one_release(noise_multiplier):
    # The standard deviation of noise is 0.2 or 1.1 of that of the data's own score. Inside the clip
    # curvatures are as long as gradients.
    release = GaussianSum(
        sampling=FullBatch(num_records=NUM_RECORDS),
        clip_norm=12.0,
        noise_multiplier=noise_multiplier,
    )
    method = Laplace(release=release, curvature_scale=40.0, max_step=math.inf)

    def observe(key, mean):
        return mean + jax.random.normal(key, mean.shape)

    errors = standardised_errors(method, FixedGaussian(std=1.0), observe, num_steps=1)
    # Five standard errors of a variance, and upwards 0.15 for the noise of the curvature.
    tolerance = 5 * math.sqrt(2 / errors.size)
    assert 1 - tolerance < np.mean(errors**2) < 1.15 + tolerance


def test_ten_steps_cover_the_coefficients_of_a_logistic_regression():
    release = GaussianSum(
        sampling=FullBatch(num_records=NUM_RECORDS), clip_norm=1.75, noise_multiplier=10.0
    )

    def observe(key, logit):
        return jax.random.bernoulli(key, jax.nn.sigmoid(logit)).astype(jnp.int32)

    errors = standardised_errors(Laplace(release=release), Bernoulli(), observe, num_steps=10)
    # Five standard errors of a variance; twice as much upwards, for a posterior that is skewed.
    tolerance = 5 * math.sqrt(2 / errors.size)
    assert 1 - tolerance < np.mean(errors**2) < 1 + 2 * tolerance
