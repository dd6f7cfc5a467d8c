"""Worst cases: the least likelihood of a target, for outputs anywhere in a box."""

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tacit.errors import InvalidArgumentError
from tacit.models import (
    Bernoulli,
    Box,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    Likelihood,
    PoissonCounts,
)
from tacit.typing import Array, Scalar

__all__ = ["check_likelihood", "worst_log_prob"]

# Along each output, their log density first rises and then falls, so it is least at a corner.
_WORST_AT_A_CORNER = (
    Bernoulli,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    PoissonCounts,
)


def worst_log_prob(
    likelihood: Likelihood, params: Mapping[str, Any], outputs: Box, y: Array
) -> Scalar:
    """Returns the least log density of ``y`` that outputs in a box can give it.

    For classes that is at the lower end of the target's logit and the upper ends of all others.

    Args:
      likelihood: one of this package's, for which the worst case is known.
      params: with the likelihood's own parameters.
      outputs: bounds of a network's outputs, ``(num_outputs,)`` each.
      y: the target.

    Example:
      >>> box = Box(jnp.array([1.0, -1.0]), jnp.array([2.0, 0.0]))
      >>> round(float(worst_log_prob(Categorical(num_classes=2), {}, box, jnp.array(0))), 3)
      -0.313
    """
    if isinstance(likelihood, Categorical):
        is_target = jnp.arange(likelihood.num_classes) == jnp.reshape(y, ())
        return likelihood.log_prob(params, jnp.where(is_target, *outputs), y)
    ends = jnp.stack(outputs)
    choices = jnp.array(list(itertools.product((0, 1), repeat=likelihood.num_outputs)))
    corners = jnp.take_along_axis(ends, choices, axis=0)
    return jnp.min(jax.vmap(lambda corner: likelihood.log_prob(params, corner, y))(corners))


def check_likelihood(likelihood: object) -> None:
    """Raises where the worst case of a likelihood is not known."""
    # Exact types: a subclass may behave differently.
    known = (Categorical, *_WORST_AT_A_CORNER)
    if type(likelihood) not in known:
        names = ", ".join(kind.__name__ for kind in known)
        raise InvalidArgumentError(
            f"likelihood must be one of {names}, whose worst case is known; got {likelihood!r}."
        )
