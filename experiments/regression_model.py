"""A draw of a Gaussian process whose noise depends on the input, and a network for it."""

import jax
import numpy as np

from experiments.architectures import zhang_regression_mlp
from tacit.data import as_records
from tacit.models import GaussianPrior, HeteroscedasticGaussian, Model, bayesian
from tacit.models.priors import PerLeafPrior
from tacit.typing import Key, Params, Record

__all__ = ["NUM_TRAIN", "gaussian_process", "network"]

NUM_TRAIN, _NUM_TEST = 250, 150
_FIRST_STD, _STD = 1.0, 0.1


def gaussian_process(number: int) -> tuple[Record, Record]:
    """Returns the training and the test part of one draw of the process."""
    rng = np.random.default_rng(number)
    x = rng.uniform(-3.0, 3.0, NUM_TRAIN + _NUM_TEST)
    covariance = np.exp(-0.5 * np.square(x[:, None] - x)) + np.diag(np.square(0.3 * x + 0.6))
    y = rng.multivariate_normal(np.zeros(len(x)), covariance)
    return (
        as_records(x[:NUM_TRAIN, None], y[:NUM_TRAIN]),
        as_records(x[NUM_TRAIN:, None], y[NUM_TRAIN:]),
    )


def network(*, dropout: float) -> Model:
    """Returns the network under its prior, beginning at a draw of it."""
    layers = zhang_regression_mlp(dropout=dropout)
    first = ("dense_0", GaussianPrior(std=_FIRST_STD))
    prior = PerLeafPrior(default=GaussianPrior(std=_STD), overrides=(first,))

    def init(key: Key) -> Params:
        drawn = {}
        for name, layer in layers.init(key).items():
            std = _FIRST_STD if name == "dense_0" else _STD
            key, *own = jax.random.split(key, 1 + len(layer))
            drawn[name] = {
                leaf: std * jax.random.normal(leaf_key, layer[leaf].shape)
                for leaf, leaf_key in zip(layer, own, strict=True)
            }
        return {"network": drawn}

    model = bayesian(layers, prior=prior, likelihood=HeteroscedasticGaussian())
    return model._replace(init=init)
