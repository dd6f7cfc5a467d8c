"""Certified training as a transform of a model: the likelihood of the worst outputs in a ball."""

import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from tacit.certify.intervals import interval_bounds
from tacit.errors import InvalidArgumentError
from tacit.models import (
    Bernoulli,
    Categorical,
    FixedGaussian,
    HeteroscedasticGaussian,
    LearntGaussian,
    Likelihood,
    Model,
    Network,
    PoissonCounts,
)
from tacit.models.spec import LIKELIHOODS, decode, encode
from tacit.robust.balls import Ball, Box, floating_input
from tacit.robust.training import MixedLosses, Mixing, check_weight, mixed
from tacit.typing import Array, Key, Params, Record, Scalar

__all__ = ["certified", "check_likelihood", "worst_log_prob"]


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
        return likelihood.log_prob(params, jnp.where(is_target, outputs.lower, outputs.upper), y)
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


def certified(
    model: Model,
    network: Network,
    ball: Ball,
    *,
    weight: float | Scalar = 0.5,
    mixing: Mixing = MixedLosses(),  # noqa: B008
    likelihood: Likelihood | None = None,
) -> Model:
    """Returns the model whose likelihood is that of the worst outputs interval bounds allow.

    The worst part of the loss is at least that of any input in the ball (in the box around it,
    for `L2`). Start, prior, prediction and description are those of ``model``.

    ADV-DP-HMC is Hamiltonian Monte Carlo on such a model: the robust likelihood enters gradients
    and acceptance ratio alike, with one clip and one release each.

    Args:
      model: made with `tacit.bayesian` from ``network``.
      network: what computes the outputs; a network that has interval bounds.
      ball: what to be robust against.
      weight: the share of the clean loss; the worst case has the rest. May be traced.
      mixing: how the two are put together.
      likelihood: that of ``model``; needed only where the model cannot be described, since its
        network or prior is your own.

    Example:
      >>> import jax.numpy as jnp
      >>> from tacit.models import MLP, Bernoulli, FlatPrior, bayesian
      >>> from tacit.robust import Linf
      >>> network = MLP(num_inputs=2, num_outputs=1)
      >>> plain = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
      >>> robust = certified(plain, network, Linf(radius=0.1), weight=0.0)
      >>> params = {"network": {"dense_0": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)}}}
      >>> record = Record(jnp.ones(2), jnp.array(1), jnp.array(1.0))
      >>> moved = record._replace(x=record.x - 0.1)
      >>> worst, same = (
      ...     each.log_likelihood(params, at, jax.random.key(0))
      ...     for each, at in ((robust, record), (plain, moved))
      ... )
      >>> bool(jnp.allclose(worst, same, rtol=1e-4))
      True

    Reference:
      Gowal et al., Scalable verified training for provably robust image classification, ICCV 2019;
      Wicker et al., Bayesian inference with certifiable adversarial robustness, AISTATS 2021.
    """
    check_weight(weight)
    likelihood = _likelihood_of(model, network, likelihood)
    check_likelihood(likelihood)

    def worst(params: Params, record: Record, key: Key) -> Scalar:
        box = ball.box(floating_input(record.x))
        outputs = interval_bounds(network, params["network"], box, key)
        return worst_log_prob(likelihood, params, outputs, record.y)

    return mixed(model, worst, weight, mixing)


def _likelihood_of(model: Model, network: Network, likelihood: Likelihood | None) -> Likelihood:
    """Returns the model's own likelihood; where it has a description, all must agree with it."""
    if model.spec is None:
        if likelihood is None:
            raise InvalidArgumentError(
                "likelihood must be given: the model is made of functions and does not say what"
                " its outputs mean. Pass the likelihood that it was made with."
            )
        return likelihood
    for name, given in (("network", network), ("likelihood", likelihood)):
        if given is not None and encode(given) != model.spec[name]:
            raise InvalidArgumentError(
                f"{name} must be the one that the model was made with; got {given!r}, where the"
                f" model has {model.spec[name]}."
            )
    own: Likelihood = decode(model.spec["likelihood"], LIKELIHOODS)
    return own
