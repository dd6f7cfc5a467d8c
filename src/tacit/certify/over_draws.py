"""Over draws: the mean of a function over exactly the draws and masks that `predict` takes."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.models import Bernoulli, Categorical, Model, Network
from tacit.models.spec import LIKELIHOODS, NETWORKS, decode
from tacit.models.steps import steps_of
from tacit.posterior import Posterior
from tacit.rng import seeded_key
from tacit.samplers import Sampler
from tacit.typing import Array, Key, Params, Scalar, Tree

__all__ = ["PerDraw", "classifier_of", "logit_rows", "logits_of", "mean_over_draws"]


class PerDraw(Protocol):
    """A function of one draw and one input; plain configuration, compiled once."""

    def __hash__(self) -> int: ...

    def __call__(self, params: Params, inputs: Tree, key: Key, radius: Scalar) -> Tree:
        """Returns arrays whose mean over draws is wanted."""
        ...


def mean_over_draws(
    posterior: Posterior,
    function: PerDraw,
    inputs: Tree,
    radius: float,
    *,
    num_draws: int | None,
    seed: int,
    batch_size: int,
) -> Tree:
    """Returns the mean over draws for each input, holding one draw and one batch at a time."""
    _check.positive_integer(batch_size=batch_size)
    num_inputs = _tree.num_records(inputs)
    if num_inputs == 0:
        raise InvalidArgumentError("x must have at least one row; got none.")
    batch_size = min(batch_size, num_inputs)
    kept = _tree.take(posterior.flat(), posterior.indices(num_draws))
    run = _compiled(function, posterior.sampler)
    parts = []
    for start in range(0, num_inputs, batch_size):
        # The last batch reaches back, so that all have one shape and compile once.
        first = min(start, num_inputs - batch_size)
        rows = jnp.arange(first, first + batch_size)
        means = run(seeded_key(seed), kept, _tree.take(inputs, rows), rows, jnp.float32(radius))
        parts.append(jax.tree.map(lambda leaf, at=start - first: leaf[at:], means))
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


@functools.lru_cache(maxsize=64)
def _compiled(function: PerDraw, sampler: Sampler) -> Callable[..., Tree]:
    def run(key: Key, kept: Tree, inputs: Tree, index: Array, radius: Scalar) -> Tree:
        def one_draw(number: Array, state: Tree) -> Tree:
            # The keys of `predict`, so that both see the same draws and masks.
            draw_key, input_key = jax.random.split(jax.random.fold_in(key, number))
            params = sampler.draw(draw_key, state)
            keys = jax.vmap(lambda i: jax.random.fold_in(input_key, i))(index)
            return jax.vmap(function, in_axes=(None, 0, 0, None))(params, inputs, keys, radius)

        def add(total: Tree, draw: tuple[Array, Tree]) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, one_draw(*draw)), None

        num_draws = _tree.num_records(kept)
        draws = (jnp.arange(num_draws), kept)
        shapes = jax.eval_shape(one_draw, *jax.tree.map(lambda leaf: leaf[0], draws))
        zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = lax.scan(add, zero, draws)
        return jax.tree.map(lambda leaf: leaf / num_draws, total)

    return jax.jit(run)


def classifier_of(model: Model) -> tuple[Network, int]:
    """Returns the network of a classifier and its number of classes, or says why it has none."""
    spec: Any = model.spec
    likelihood = None if spec is None else decode(spec["likelihood"], LIKELIHOODS)
    if not isinstance(likelihood, Categorical | Bernoulli):
        found = "functions" if spec is None else f"{likelihood}"
        raise InvalidArgumentError(
            "posterior.model must be an MLP or a CNN with a Categorical or Bernoulli likelihood,"
            f" whose layers and classes are known; got one of {found}. Smoothing takes any"
            " classifier."
        )
    network: Network = decode(spec["network"], NETWORKS)
    steps_of(network)
    return network, 2 if isinstance(likelihood, Bernoulli) else likelihood.num_classes


def logits_of(outputs: Array) -> Array:
    """Returns a logit for each class: a single output is that of class 1 against 0.

    Example:
      >>> logits_of(jnp.array([3.0]))
      Array([0., 3.], dtype=float32)
    """
    return jnp.concatenate([jnp.zeros_like(outputs), outputs]) if outputs.size == 1 else outputs


def logit_rows(num_outputs: int) -> Array:
    """Returns the matrix that maps outputs to logits.

    Example:
      >>> logit_rows(1)
      Array([[0.],
             [1.]], dtype=float32)
    """
    return jax.vmap(logits_of, in_axes=1, out_axes=1)(jnp.eye(num_outputs))
