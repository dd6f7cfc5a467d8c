"""Rules: when bounds for each draw make a certificate for what the draws predict together.

A prediction is the argmax of a mean over draws. What counts is, for each pair of classes, a lower
bound of how far the mean score of one exceeds that of the other, at all inputs in the ball at once;
the mean of the draws' own lower bounds is one. It is tempting to average the softmax of each draw's
worst logits and to take its argmax. That is no certificate: it compares the least probability of
the label with probabilities of the others that are not their largest.
"""

from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp

from tacit.typing import Array

__all__ = ["MeanLogit", "MeanSoftmax", "Predictor"]


class Predictor(Protocol):
    """How draws predict a class together: the argmax of the mean of their scores."""

    def __hash__(self) -> int: ...

    def scores(self, logits: Array) -> Array:
        """Returns one draw's score of each class."""
        ...

    def margins(self, differences: Array) -> Array:
        """Returns lower bounds of one draw's score differences.

        Args:
          differences: at ``[i, k]`` a lower bound of logit i minus logit k; ``(classes, classes)``.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class MeanLogit:
    """The class whose mean logit is the largest."""

    def scores(self, logits: Array) -> Array:
        """Returns the logits."""
        return logits

    def margins(self, differences: Array) -> Array:
        """Returns the differences as they are."""
        return differences


@dataclass(frozen=True, kw_only=True)
class MeanSoftmax:
    """The class whose mean probability is the largest: the predictive of `tacit.predict`.

    The difference of two probabilities is at least the lower bound of one minus the upper bound of
    the other. It also equals ``p_i (1 - exp(z_k - z_i))`` and ``p_k (exp(z_i - z_k) - 1)``, which
    keeps the sign of the difference of the logits z; the better bound is taken. For one draw alone
    that certifies what `MeanLogit` does.

    Example:
      Logit 0 exceeds logit 1 by 2 or more, and by 3 or less:

      >>> margins = MeanSoftmax().margins(jnp.array([[0.0, 2.0], [-3.0, 0.0]]))
      >>> round(float(margins[0, 1]), 3), round(float(margins[1, 0]), 3)
      (0.762, -0.905)
    """

    def scores(self, logits: Array) -> Array:
        """Returns the probabilities."""
        return jax.nn.softmax(logits)

    def margins(self, differences: Array) -> Array:
        """Returns lower bounds of the differences of probabilities."""
        # p_i = 1 / (sum over j of exp(z_j - z_i)), in which j = i gives 1.
        least = 1 / jnp.sum(_exp_with_unit_diagonal(-differences), axis=1)
        most = 1 / jnp.sum(_exp_with_unit_diagonal(differences), axis=0)
        apart = least[:, None] - most[None, :]
        together = jnp.where(
            differences >= 0,
            least[:, None] * -jnp.expm1(-differences),
            most[None, :] * jnp.expm1(differences),
        )
        return jnp.maximum(apart, together)


def _exp_with_unit_diagonal(differences: Array) -> Array:
    return jnp.where(jnp.eye(len(differences), dtype=bool), 1.0, jnp.exp(differences))
