"""With privacy on, known posteriors are found, as near as the noise permits."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import linalg, stats

from numpyro_cases import KEY
from tacit.numpyro import DPSVI

pytestmark = [
    pytest.mark.filterwarnings("ignore:the loss is NaN:tacit.errors.PrivacyWarning"),
    pytest.mark.usefixtures("clip_unverified"),
]

NUM_STEPS = 200
ONE_IN_A_MILLION = stats.chi2.isf(1e-6, df=2)


def squared_distance(found, exact, covariance):
    gap = np.asarray(found, np.float64) - exact
    return float(gap @ np.linalg.solve(covariance, gap))


@pytest.mark.parametrize("mean_only", [False, True], ids=["regression", "mean"])
def test_a_known_posterior_is_found_within_the_noise_of_the_stated_epsilon(mean_only):
    generator = np.random.default_rng(0)
    num_records, std = 2000, 0.5
    x = np.clip(generator.normal(size=(num_records, 2)) @ [[0.9, 0.5], [0.0, 0.7]], -2, 2)
    if mean_only:
        # Two means, one for each half of the people: inputs that say which.
        x = np.eye(2)[np.arange(num_records) % 2]
    y = x @ [0.8, -0.6] + std * np.clip(generator.normal(size=num_records), -2.5, 2.5)
    precision = x.T @ x / std**2 + np.eye(2)
    exact = np.linalg.solve(precision, x.T @ y / std**2)

    def model(x, y):
        weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        with numpyro.plate("records", x.shape[0]):
            numpyro.sample("y", dist.Normal(x @ weights, std), obs=y)

    def guide(x, y):
        location = numpyro.param("location", jnp.zeros(2))
        numpyro.sample("weights", dist.MultivariateNormal(location, precision_matrix=precision))

    rate = 0.3 / np.linalg.eigvalsh(precision).max()
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.SGD(rate),
        clip_norm=60.0,  # above every gradient on the way, so that nothing is clipped
        epsilon=8.0,
        delta=1e-5,
        seed=0,
    )
    records = jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)
    result = svi.run(KEY, NUM_STEPS, *records, progress_bar=False)
    statement = svi.statement(result.state)
    assert 7.9 <= statement.epsilon <= 8.0

    # Near the end the location is an autoregression, driven by the noise of the engine and by that
    # of the guide's draws, whose gradient has the precision as its covariance.
    noise = statement.cost["event"]["noise_multiplier"] * 60.0
    shrink = np.eye(2) - rate * precision
    driven = rate**2 * (noise**2 * np.eye(2) + precision)
    covariance = linalg.solve_discrete_lyapunov(shrink, driven)
    found = result.params["location"]
    assert squared_distance(found, exact, covariance) < ONE_IN_A_MILLION
    # The test can fail: the start is far outside.
    assert squared_distance(np.zeros(2), exact, covariance) > 4 * ONE_IN_A_MILLION
