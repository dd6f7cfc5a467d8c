"""Stochastic gradient descent on the log posterior: DP-SGD, or MAP under a prior."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tacit import _tree
from tacit.inference.method import (
    Kernel,
    Objective,
    OneRelease,
    TableSettings,
    declare,
    objective_of,
    potential_gradient,
)
from tacit.inference.schedules import Constant, Schedule, scheduled_clip_norm
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["SGD", "descent"]


class SGDState(NamedTuple):
    """Parameters, what the optimiser remembers of earlier releases, and how many there were."""

    params: Params
    optimizer: Tree
    step: Array


class SGDInfo(NamedTuple):
    """Nothing: a training loss would be another release."""


@declare(
    name="sgd",
    summary="a point estimate, by DP-SGD with momentum",
    citations=("abadi2016deep",),
    relative_rate=1 / 15,
)
@dataclass(frozen=True, kw_only=True)
class SGD(OneRelease):
    """Any optax optimiser on the private gradient of the mean negative log posterior.

        w <- w - lr * [ G / (rate * n) - grad log p(w) / n ]

    Guarantee:
      One release a step, nothing else. The optimiser acts after the noise, so momentum and
      adaptive scaling are free.

    Args:
      release: the engine: sampling, clip and noise.
      optimizer: an optax transformation of that mean gradient.
      clip_schedule: factor of the clip norm at each step. The noise follows the clip norm, so that
        every step costs the same.

    Reference:
      Abadi et al., "Deep learning with differential privacy" (2016), with the estimate divided
      by the public inclusion rate.
    """

    optimizer: optax.GradientTransformation
    clip_schedule: Schedule = field(default_factory=Constant)

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns descent with momentum."""
        optimizer = optax.sgd(settings.learning_rate, momentum=0.9)
        return cls(release=settings.release, optimizer=optimizer)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        init, step = descent(objective_of(model), self.release, self.optimizer, self.clip_schedule)
        return Kernel(init, step, lambda state: state.params, Points())


def descent(
    objective: Objective,
    release: GaussianSum,
    optimizer: optax.GradientTransformation,
    clip_schedule: Schedule,
) -> tuple[Callable[[Key], SGDState], Callable[[Key, SGDState, Record], tuple[SGDState, SGDInfo]]]:
    """Returns ``init`` and ``step`` of an optimiser on the private gradient of an objective.

    The optimiser sees the gradient of the objective divided by the public number of records.
    """
    # Accepts transformations that want no extra arguments and those that do alike.
    optimizer = optax.with_extra_args_support(optimizer)

    def init(key: Key) -> SGDState:
        params = objective.init(key)
        memory = optimizer.init(_tree.at_least_float32(params))
        return SGDState(params, memory, jnp.zeros((), jnp.int32))

    def step(key: Key, state: SGDState, records: Record) -> tuple[SGDState, SGDInfo]:
        clip_norm = scheduled_clip_norm(release, clip_schedule, state.step)
        gradient = potential_gradient(
            key, release, objective, state.params, records, clip_norm=clip_norm
        )
        mean = jax.tree.map(lambda g: g / release.sampling.public_records, gradient)
        params = _tree.at_least_float32(state.params)
        updates, memory = optimizer.update(mean, state.optimizer, params)
        moved = optax.apply_updates(state.params, updates)
        return SGDState(moved, memory, state.step + 1), SGDInfo()

    return init, step
