"""Certificates: for which inputs no attack in a ball can change what a posterior predicts.

A prediction is the argmax of a mean over draws. What counts is, for each pair of classes, a lower
bound of how far the mean score of one exceeds that of the other, at all inputs in the ball at once;
the mean of the draws' own lower bounds is one. It is tempting to average the softmax of each draw's
worst logits and to take its argmax. That is not a certificate: it compares the least probability of
the label with probabilities of the others that are not their largest.

The certificate is for the predictor whose accuracy is reported: the same finite set of draws, and
the same masks, that `tacit.predict` takes with the same seed and number of draws. It holds for all
points of the ball, whatever the attack, and for floating point as it is.

All of it is post-processing of a posterior and costs nothing on public or consented inputs. On
private test records a published certified accuracy is a release of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _check
from tacit.certify.draws import Bounds, Linear, LogitNetwork, classifier_of
from tacit.errors import InvalidArgumentError
from tacit.metrics.confidence import Interval, clopper_pearson
from tacit.over_draws import mean_over_draws
from tacit.posterior import Posterior
from tacit.robust.balls import Ball
from tacit.typing import Array, Key, Params, Scalar

__all__ = [
    "Certificate",
    "MeanLogit",
    "MeanSoftmax",
    "Predictor",
    "certified_curve",
    "certify_predictive",
]


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


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """What is certain about a posterior's predictions in a ball around each input.

    The intervals are exact (Clopper-Pearson) for the population that the inputs were drawn from.

    Attributes:
      radius: of the ball.
      predicted: the class of each input, ``(num_inputs,)``.
      is_certified: whether no point of the ball is given another class.
      is_right: whether the class is that of the label.
      level: how often the intervals cover the truth.
    """

    radius: float
    predicted: Array
    is_certified: Array
    is_right: Array
    level: float

    @property
    def accuracy(self) -> Interval:
        """The share of inputs that are classified rightly."""
        return self._share(self.is_right)

    @property
    def certified_accuracy(self) -> Interval:
        """The share of inputs that are classified rightly, with a certificate."""
        return self._share(self.is_right & self.is_certified)

    def _share(self, which: Array) -> Interval:
        return clopper_pearson(int(jnp.sum(which)), len(which), level=self.level)

    def __str__(self) -> str:
        clean, certified = self.accuracy, self.certified_accuracy
        return (
            f"radius {self.radius:g}: certified accuracy {certified.estimate:.3f}"
            f" [{certified.low:.3f}, {certified.high:.3f}], accuracy {clean.estimate:.3f}"
        )


@dataclass(frozen=True, kw_only=True)
class _Margins:
    """One draw's scores, bounds of their differences, and the sizes of all."""

    classifier: LogitNetwork
    predictor: Predictor
    bounds: Bounds
    ball: Ball

    def __call__(
        self, params: Params, inputs: Array, key: Key, radius: Scalar
    ) -> tuple[Array, Array, Array]:
        own, network, rows = params["network"], self.classifier.network, self.classifier.rows
        logits = self.classifier.likelihood.logits(network.apply(own, inputs, key))
        # Each pair once: the upper bound of a difference is the lower bound of its opposite.
        first, second = np.triu_indices(len(rows), k=1)
        least, most = self.bounds.bound(
            network,
            own,
            inputs,
            key,
            ball=self.ball.at(radius),
            rows=rows[first] - rows[second],
        )
        differences = jnp.zeros((len(rows), len(rows)), logits.dtype)
        differences = differences.at[first, second].set(least).at[second, first].set(-most)
        margins = self.predictor.margins(differences)
        scores = self.predictor.scores(logits)
        return scores, margins, jnp.abs(margins) + jnp.max(jnp.abs(scores)) + 1


def certify_predictive(
    posterior: Posterior,
    x: Array,
    y: Array,
    ball: Ball,
    *,
    predictor: Predictor = MeanSoftmax(),  # noqa: B008
    bounds: Bounds = Linear(),  # noqa: B008
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    level: float = 0.95,
) -> Certificate:
    """Returns which predictions of a posterior no attack in a ball can change.

    Guarantee:
      Where ``is_certified``, every input of the ball gets the same class from the same draws. The
      converse is not claimed: without a certificate the prediction may be robust all the same.

    Args:
      posterior: of an `MLP` or a `CNN` that classifies; robust training may have made it.
      x: public inputs, one row for each.
      y: their classes.
      ball: where an adversary may move an input.
      predictor: how the draws predict together; by default as in `tacit.predict`.
      bounds: `Linear` is tighter, `Intervals` cheaper.
      num_draws: as in `tacit.predict`.
      seed: as in `tacit.predict`.
      batch_size: how many inputs are looked at together.
      level: how often the intervals cover the truth.

    Example:
      >>> import jax
      >>> from tacit.models import MLP, Bernoulli, FlatPrior, bayesian
      >>> from tacit.robust import Linf
      >>> from tacit.samplers import Points
      >>> network = MLP(num_inputs=1, num_outputs=1)
      >>> model = bayesian(network, prior=FlatPrior(), likelihood=Bernoulli())
      >>> layer = {"kernel": jnp.ones((1, 1, 1, 1)), "bias": jnp.zeros((1, 1, 1))}
      >>> kept = {"network": {"dense_0": layer}}  # one chain with one state: the logit is x
      >>> posterior = Posterior(model=model, sampler=Points(), kept=kept)
      >>> x, y = jnp.array([[-0.3], [0.1], [0.9]]), jnp.array([0, 1, 1])
      >>> certify_predictive(posterior, x, y, Linf(radius=0.2)).is_certified
      Array([ True, False,  True], dtype=bool)
    """
    (certificate,) = certified_curve(
        posterior,
        x,
        y,
        ball,
        [float(ball.radius)],
        predictor=predictor,
        bounds=bounds,
        num_draws=num_draws,
        seed=seed,
        batch_size=batch_size,
        level=level,
    )
    return certificate


def certified_curve(
    posterior: Posterior,
    x: Array,
    y: Array,
    ball: Ball,
    radii: Sequence[float],
    *,
    predictor: Predictor = MeanSoftmax(),  # noqa: B008
    bounds: Bounds = Linear(),  # noqa: B008
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    level: float = 0.95,
) -> tuple[Certificate, ...]:
    """Returns a certificate for each of several radii, in their order, with one compilation.

    An input that is certified at a larger radius is certified at a smaller one, even where the
    bounds there happen not to show it.

    Args:
      posterior: as in `certify_predictive`.
      x: public inputs, one row for each.
      y: their classes.
      ball: its norm and range; its radius is not used.
      radii: of the balls.
      predictor: as in `certify_predictive`.
      bounds: as in `certify_predictive`.
      num_draws: as in `tacit.predict`.
      seed: as in `tacit.predict`.
      batch_size: how many inputs are looked at together.
      level: how often each of the intervals covers the truth; they do not all at once.
    """
    _check.fraction(one=False, level=level)
    for radius in radii:
        _check.non_negative(radius=radius)
    classifier = classifier_of(posterior.model)
    num_classes = len(classifier.rows)
    x, y = jnp.asarray(x), jnp.asarray(y)
    if y.shape != x.shape[:1] or not jnp.issubdtype(x.dtype, jnp.floating):
        raise InvalidArgumentError(
            "x must have a row of floating numbers for each input, and y one class for each; "
            f"got {x.dtype} of shape {x.shape} and shape {y.shape}."
        )
    function = _Margins(
        classifier=classifier, predictor=predictor, bounds=bounds, ball=ball.at(0.0)
    )
    chosen = posterior.chosen(num_draws)
    num_used = len(chosen.indices)
    results: dict[int, Certificate] = {}
    safe_beyond = jnp.zeros(len(y), bool)
    for i in sorted(range(len(radii)), key=lambda i: -radii[i]):
        scores, margins, sizes = mean_over_draws(
            function, chosen, x, jnp.float32(radii[i]), seed=seed, batch_size=batch_size
        )
        predicted = jnp.argmax(scores, axis=-1)
        # Rounding of the scores, of these margins and of both means over draws.
        slack = 2 * (num_used + num_classes + 8) * float(np.finfo(margins.dtype).eps)
        beats = margins > slack * sizes
        own = jnp.take_along_axis(beats, predicted[:, None, None], axis=1)[:, 0]
        is_self = jnp.arange(num_classes) == predicted[:, None]
        safe_beyond |= jnp.all(own | is_self, axis=-1)
        results[i] = Certificate(
            radius=float(radii[i]),
            predicted=predicted,
            is_certified=safe_beyond,
            is_right=(predicted == y) & jnp.all(jnp.isfinite(scores), axis=-1),
            level=level,
        )
    return tuple(results[i] for i in range(len(radii)))
