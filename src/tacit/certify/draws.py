"""Robust draws: how probable it is, under the posterior, that a network withstands every attack.

Post-processing, free on public inputs; on private test records a published share is a release.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.certify.intervals import interval_bounds
from tacit.certify.linear import EuclideanBall, linear_bounds
from tacit.errors import InvalidArgumentError
from tacit.metrics.confidence import clopper_pearson_lower
from tacit.metrics.scores import Floats
from tacit.models import Model
from tacit.models.base import Likelihood, LogitLikelihood, Network, from_spec
from tacit.models.steps import steps_of
from tacit.over_draws import mean_over_draws
from tacit.posterior import Posterior
from tacit.robust import L2
from tacit.robust.balls import Ball, Box
from tacit.typing import Array, Key, Params, Scalar

__all__ = [
    "Bounds",
    "Intervals",
    "Linear",
    "LogitNetwork",
    "RobustDraws",
    "classifier_of",
    "robust_draws",
]


class Bounds(Protocol):
    """A way to bound linear functions of a network's outputs."""

    def __hash__(self) -> int: ...

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns bounds of each row's product with the outputs, over the ball around ``x``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Intervals:
    """Interval bounds: as cheap as two predictions, and loose; the ball counts as its box."""

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns what the box of outputs allows."""
        box = interval_bounds(network, params, ball.box(x), key)
        size = jnp.maximum(jnp.abs(box.lower), jnp.abs(box.upper))
        slack = 4 * (size.size + 4) * float(np.finfo(size.dtype).eps)
        centre, radius = rows @ box.centre, jnp.abs(rows) @ (box.radius + slack * size)
        return Box(centre - radius, centre + radius)


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Linear bounds within interval bounds: much tighter, and more expensive.

    Attributes:
      max_rows: hidden layers with at most so many units get linear bounds of their own, at one
        backward pass for each unit; see `tacit.certify.linear.linear_bounds`.
    """

    max_rows: int = 256

    def __post_init__(self) -> None:
        _check.positive_integer(max_rows=self.max_rows)

    def bound(
        self, network: Network, params: Params, x: Array, key: Key, *, ball: Ball, rows: Array
    ) -> Box:
        """Returns the linear bounds of the rows."""
        return linear_bounds(
            network,
            params,
            ball.box(x),
            key,
            ball=EuclideanBall(x, ball.radius) if isinstance(ball, L2) else None,
            specification=rows,
            max_rows=self.max_rows,
        )


@dataclass(frozen=True)
class LogitNetwork:
    """What of a model bounds are taken of.

    Attributes:
      network: made of steps.
      likelihood: maps its outputs to logits.
    """

    network: Network
    likelihood: LogitLikelihood

    @property
    def rows(self) -> Array:
        """The matrix that maps outputs to logits, one row for each class."""
        outputs = jnp.eye(self.likelihood.num_outputs)
        return jax.vmap(self.likelihood.logits, in_axes=1, out_axes=1)(outputs)


def classifier_of(model: Model) -> LogitNetwork:
    """Returns what bounds need to know of a classifier, or says why it has none.

    Example:
      >>> from tacit.models import MLP, Bernoulli, FlatPrior, bayesian
      >>> network = MLP(num_inputs=2, num_outputs=1)
      >>> model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
      >>> classifier_of(model).rows
      Array([[0.],
             [1.]], dtype=float32)
    """
    spec: Any = model.spec
    likelihood = None if spec is None else from_spec(spec["likelihood"], Likelihood)
    if not isinstance(likelihood, LogitLikelihood):
        found = "functions" if spec is None else f"{likelihood}"
        raise InvalidArgumentError(
            "posterior.model must be an MLP or a CNN with a Categorical or Bernoulli likelihood, or"
            " other registered parts that have `steps` and `logits`, whose layers and classes are"
            f" known; got one of {found}. Smoothing takes any classifier."
        )
    network: Network = from_spec(spec["network"], Network)
    steps_of(network)
    return LogitNetwork(network, likelihood)


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

    classifier: LogitNetwork
    bounds: Bounds
    ball: Ball

    def __call__(
        self, params: Params, inputs: tuple[Array, Array], key: Key, radius: Scalar
    ) -> Array:
        (x, y), network, logits = inputs, self.classifier.network, self.classifier.rows
        is_label = jnp.arange(len(logits)) == y
        rows = jnp.where(is_label, 1.0, 0.0) @ logits - logits
        own, ball = params["network"], self.ball.at(radius)
        least = self.bounds.bound(network, own, x, key, ball=ball, rows=rows).lower
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
      above ``lower`` with confidence ``level``, for each input. The states of a chain, and draws
      that were corrected for privacy noise, depend on each other: there ``share`` is exact for
      the draws that `tacit.predict` uses, and ``lower`` says nothing more.

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
    classifier = classifier_of(posterior.model)
    x, y = jnp.asarray(x), jnp.asarray(y)
    if y.shape != x.shape[:1]:
        raise InvalidArgumentError(
            f"x and y must have one row for each input; got shapes {x.shape} and {y.shape}."
        )
    function = _IsRobust(classifier=classifier, bounds=bounds, ball=ball.at(0.0))
    chosen = posterior.chosen(num_draws)
    means = mean_over_draws(
        function, chosen, (x, y), jnp.float32(ball.radius), seed=seed, batch_size=batch_size
    )
    num_used = len(chosen.indices)
    counts = np.rint(np.asarray(means, np.float64) * num_used).astype(int)
    lower = [clopper_pearson_lower(int(count), num_used, level=level) for count in counts]
    return RobustDraws(counts / num_used, np.array(lower), num_used)
