"""What is timed: gradients and whole training steps of a workload, plain and private."""

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax

from benchmarks.workloads import Workload
from tacit import _tree
from tacit.inference import SGD
from tacit.models import Model
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.gradient import clipped_gradient_sum
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = [
    "CLIP_NORM",
    "LEARNING_RATE",
    "NOISE_MULTIPLIER",
    "Gradient",
    "Step",
    "clipped_gradient",
    "plain_gradient",
    "plain_step",
    "private_step",
]

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 1e-3

Gradient: TypeAlias = Callable[[Params, Tree, Record, Key, Array], Tree]
"""``gradient(params, shared, records, keys, mask)`` of a summed loss."""

Step: TypeAlias = Callable[[Array, Key, Any, Record], Any]
"""``step(t, key, state, data)`` returns the next state."""


def plain_gradient(workload: Workload) -> Gradient:
    """Returns the gradient of the loss summed over a batch. It has no use for the mask."""

    def total(params: Params, shared: Tree, records: Record, keys: Key) -> Scalar:
        losses = jax.vmap(workload.loss, in_axes=(None, None, 0, 0))(params, shared, records, keys)
        return losses.sum()

    def gradient(params: Params, shared: Tree, records: Record, keys: Key, mask: Array) -> Tree:
        del mask
        return jax.grad(total)(params, shared, records, keys)

    return gradient


def clipped_gradient(workload: Workload, *, clip_norm: float = CLIP_NORM) -> Gradient:
    """Returns the sum of the clipped gradients of a batch, as the engine adds it: in integers."""
    is_clipped = math.isfinite(clip_norm)
    adding = Adding(units=2.0**18 / clip_norm, num_limbs=1) if is_clipped else Adding()

    def gradient(params: Params, shared: Tree, records: Record, keys: Key, mask: Array) -> Tree:
        def loss(params: Params, record: Record, key: Key) -> Scalar:
            return workload.loss(params, shared, record, key)

        return clipped_gradient_sum(
            loss,
            params,
            records,
            keys,
            mask,
            clipping=Flat(),
            clip_norm=clip_norm,
            adding=adding,
        )

    return gradient


def plain_step(workload: Workload, batch: int) -> Step:
    """Returns stochastic gradient descent as one writes it without privacy."""
    gradient = plain_gradient(workload)

    def step(t: Array, key: Key, params: Params, data: Record) -> Params:
        index_key, shared_key, record_key = jax.random.split(jax.random.fold_in(key, t), 3)
        indices = jax.random.randint(index_key, (batch,), 0, _tree.num_records(data))
        total = gradient(
            params,
            workload.shared(shared_key),
            _tree.take(data, indices),
            jax.random.split(record_key, batch),
            jnp.ones(batch, bool),
        )
        return jax.tree.map(lambda w, g: w - LEARNING_RATE / batch * g, params, total)

    return step


def private_step(workload: Workload, sampling: Sampling) -> tuple[Callable[[Key], Any], Step]:
    """Returns what tacit runs: how its state starts, and the step of its `SGD`."""
    method = SGD(
        release=GaussianSum(
            sampling=sampling, clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER
        ),
        optimizer=optax.sgd(LEARNING_RATE),
    )

    def step(t: Array, key: Key, state: Any, data: Record) -> Any:
        shared_key, step_key = jax.random.split(jax.random.fold_in(key, t))
        kernel = method.build(_model(workload, workload.shared(shared_key)))
        return kernel.step(step_key, state, data)[0]

    return method.build(_model(workload, None)).init, step


def _model(workload: Workload, shared: Tree) -> Model:
    """The workload as a model: a flat prior, and nothing to predict."""
    return Model(
        init=workload.init,
        log_prior=lambda params: jnp.zeros(()),
        log_likelihood=lambda params, record, key: -workload.loss(params, shared, record, key),
        predict=lambda params, x, key: jnp.zeros(1),
    )
