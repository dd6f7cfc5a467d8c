"""Programs and tables that the tests of private SVI share."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from numpyro.infer import Trace_ELBO

from tacit.numpyro import DPSVI

NUM_RECORDS = 24
KEY = jax.random.key(3)


def table(num_records=NUM_RECORDS, seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(num_records, 2))
    y = x @ [1.0, -0.5] + 0.3 * generator.normal(size=num_records)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def regression(x, y=None):
    """Weights and a positive scale, shared by all records; the plate has the table's length."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def hand_written(x, y=None):
    mean = numpyro.param("mean", jnp.zeros(2))
    std = numpyro.param("std", jnp.full(2, 0.1), constraint=constraints.positive)
    numpyro.sample("weights", dist.Normal(mean, std).to_event(1))
    location = numpyro.param("location", lambda key: 0.1 * jax.random.normal(key))
    numpyro.sample("scale", dist.LogNormal(location, 0.2))


def subsampled(x, y=None):
    """The regression that draws its own batch of eight."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("records", x.shape[0], subsample_size=8) as at:
        numpyro.sample("y", dist.Normal(x[at] @ weights, scale), obs=y[at])


def of_d3p(x, y=None, num_obs_total=None):
    """The regression as d3p's examples have it: called with batches, told the number of records."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("batch", num_obs_total, x.shape[0]):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


def guide_of_d3p(x, y=None, num_obs_total=None):
    hand_written(x, y)


def factor_model(x, y=None):
    """One latent for each record."""
    loading = numpyro.sample("loading", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(z[:, None] * loading, 0.5).to_event(1), obs=x)


def amortised(x, y=None):
    loading = numpyro.param("q_loading", jnp.ones(2))
    numpyro.sample("loading", dist.Normal(loading, 0.1).to_event(1))
    encoder = numpyro.param("encoder", jnp.full(2, 0.3))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("z", dist.Normal(x @ encoder, 0.5))


def non_private(model=regression, guide=hand_written, optim=None, loss=None, **settings):
    """DPSVI with no clip and no noise."""
    return DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.05) if optim is None else optim,
        Trace_ELBO() if loss is None else loss,
        **{"clip_norm": jnp.inf, "noise_multiplier": 0.0} | settings,
    )


def private(model=regression, guide=hand_written, optim=None, **settings):
    """DPSVI with noise from a known seed."""
    return DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.05) if optim is None else optim,
        Trace_ELBO(),
        **{"clip_norm": 1.0, "noise_multiplier": 1.0, "seed": 0} | settings,
    )
