"""Attacks on a posterior: bad inputs for the mean of its draws, and what they do to accuracy.

The adversary knows everything: the draws, and the masks where units are dropped. An attack with a
seed is on exactly the draws that `tacit.predict` takes with the same seed and number of draws.

All of it is post-processing and costs nothing on public or consented inputs.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.metrics import RegressionUncertainty
from tacit.models import Moments, Prediction
from tacit.posterior import Posterior, predict
from tacit.rng import seeded_key
from tacit.robust.attacks import Attack
from tacit.robust.balls import floating_input
from tacit.samplers import Sampler
from tacit.typing import Array, Input, Key, Params, Scalar, Tree

__all__ = ["RobustAccuracy", "attack_posterior", "robust_accuracy"]


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

    Memory is bounded by ``batch_size`` inputs times one draw. One compilation serves every radius.

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
    kept = _tree.take(posterior.flat(), posterior.indices(num_draws))
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
