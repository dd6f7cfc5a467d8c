"""What is timed: training steps of a workload, plain and private, and the gradients in them."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import optax
from jax import lax

from benchmarks.loops import Step
from benchmarks.workloads import Workload
from tacit import _tree
from tacit.inference import SGD, VI
from tacit.models import Model
from tacit.privacy.clipping import Flat, bounds
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.gradient import clipped_gradient_sum
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.typing import Array, Key, Params, Record, RecordLoss, Scalar, Tree

__all__ = [
    "CLIP_NORM",
    "LEARNING_RATE",
    "NOISE_MULTIPLIER",
    "Gradient",
    "clipped_gradient",
    "method_of",
    "model_of",
    "per_record_step",
    "plain_gradient",
    "plain_step",
    "rewritten_step",
]

CLIP_NORM = 1.0
NOISE_MULTIPLIER = 1.0
LEARNING_RATE = 1e-3

_CHUNK = 128

Gradient: TypeAlias = Callable[[Params, Record, Key, Array], Tree]
"""``gradient(params, records, keys, mask)`` of a loss summed over a batch."""


def plain_gradient(loss: RecordLoss) -> Gradient:
    """Returns the gradient of the summed loss. It has no use for the mask."""

    def total(params: Params, records: Record, keys: Key) -> Scalar:
        return jax.vmap(loss, in_axes=(None, 0, 0))(params, records, keys).sum()

    return lambda params, records, keys, mask: jax.grad(total)(params, records, keys)


def clipped_gradient(loss: RecordLoss, *, clip_norm: float = CLIP_NORM) -> Gradient:
    """Returns the sum of clipped gradients, as the engine adds it: in integers."""
    is_clipped = math.isfinite(clip_norm)
    adding = Adding(units=2.0**18 / clip_norm, num_limbs=1) if is_clipped else Adding()

    def gradient(params: Params, records: Record, keys: Key, mask: Array) -> Tree:
        settings: Any = {"clipping": Flat(), "clip_norm": clip_norm, "adding": adding}
        return clipped_gradient_sum(loss, params, records, keys, mask, **settings)

    return gradient


def _per_record_gradient(loss: RecordLoss) -> Gradient:
    """The same clipped sum by its definition, as most libraries compute it."""

    def gradient(params: Params, records: Record, keys: Key, mask: Array) -> Tree:
        return bounds.reference_gradient_sum(
            loss, params, records, keys, mask, clipping=Flat(), clip_norm=CLIP_NORM
        )

    return gradient


def _descent(workload: Workload, batch: int, gradient_of: Callable[[RecordLoss], Gradient]) -> Step:
    def step(t: Array, key: Key, params: Params, data: Record) -> Params:
        index_key, shared_key, own_key = jax.random.split(jax.random.fold_in(key, t), 3)
        num_records = _tree.num_records(data)
        indices = jax.random.randint(index_key, (batch,), 0, num_records)
        shared = workload.shared(shared_key)

        def loss(params: Params, record: Record, key: Key) -> Scalar:
            return workload.loss(params, shared, record, key)

        keys, mask = jax.random.split(own_key, batch), jnp.ones(batch, bool)
        total = gradient_of(loss)(params, _tree.take(data, indices), keys, mask)
        mean = jax.tree.map(lambda g: g / batch, total)
        if workload.divergence is not None:
            exact = jax.grad(workload.divergence)(params)
            mean = jax.tree.map(lambda g, own: g + own / num_records, mean, exact)
        return jax.tree.map(lambda w, g: w - LEARNING_RATE * g, params, mean)

    return step


def plain_step(workload: Workload, batch: int) -> Step:
    """Returns stochastic gradient descent as one writes it without privacy."""
    return _descent(workload, batch, plain_gradient)


def rewritten_step(workload: Workload, batch: int) -> Step | None:
    """Returns the same of the loss as it is faster in a loop; None if there is no such form.

    The gradient is made of chunks that stay in the cache, which is faster still.
    """
    if workload.rewritten is None:
        return None
    return _descent(replace(workload, loss=workload.rewritten), batch, _gradient_in_chunks)


def _gradient_in_chunks(loss: RecordLoss) -> Gradient:
    gradient = plain_gradient(loss)

    def of_chunks(params: Params, records: Record, keys: Key, mask: Array) -> Tree:
        size = math.gcd(_CHUNK, len(mask))
        data = records, keys, mask
        chunks = jax.tree.map(lambda leaf: leaf.reshape(-1, size, *leaf.shape[1:]), data)

        def add(total: Tree, chunk: Any) -> tuple[Tree, None]:
            return jax.tree.map(jnp.add, total, gradient(params, *chunk)), None

        return lax.scan(add, jax.tree.map(jnp.zeros_like, params), chunks)[0]

    return of_chunks


def per_record_step(workload: Workload, batch: int) -> Step:
    """Returns descent by one clipped gradient for each record, without noise."""
    return _descent(workload, batch, _per_record_gradient)


def model_of(workload: Workload) -> Model:
    """Returns the workload as a model; it has a flat prior if it is none already."""
    return workload.guided or Model(
        init=workload.init,
        log_prior=lambda params: jnp.zeros(()),
        log_likelihood=lambda params, record, key: -workload.loss(params, None, record, key),
        predict=lambda params, x, key: jnp.zeros(1),
    )


def method_of(workload: Workload, sampling: Sampling) -> SGD | VI:
    """Returns the private method that takes the place of the plain step."""
    method = SGD if workload.guided is None else VI
    return method(
        release=GaussianSum(
            sampling=sampling, clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER
        ),
        optimizer=optax.sgd(LEARNING_RATE),
    )
