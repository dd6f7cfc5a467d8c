"""Robust training as a transform of a model: the likelihood sees an adversary, nothing else does.

Since the result is a model, every method takes it, and none of them knows: the robust loss of a
record has one gradient, which is clipped once and released once, and costs what the plain loss
costs. It also is what Hamiltonian methods put into their acceptance ratio.
"""

from collections.abc import Callable

import jax
from jax import lax

from tacit.errors import InvalidArgumentError
from tacit.models import Likelihood, Model, Network, interval_bounds
from tacit.models.spec import LIKELIHOODS, decode, encode
from tacit.robust.attacks import Attack
from tacit.robust.balls import Ball, floating_input
from tacit.robust.mixing import MixedLosses, Mixing, check_weight
from tacit.robust.worst_case import check_likelihood, worst_log_prob
from tacit.typing import Array, Key, Params, Record, Scalar

__all__ = ["adversarial", "certified"]


def adversarial(
    model: Model,
    attack: Attack,
    *,
    weight: float | Scalar = 0.5,
    mixing: Mixing = MixedLosses(),  # noqa: B008
) -> Model:
    """Returns the model whose records are attacked with the current parameters.

    The attacked input is a constant: no gradient passes through the attack. Where the model drops
    units, the attack sees the masks that the loss sees. Start, prior, prediction and description
    are those of ``model``: a saved posterior loads as one of ``model``, which predicts the same.

    Args:
      model: what to make robust; its inputs are arrays of floating numbers.
      attack: how its inputs are attacked. Its random start uses the record's own key.
      weight: the share of the clean loss; the attacked one has the rest. May be traced.
      mixing: how the two are put together.

    Example:
      >>> import jax.numpy as jnp
      >>> from tacit.models import MLP, Bernoulli, FlatPrior, bayesian
      >>> from tacit.robust import FGSM, Linf
      >>> plain = bayesian(
      ...     MLP(num_inputs=2, num_outputs=1), prior=FlatPrior(), likelihood=Bernoulli()
      ... )
      >>> robust = adversarial(plain, FGSM(ball=Linf(radius=0.1)), weight=0.0)
      >>> params = {"network": {"dense_0": {"kernel": jnp.ones((2, 1)), "bias": jnp.zeros(1)}}}
      >>> record = Record(jnp.ones(2), jnp.array(1), jnp.array(1.0))
      >>> moved = record._replace(x=record.x - 0.1)
      >>> key = jax.random.key(0)
      >>> robust.log_likelihood(params, record, key) == plain.log_likelihood(params, moved, key)
      Array(True, dtype=bool)
    """
    check_weight(weight)

    def worst(params: Params, record: Record, key: Key) -> Scalar:
        fixed = lax.stop_gradient(params)

        def loss(x: Array) -> Scalar:
            return -model.log_likelihood(fixed, record._replace(x=x), key)

        x = lax.stop_gradient(attack(key, loss, record.x))
        return model.log_likelihood(params, record._replace(x=x), key)

    return _mixed(model, worst, weight, mixing)


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

    return _mixed(model, worst, weight, mixing)


def _mixed(
    model: Model,
    worst: Callable[[Params, Record, Key], Scalar],
    weight: float | Scalar,
    mixing: Mixing,
) -> Model:
    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        if not isinstance(weight, jax.Array) and weight == 0:
            return worst(params, record, key)  # the clean part would be computed for nothing
        clean = model.log_likelihood(params, record, key)
        return mixing(clean, worst(params, record, key), weight)

    return model._replace(log_likelihood=log_likelihood)


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
