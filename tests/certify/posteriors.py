"""Posteriors made by hand, whose certificates are known or can be attacked."""

import jax
import jax.numpy as jnp
import numpy as np

from tacit.models import MLP, Bernoulli, Categorical, FlatPrior, bayesian
from tacit.posterior import Posterior
from tacit.samplers import Points


def posterior_of(network, likelihood, draws):
    """Returns one chain that retained these parameters of a network."""
    model = bayesian(network, prior=FlatPrior(), likelihood=likelihood)
    kept = jax.tree.map(lambda *leaves: jnp.stack(leaves)[None], *draws)
    return Posterior(model=model, sampler=Points(), kept={"network": kept})


def random_draws(network, num_draws, seed, scale=1.0):
    generator = np.random.default_rng(seed)
    shapes = jax.eval_shape(network.init, jax.random.key(0))
    return [
        jax.tree.map(
            lambda s: jnp.array(scale * generator.normal(size=s.shape), jnp.float32), shapes
        )
        for _ in range(num_draws)
    ]


def linear_binary(*kernels):
    """Returns logistic regressions without bias, one for each kernel."""
    draws = [
        {"dense_0": {"kernel": jnp.array(kernel, jnp.float32)[:, None], "bias": jnp.zeros(1)}}
        for kernel in kernels
    ]
    network = MLP(num_inputs=len(kernels[0]), num_outputs=1)
    return posterior_of(network, Bernoulli(), draws)


NETWORK = MLP(num_inputs=3, hidden=(8, 8), num_outputs=3)
CLASSIFIER = posterior_of(NETWORK, Categorical(num_classes=3), random_draws(NETWORK, 5, seed=0))
X = jnp.array(np.random.default_rng(1).normal(size=(40, 3)), jnp.float32)
