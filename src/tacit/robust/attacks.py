"""Attacks: on one input, by searching a ball around it, and on the mean of a posterior.

The adversary knows everything: the draws, and the masks where units are dropped. An attack with a
seed is on exactly the draws that `tacit.predict` takes with the same seed and number of draws.

All of it is post-processing and costs nothing on public or consented inputs.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.metrics.uncertainty import RegressionUncertainty
from tacit.models.base import Moments, Prediction
from tacit.posterior import Posterior, predict
from tacit.rng import seeded_key
from tacit.robust.balls import Ball, floating_input
from tacit.samplers import Sampler
from tacit.typing import Array, Input, Key, Params, Scalar, Tree

__all__ = ["FGSM", "PGD", "Attack", "RobustAccuracy", "attack_posterior", "robust_accuracy"]

_Seen: TypeAlias = tuple[Array, Scalar]
"""A point and the loss there."""

_START = 2**31 - 1
"""What the record's key is folded with for random starts; layers use small numbers."""


class Attack(Protocol):
    """Finds a bad point for one input. Public configuration."""

    def __hash__(self) -> int: ...

    @property
    def ball(self) -> Ball:
        """Where it searches."""
        ...

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        ...

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns a point of the ball around ``x`` where ``loss`` is large."""
        ...


@dataclass(frozen=True, kw_only=True)
class FGSM:
    """One step of steepest ascent to the edge of the ball; the fast gradient (sign) method.

    Example:
      >>> from tacit.robust.balls import Linf
      >>> attack = FGSM(ball=Linf(radius=0.25))
      >>> attack(jax.random.key(0), lambda x: x[0] - 2.0 * x[1], jnp.zeros(2))
      Array([ 0.25, -0.25], dtype=float32)

    Reference:
      Goodfellow, Shlens and Szegedy, Explaining and harnessing adversarial examples, ICLR 2015.
    """

    ball: Ball

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        return replace(self, ball=self.ball.at(radius))

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns the end of the step, inside the range; nothing is random."""
        del key
        x = floating_input(x)
        return self.ball.project(x + self.ball.ascend(jax.grad(loss)(x), self.ball.radius), x)


@dataclass(frozen=True, kw_only=True)
class PGD:
    """Projected gradient ascent; returns the worst point that it has seen, ``x`` included.

    Each step is a steepest ascent, projected on the ball around the ORIGINAL input and on the
    range. Memory does not grow with steps or restarts.

    Attributes:
      ball: where it searches.
      num_steps: of each restart.
      step_size: in the ball's norm; by default ``2.5 * radius / num_steps``, with which a start
        anywhere in the ball can reach any other point of it, and turn.
      num_restarts: how many starts are tried.
      random_start: whether to start anywhere in the ball, or at the input itself.

    Example:
      >>> from tacit.robust.balls import L2
      >>> attack = PGD(ball=L2(radius=5.0), random_start=False)
      >>> x = attack(jax.random.key(0), lambda x: 3.0 * x[0] + 4.0 * x[1], jnp.zeros(2))
      >>> bool(jnp.allclose(x, jnp.array([3.0, 4.0]), atol=1e-3))
      True

    Reference:
      Madry et al., Towards deep learning models resistant to adversarial attacks, ICLR 2018.
    """

    ball: Ball
    num_steps: int = 20
    step_size: float | None = None
    num_restarts: int = 1
    random_start: bool = True

    def __post_init__(self) -> None:
        _check.positive_integer(num_steps=self.num_steps, num_restarts=self.num_restarts)
        if self.step_size is not None:
            _check.positive(step_size=self.step_size)
        if self.num_restarts > 1 and not self.random_start:
            raise InvalidArgumentError(
                f"num_restarts must be 1 where random_start is False; got {self.num_restarts}."
                " All restarts would be the same."
            )

    def at(self, radius: float | Scalar) -> Self:
        """Returns the attack on a ball of another radius, which may be traced."""
        return replace(self, ball=self.ball.at(radius))

    def __call__(self, key: Key, loss: Callable[[Array], Scalar], x: Input) -> Array:
        """Returns the point with the largest loss among all that were visited."""
        centre = floating_input(x)
        given = self.step_size
        size = 2.5 * self.ball.radius / self.num_steps if given is None else given

        def step(carry: tuple[Array, _Seen], _: None) -> tuple[tuple[Array, _Seen], None]:
            x, worst = carry
            value, gradient = jax.value_and_grad(loss)(x)
            moved = self.ball.project(x + self.ball.ascend(gradient, size), centre)
            return (moved, _worse(worst, (x, value))), None

        def restart(worst: _Seen, number: Array) -> tuple[_Seen, None]:
            start = centre
            if self.random_start:
                start_key = jax.random.fold_in(jax.random.fold_in(key, _START), number)
                start = self.ball.sample(start_key, centre)
            (last, worst), _ = lax.scan(step, (start, worst), length=self.num_steps)
            return _worse(worst, (last, loss(last))), None

        worst, _ = lax.scan(restart, (centre, loss(centre)), jnp.arange(self.num_restarts))
        return worst[0]


def _worse(one: _Seen, other: _Seen) -> _Seen:
    # A loss that is not a number is never larger, so it never replaces a point that has one.
    is_worse = other[1] > one[1]
    return jnp.where(is_worse, other[0], one[0]), jnp.where(is_worse, other[1], one[1])


class RobustAccuracy(NamedTuple):
    """How a posterior fares under one attack.

    Attributes:
      accuracy: the share of inputs that are classified rightly, attacked or not.
      clean_accuracy: without the attack.
      is_robust: which inputs those of ``accuracy`` are, ``(num_inputs,)``.
      x: the attacked inputs.
    """

    accuracy: float
    clean_accuracy: float
    is_robust: Array
    x: Array


def attack_posterior(
    posterior: Posterior,
    attack: Attack,
    x: Input,
    y: Array,
    *,
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> Array:
    """Returns, for each input, a point of its ball where the posterior's mean loss is large.

    The loss of one draw is the negative log probability of the label or, for a real target, the
    negative log density of a normal with the predicted mean and variance. What is maximised is
    its mean over ALL draws at every step: an attack on single draws overestimates robustness.
    Only predictions are used, so models made robust are attacked like any others.

    Memory is bounded by ``batch_size`` inputs times one draw, and the states of all draws, of which
    every step needs all. One compilation serves every radius.

    Args:
      posterior: what to attack.
      attack: how; `FGSM` or `PGD`.
      x: inputs, one row for each.
      y: their targets.
      num_draws: as in `tacit.predict`.
      seed: of draws, masks and random starts.
      batch_size: how many inputs are attacked together.
    """
    _check.positive_integer(batch_size=batch_size)
    x, y = floating_input(x), jnp.asarray(y)
    num_inputs = _tree.num_records(x)
    if num_inputs == 0 or y.shape[:1] != (num_inputs,):
        raise InvalidArgumentError(
            f"x and y must have one row for each input; got shapes {x.shape} and {y.shape}."
        )
    batch_size = min(batch_size, num_inputs)
    kept = posterior.chosen(num_draws).at_once()
    # The radius is given apart, as a value, and the rest of the attack decides what is compiled.
    run = _compiled_attack(posterior.model.predict, posterior.sampler, attack.at(0.0))
    radius = jnp.asarray(attack.ball.radius, x.dtype)
    parts = []
    for start in range(0, num_inputs, batch_size):
        # The last batch reaches back, so that all have one shape and compile once.
        first = min(start, num_inputs - batch_size)
        rows = jnp.arange(first, first + batch_size)
        moved = run(seeded_key(seed), radius, kept, (*_tree.take((x, y), rows), rows))
        parts.append(moved[start - first :])
    return jnp.concatenate(parts)


def robust_accuracy(
    posterior: Posterior,
    attack: Attack,
    x: Input,
    y: Array,
    *,
    source: Posterior | None = None,
    num_draws: int | None = None,
    seed: int = 0,
    batch_size: int = 256,
) -> RobustAccuracy:
    """Returns the accuracy of the posterior predictive under attack.

    It is an upper bound on the true robust accuracy: a stronger attack may find more. An input
    counts only if it is classified rightly before and after, since the adversary need not move it.

    Args:
      posterior: a classifier.
      attack: what it must withstand.
      x: inputs, one row for each.
      y: their classes.
      source: the posterior on which the attack is computed, for transfer attacks; by default
        ``posterior`` itself.
      num_draws: as in `tacit.predict`, for attack and prediction.
      seed: for attack and prediction.
      batch_size: how many inputs are looked at together.
    """
    attacked = attack_posterior(
        posterior if source is None else source,
        attack,
        x,
        y,
        num_draws=num_draws,
        seed=seed,
        batch_size=batch_size,
    )

    def is_right(inputs: Array) -> Array:
        predicted = predict(
            posterior, inputs, num_draws=num_draws, seed=seed, batch_size=batch_size
        )
        if isinstance(predicted, RegressionUncertainty):
            raise InvalidArgumentError(
                "posterior must be a classifier to have an accuracy; got one of a real target."
                " Use attack_posterior, and compare predictions at what it returns."
            )
        # A prediction that is not a number is not right, whatever its argmax.
        found = jnp.argmax(predicted.probabilities, axis=-1) == jnp.asarray(y)
        return found & jnp.all(jnp.isfinite(predicted.probabilities), axis=-1)

    clean = is_right(jnp.asarray(x))
    robust = clean & is_right(attacked)
    return RobustAccuracy(float(jnp.mean(robust)), float(jnp.mean(clean)), robust, attacked)


@functools.lru_cache(maxsize=64)
def _compiled_attack(
    predict_one: Callable[[Params, Input, Key], Prediction], sampler: Sampler, attack: Attack
) -> Callable[[Key, Scalar, Tree, tuple[Array, Array, Array]], Array]:
    def run(key: Key, radius: Scalar, kept: Tree, inputs: tuple[Array, Array, Array]) -> Array:
        draws = (jnp.arange(_tree.num_records(kept)), kept)

        def one_input(x: Array, y: Array, index: Array) -> Array:
            def loss_of_draw(x: Array, draw: tuple[Array, Tree]) -> Scalar:
                number, state = draw
                # The keys of `predict`, so that both see the same draws and masks.
                draw_key, input_key = jax.random.split(jax.random.fold_in(key, number))
                params = sampler.draw(draw_key, state)
                return _loss(predict_one(params, x, jax.random.fold_in(input_key, index)), y)

            start_key = jax.random.fold_in(key, index)
            return attack.at(radius)(start_key, _mean_over(loss_of_draw, draws), x)

        return jax.vmap(one_input)(*inputs)

    return jax.jit(run)


def _mean_over(loss: Callable[[Array, Tree], Scalar], draws: Tree) -> Callable[[Array], Scalar]:
    """Returns the mean of a loss over draws, whose derivative holds one draw at a time."""
    num_draws = _tree.num_records(draws)

    def mean_of(function: Callable[[Array, Tree], Any], x: Array) -> Any:
        def add(total: Any, draw: Tree) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, function(x, draw)), None

        first = jax.tree.map(lambda leaf: leaf[0], draws)
        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(function, x, first))
        total, _ = lax.scan(add, zero, draws)
        return jax.tree.map(lambda leaf: leaf / num_draws, total)

    @jax.custom_vjp
    def mean(x: Array) -> Scalar:
        return mean_of(loss, x)

    def forward(x: Array) -> tuple[Scalar, Array]:
        return mean_of(jax.value_and_grad(loss), x)

    mean.defvjp(forward, lambda gradient, cotangent: (cotangent * gradient,))
    return mean


def _loss(prediction: Prediction, y: Array) -> Scalar:
    if isinstance(prediction, Moments):
        square = jnp.square(jnp.reshape(y, prediction.mean.shape) - prediction.mean)
        return 0.5 * jnp.sum(square / prediction.variance + jnp.log(prediction.variance))
    is_label = jnp.arange(prediction.shape[-1]) == jnp.reshape(y, ())
    probability = jnp.sum(jnp.where(is_label, prediction, 0.0))
    # A draw that leaves the label no chance at all cannot be pushed further.
    return -jnp.log(jnp.maximum(probability, float(np.finfo(prediction.dtype).tiny)))
