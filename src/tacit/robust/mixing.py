"""Mixing: how the log-likelihoods of an input and of its worst neighbour become one."""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.typing import Scalar

__all__ = ["MixedLosses", "MixedProbabilities", "Mixing", "check_weight"]


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
