"""Robust draws: how probable it is, under the posterior, that a network withstands every attack.

Post-processing, free on public inputs; on private test records a published share is a release.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.certify.bounding import Bounds, Linear
from tacit.certify.over_draws import classifier_of, logit_rows, mean_over_draws
from tacit.certify.proportions import clopper_pearson_lower
from tacit.errors import InvalidArgumentError
from tacit.metrics._inputs import Floats
from tacit.models import Network
from tacit.posterior import Posterior
from tacit.robust import Ball
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["RobustDraws", "robust_draws"]


class RobustDraws(NamedTuple):
    """How many draws of a posterior are certified, for each input.

    Attributes:
      share: of the draws that were looked at, ``(num_inputs,)``.
      lower: a lower confidence bound of the probability, ``(num_inputs,)``.
      num_draws: how many draws were looked at.
    """

    share: Floats
    lower: Floats
    num_draws: int


@dataclass(frozen=True, kw_only=True)
class _IsRobust:
    """Whether one draw gives the label to every point of the ball, for certain."""

    network: Network
    bounds: Bounds
    ball: Ball
    num_classes: int

    def __call__(
        self, params: Params, inputs: tuple[Array, Array], key: Key, radius: Scalar
    ) -> Array:
        (x, y), num_outputs = inputs, self.network.num_outputs
        assert num_outputs is not None
        is_label = jnp.arange(self.num_classes) == y
        logits = logit_rows(num_outputs)
        rows = jnp.where(is_label, 1.0, 0.0) @ logits - logits
        own, ball = params["network"], self.ball.at(radius)
        least = self.bounds.bound(self.network, own, x, key, ball=ball, rows=rows).lower
        return (jnp.all((least > 0) | is_label) & jnp.any(is_label)).astype(jnp.float32)


def robust_draws(
    posterior: Posterior,
    x: Array,
    y: Array,
    ball: Ball,
    *,
    bounds: Bounds = Linear(),  # noqa: B008
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    level: float = 0.95,
) -> RobustDraws:
    """Returns the posterior probability that a draw gives an input its label all over a ball.

    Guarantee:
      Where draws are independent (Gaussian posteriors, fresh dropout masks), the probability is
      above ``lower`` with confidence ``level``, for each input. The states of a chain depend on
      each other: there ``share`` is exact for these states, and ``lower`` says nothing more.

    Args:
      posterior: of an `MLP` or a `CNN` that classifies.
      x: public inputs, one row for each.
      y: their classes.
      ball: where an adversary may move an input.
      bounds: `Linear` is tighter, `Intervals` cheaper.
      num_draws: as in `tacit.predict`.
      seed: as in `tacit.predict`.
      batch_size: how many inputs are looked at together.
      level: of the one-sided bound.

    Reference:
      Cardelli et al., Statistical guarantees for the robustness of Bayesian neural networks, IJCAI
      2019.
    """
    _check.fraction(one=False, level=level)
    network, num_classes = classifier_of(posterior.model)
    x, y = jnp.asarray(x), jnp.asarray(y)
    if y.shape != x.shape[:1]:
        raise InvalidArgumentError(
            f"x and y must have one row for each input; got shapes {x.shape} and {y.shape}."
        )
    function = _IsRobust(network=network, bounds=bounds, ball=ball.at(0.0), num_classes=num_classes)
    means = mean_over_draws(
        posterior,
        function,
        (x, y),
        float(ball.radius),
        num_draws=num_draws,
        seed=seed,
        batch_size=batch_size,
    )
    num_used = len(posterior.indices(num_draws))
    counts = np.rint(np.asarray(means, np.float64) * num_used).astype(int)
    lower = [clopper_pearson_lower(int(count), num_used, level=level) for count in counts]
    return RobustDraws(counts / num_used, np.array(lower), num_used)
