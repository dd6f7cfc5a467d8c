"""Robust training as a transform of a model: the likelihood sees an adversary, nothing else does.

Since the result is a model, every method takes it, and none of them knows: the robust loss of a
record has one gradient, which is clipped once and released once, and costs what the plain loss
costs. It also is what Hamiltonian methods put into their acceptance ratio.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check
from tacit.models import (
    Model,
)
from tacit.robust.attacks import Attack
from tacit.typing import Array, Key, Params, Record, Scalar

__all__ = ["MixedLosses", "MixedProbabilities", "Mixing", "adversarial", "check_weight", "mixed"]


class Mixing(Protocol):
    """How two log-likelihoods become one."""

    def __call__(self, clean: Scalar, worst: Scalar, weight: float | Scalar) -> Scalar:
        """Returns the robust log-likelihood; ``weight`` is the share of the clean part."""
        ...


@dataclass(frozen=True, kw_only=True)
class MixedLosses:
    """The convex mix of losses: ``weight * l(x) + (1 - weight) * l(worst)``.

    As a likelihood it is a geometric mean.

    Example:
      >>> round(float(MixedLosses()(jnp.log(0.9), jnp.log(0.4), 0.5)), 3)
      -0.511

    Reference:
      Gowal et al., Scalable verified training for provably robust image classification, ICCV 2019,
      equation 12.
    """

    def __call__(self, clean: Scalar, worst: Scalar, weight: float | Scalar) -> Scalar:
        """Returns the weighted mean of the logarithms."""
        return weight * clean + (1 - weight) * worst


@dataclass(frozen=True, kw_only=True)
class MixedProbabilities:
    """The robust likelihood: ``log(weight * p(x) + (1 - weight) * p(worst))``.

    It is the expected likelihood when the adversary stays away with probability ``weight``, and
    gentler than `MixedLosses`: a record that cannot be made robust costs at most
    ``-log(weight)`` more than its clean loss.

    Example:
      >>> round(float(MixedProbabilities()(jnp.log(0.9), jnp.log(0.4), 0.5)), 3)
      -0.431

    Reference:
      Wicker et al., Bayesian inference with certifiable adversarial robustness, AISTATS 2021,
      equation 6.
    """

    def __call__(self, clean: Scalar, worst: Scalar, weight: float | Scalar) -> Scalar:
        """Returns the logarithm of the weighted mean."""
        return jnp.logaddexp(jnp.log(weight) + clean, jnp.log1p(-weight) + worst)


def check_weight(weight: float | Scalar) -> None:
    """Raises unless a weight that is known is between 0 and 1; a traced one cannot be checked."""
    if not isinstance(weight, jax.Array):
        _check.fraction(zero=True, weight=weight)


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

    return mixed(model, worst, weight, mixing)


def mixed(
    model: Model,
    worst: Callable[[Params, Record, Key], Scalar],
    weight: float | Scalar,
    mixing: Mixing,
) -> Model:
    """Returns the model whose likelihood mixes its own with that of a worst neighbour."""

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        if not isinstance(weight, jax.Array) and weight == 0:
            return worst(params, record, key)  # the clean part would have no weight
        clean = model.log_likelihood(params, record, key)
        return mixing(clean, worst(params, record, key), weight)

    return model._replace(log_likelihood=log_likelihood)
