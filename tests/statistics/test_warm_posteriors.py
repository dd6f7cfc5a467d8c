"""HMC from a private start on posteriors known in closed form, wherever the start was."""

import jax.numpy as jnp
import numpy as np
import pytest

from tacit.inference import WarmHMC, fit_hmc, warm
from tacit.models import MLP, FixedGaussian, GaussianPrior, bayesian
from tacit.privacy.accounting import GDP
from tacit.privacy.budget import Budget
from tacit.typing import Record

N, CHAINS = 2000, 200
generator = np.random.default_rng(0)
X = generator.uniform(-1, 1, (N, 2)).astype(np.float32)
Y = X @ np.array([0.8, -0.5]) + 0.3 + generator.normal(size=N)
INPUTS = generator.uniform(-1, 1, (4000, 2)).astype(np.float32)
MODEL = bayesian(
    MLP(num_inputs=2, num_outputs=1),
    prior=GaussianPrior(std=1.0),
    likelihood=FixedGaussian(std=1.0),
)
DESIGN = np.hstack([X, np.ones((N, 1))])
COVARIANCE = np.linalg.inv(DESIGN.T @ DESIGN + np.eye(3))
MEAN = COVARIANCE @ DESIGN.T @ Y


def standardised(budget, **changes):
    """The last states of all chains, in coordinates in which the posterior is standard normal."""
    records = Record(jnp.asarray(X), jnp.asarray(Y, jnp.float32), jnp.ones(N))
    # So little for the start that it is too wide under privacy.
    settings = WarmHMC(
        num_records=N, num_chains=CHAINS, start_share=0.01, quantile=0.9999, **changes
    )
    found = fit_hmc(settings, MODEL, records, inputs=INPUTS, budget=budget, seed=1)
    layer = found.posterior.kept["network"]["dense_0"]
    last = np.hstack([layer["kernel"][:, -1, :, 0], layer["bias"][:, -1]])
    root = np.linalg.cholesky(COVARIANCE)
    return np.linalg.solve(root, (last - MEAN).T).T, found


def gaps(z):
    """How many standard errors mean and covariance are away, at most, and the mean variance."""
    errors = np.sqrt((1 + np.eye(3)) / CHAINS)
    covariance = np.cov(z.T)
    return (
        np.abs(z.mean(axis=0)).max() * np.sqrt(CHAINS),
        (np.abs(covariance - np.eye(3)) / errors).max(),
        np.trace(covariance) / 3,
    )


PRIVATE = Budget(epsilon=60.0, delta=1e-5, accountant=GDP())


@pytest.mark.parametrize("budget", [PRIVATE, Budget.non_private()], ids=["private", "not private"])
def test_wherever_the_start_was_the_chains_sample_the_posterior_in_closed_form(budget):
    # After 40 the noise of the start can still be seen under privacy.
    z, found = standardised(budget, num_proposals=160)
    assert found.info.acceptance.mean() > 0.2
    mean, covariance, _ = gaps(z)
    assert mean < 4.5
    assert covariance < 4.5


def test_the_private_start_alone_is_not_that_posterior():
    z, _ = standardised(PRIVATE, num_proposals=1, penalty=1e-6)
    *_, width = gaps(z)
    assert width > 1.3


def test_with_coordinates_that_are_wrong_the_posterior_stays_right(monkeypatch):
    right = warm.Coordinates.of

    def stretched(posterior):
        found = right(posterior)
        root = found.root @ jnp.diag(jnp.array([1.4, 1.0, 0.8]))
        return found._replace(mean=found.mean + 0.5 * root[:, 0], root=root)

    monkeypatch.setattr(warm.Coordinates, "of", stretched)
    z, _ = standardised(Budget.non_private(), num_proposals=60)
    mean, covariance, _ = gaps(z)
    assert mean < 4.5
    assert covariance < 4.5
