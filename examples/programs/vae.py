"""A variational auto-encoder of digits: d3p's section 5.1, with one latent code per record.

The encoder is part of the guide, so that no parameter belongs to a single record.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpy.typing import NDArray
from numpyro.distributions import Bernoulli, Normal
from numpyro.infer import Trace_ELBO
from sklearn.datasets import load_digits

from examples.programs.command import Outcome, main
from tacit.numpyro import DPSVI
from tacit.typing import Array, Key, Params

__all__ = ["digits", "guide", "loss_per_image", "model", "run"]

NUM_HIDDEN, NUM_LATENT = 400, 50


def dense(name: str, x: Array, num_outputs: int) -> Array:
    """A dense layer with parameters of this name."""
    shape = (x.shape[-1], num_outputs)
    weight = numpyro.param(
        f"{name}_weight", lambda key: jax.nn.initializers.glorot_normal()(key, shape)
    )
    return x @ weight + numpyro.param(f"{name}_bias", jnp.zeros(num_outputs))


def model(images: Array, num_obs_total: int | None = None) -> None:
    """Draws images of black and white pixels from latent codes."""
    batch_size, num_pixels = images.shape
    with numpyro.plate("batch", num_obs_total or batch_size, subsample_size=batch_size):
        z = numpyro.sample("z", Normal().expand([NUM_LATENT]).to_event(1))
        hidden = jax.nn.softplus(dense("decoder", z, NUM_HIDDEN))
        logits = dense("pixels", hidden, num_pixels)
        numpyro.sample("images", Bernoulli(logits=logits).to_event(1), obs=images)


def guide(images: Array, num_obs_total: int | None = None) -> None:
    """Encodes each image as a normal distribution of its code."""
    batch_size = images.shape[0]
    with numpyro.plate("batch", num_obs_total or batch_size, subsample_size=batch_size):
        hidden = jax.nn.softplus(dense("encoder", images, NUM_HIDDEN))
        loc = dense("loc", hidden, NUM_LATENT)
        scale = jnp.exp(dense("log_scale", hidden, NUM_LATENT))
        numpyro.sample("z", Normal(loc, scale).to_event(1))


def digits() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Returns 1400 private images and 397 public ones, of 64 black or white pixels."""
    images = (load_digits().data > 8).astype(np.float32)
    images = images[np.random.default_rng(0).permutation(len(images))]
    return images[:1400], images[1400:]


def loss_per_image(key: Key, params: Params, images: NDArray[np.float32]) -> float:
    """Returns the negative ELBO per image, on public images."""
    return float(Trace_ELBO().loss(key, params, model, guide, images)) / len(images)


def run(
    num_steps: int = 500,
    num_records: int | None = None,
    epsilon: float = 8.0,
    seed: int | None = None,
) -> Outcome:
    """Fits an auto-encoder to small digits."""
    train, test = digits()
    train = train[:num_records]
    svi = DPSVI(
        model,
        guide,
        numpyro.optim.Adam(1e-3),
        Trace_ELBO(),
        epsilon=epsilon,
        clip_norm=10.0,
        batch_size=len(train) / 8,
        seed=seed,
    )
    key, test_key = jax.random.split(jax.random.key(seed or 0))
    result = svi.run(key, num_steps, train, progress_bar=False)
    return Outcome(
        {"test loss": loss_per_image(test_key, result.params, test)}, svi.statement(result.state)
    )


if __name__ == "__main__":
    main(run)
