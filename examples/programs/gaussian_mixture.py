"""A mixture of spherical Gaussians: the program of d3p's appendix A, with its data.

Which component a record comes from is summed out, so that there is no latent per record.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro.distributions import (
    Categorical,
    Dirichlet,
    InverseGamma,
    MixtureSameFamily,
    Normal,
)
from numpyro.infer import Trace_ELBO
from numpyro.infer.autoguide import AutoNormal
from numpyro.infer.initialization import init_to_uniform

from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array, Key, Params

__all__ = ["CENTRES", "clusters", "log_likelihood", "make_guide", "mixture", "model", "run"]

NUM_COMPONENTS = 5
CENTRES = np.array([[0, 0], [2, 2], [-2, -2], [-2, 2], [2, -2]], np.float32)


def mixture(pis: Array, locs: Array, sigmas: Array) -> MixtureSameFamily:
    """Returns the distribution of a record; ``sigmas`` are standard deviations."""
    return MixtureSameFamily(Categorical(probs=pis), Normal(locs, sigmas[:, None]).to_event(1))


def model(xs: Array, num_obs_total: int | None = None) -> None:
    """Draws points in the plane."""
    batch_size, num_dimensions = xs.shape
    pis = numpyro.sample("pis", Dirichlet(jnp.ones(NUM_COMPONENTS)))
    with numpyro.plate("components", NUM_COMPONENTS):
        locs = numpyro.sample("locs", Normal().expand([num_dimensions]).to_event(1))
        sigmas = numpyro.sample("sigmas", InverseGamma(1.0, 1.0))
    with numpyro.plate("batch", num_obs_total or batch_size, subsample_size=batch_size):
        numpyro.sample("xs", mixture(pis, locs, sigmas), obs=xs)


def make_guide() -> AutoNormal:
    """Returns independent normals that begin at random, so that components differ."""
    return AutoNormal(model, init_loc_fn=init_to_uniform, init_scale=0.1)


def clusters(
    num_records: int = 2000, num_test: int = 100, seed: int = 123
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns points around the origin and four corners, as in Jälkö et al. 2017."""
    rng = np.random.default_rng(seed)
    chosen = CENTRES[rng.integers(5, size=num_records + num_test)]
    points = (chosen + np.sqrt(0.5) * rng.normal(size=chosen.shape)).astype(np.float32)
    return points[:num_records], points[num_records:]


def log_likelihood(
    key: Key, guide: AutoNormal, params: Params, test: NDArray[np.float32], *, num_draws: int = 200
) -> float:
    """Returns the mean log predictive density of test points, over posterior draws."""
    draws = guide.sample_posterior(key, params, sample_shape=(num_draws,))
    densities = jax.vmap(lambda pis, locs, sigmas: mixture(pis, locs, sigmas).log_prob(test))(
        draws["pis"], draws["locs"], draws["sigmas"]
    )
    return float(jnp.mean(jax.nn.logsumexp(densities, axis=0) - jnp.log(num_draws)))


def run(
    num_steps: int = 1000,
    num_records: int = 2000,
    epsilon: float = 1.0,
    seed: int | None = None,
) -> Outcome:
    """Fits five components to points in the plane."""
    train, test = clusters(num_records)
    guide = make_guide()
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(0.05),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=2.0,
        batch_size=num_records / 10,
        seed=seed,
    )
    key, prediction_key = jax.random.split(jax.random.key(seed or 0))
    result = svi.run(key, num_steps, train, progress_bar=False)
    found = log_likelihood(prediction_key, guide, result.params, test)
    return Outcome({"log likelihood": found}, svi.statement(result.state))


if __name__ == "__main__":
    main(run)
