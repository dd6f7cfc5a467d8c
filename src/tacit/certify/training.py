"""Certified training as a transform of a model: the likelihood of the worst outputs in a ball."""

from tacit.certify.intervals import interval_bounds
from tacit.errors import InvalidArgumentError
from tacit.models import Model
from tacit.models.base import BoundedLikelihood, Likelihood, Network, from_spec, is_part, spec_of
from tacit.robust.balls import Ball, floating_input
from tacit.robust.training import MixedLosses, Mixing, check_weight, mixed
from tacit.typing import Key, Params, Record, Scalar

__all__ = ["certified"]


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
        network or prior is not registered. It must have ``worst_log_prob``.

    Example:
      >>> import jax
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
    bounded = _bounded(_likelihood_of(model, network, likelihood))

    def worst(params: Params, record: Record, key: Key) -> Scalar:
        box = ball.box(floating_input(record.x))
        outputs = interval_bounds(network, params["network"], box, key)
        return bounded.worst_log_prob(params, outputs.lower, outputs.upper, record.y)

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
        if given is not None and spec_of(given) != model.spec[name]:
            raise InvalidArgumentError(
                f"{name} must be the one that the model was made with; got {given!r}, where the"
                f" model has {model.spec[name]}."
            )
    own: Likelihood = from_spec(model.spec["likelihood"], Likelihood)
    return own


def _bounded(likelihood: Likelihood) -> BoundedLikelihood:
    """Returns a likelihood whose worst case is known, or raises."""
    # Of a registered class, and no subclass: one may inherit the bound and change the density.
    if isinstance(likelihood, BoundedLikelihood) and is_part(likelihood, Likelihood):
        return likelihood
    raise InvalidArgumentError(
        f"likelihood must know its worst case; got {likelihood!r}, whose class does not, or is not"
        " registered. Give it worst_log_prob, and register it with @part(Likelihood)."
    )
