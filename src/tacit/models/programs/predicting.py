"""Predicting: what the distribution at an observed site says about one record's target."""

from typing import Any

import jax.numpy as jnp
from numpyro.distributions import (
    BernoulliLogits,
    BernoulliProbs,
    CategoricalLogits,
    CategoricalProbs,
)

from tacit.models.base import Moments, Prediction
from tacit.typing import Array

__all__ = ["prediction_of"]


def prediction_of(distribution: Any) -> Prediction:
    """Returns class probabilities of a Bernoulli or categorical target, moments of any other.

    Args:
      distribution: of one record's target; it may have axes of length one in front.
    """
    base = distribution
    while hasattr(base, "base_dist"):
        base = base.base_dist
    if isinstance(base, BernoulliLogits | BernoulliProbs) and jnp.size(base.probs) == 1:
        probability = jnp.reshape(base.probs, ())
        return jnp.stack([1.0 - probability, probability])
    is_categorical = isinstance(base, CategoricalLogits | CategoricalProbs)
    if is_categorical and jnp.size(base.probs) == base.probs.shape[-1]:
        return jnp.reshape(base.probs, (-1,))
    return Moments(_of_one(distribution.mean), _of_one(distribution.variance))


def _of_one(values: Array) -> Array:
    """Drops axes of length one: those of a single record and of its single target."""
    return jnp.squeeze(values)
