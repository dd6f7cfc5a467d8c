"""Schedules of models: a loss that changes with the step, for any method."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.base import Around, Kernel
from tacit.models import Model
from tacit.typing import Array, Key, Record, Scalar, Tree

__all__ = ["Ramp", "Scheduled"]


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """Goes in a straight line from ``first`` to ``last`` between two steps, and stays there.

    Example:
      >>> ramp = Ramp(first=0.0, last=0.1, start=100, stop=300)
      >>> [round(float(ramp(step)), 3) for step in (0, 200, 1000)]
      [0.0, 0.05, 0.1]
    """

    first: float
    last: float
    start: int = 0
    stop: int

    def __post_init__(self) -> None:
        _check.finite(first=self.first, last=self.last)
        _check.non_negative_integer(start=self.start)
        _check.positive_integer(stop=self.stop)
        if self.start >= self.stop:
            raise InvalidArgumentError(
                f"start must be below stop={self.stop}; got {self.start}. They are steps."
            )

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the value at ``step``."""
        share = (jnp.asarray(step, jnp.float32) - self.start) / (self.stop - self.start)
        return self.first + (self.last - self.first) * jnp.clip(share, 0.0, 1.0)


class ScheduledState(NamedTuple):
    """The method's own state, and how many steps were made."""

    step: Array
    inner: Any


@dataclass(frozen=True, kw_only=True)
class Scheduled(Around):
    """A method whose model changes with the step, as in training with a growing radius.

    A model is pure and has no step; the method that runs it need not know of any schedule. This
    method counts the steps and, at each, takes one step of ``base`` on ``transform(model,
    step)``. All of that is one compiled program.

    What is retained are the states of ``base``; those before the schedule has come to its end
    belong to other models, so let ``burn_in`` cover them. They are released and paid for all the
    same. The posterior is one of the model that `fit` is given: it predicts with that one.

    Guarantee:
      The schedule depends on the step alone, so every step costs what it costs without one.

    Attributes:
      base: any method; its state must not hold values of the loss of earlier steps.
      transform: ``transform(model, step)`` returns a model with the same parameters; the step is
        traced, and so are radius and weight that come from it.

    Example:
      >>> import optax
      >>> import tacit
      >>> from tacit.models import MLP, Categorical, GaussianPrior, bayesian
      >>> from tacit.robust import Linf, certified
      >>> network = MLP(num_inputs=4, hidden=(8,), num_outputs=2)
      >>> model = bayesian(
      ...     network, prior=GaussianPrior(std=1.0), likelihood=Categorical(num_classes=2)
      ... )
      >>> sampling = tacit.PoissonBatch(num_records=1000, batch_size=100)
      >>> release = tacit.GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=1.0)
      >>> ball, radius = Linf(radius=0.1), Ramp(first=0.0, last=0.1, stop=500)
      >>> method = Scheduled(
      ...     base=tacit.SGD(release=release, optimizer=optax.sgd(0.5)),
      ...     transform=lambda model, step: certified(
      ...         model, network, ball.at(radius(step)), weight=0.5
      ...     ),
      ... )
      >>> plan = tacit.Plan(method=method, num_steps=1000, burn_in=500)
      >>> plan.cost == tacit.Plan(method=method.base, num_steps=1000).cost
      True
    """

    transform: Callable[[Model, Scalar], Model]

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        first = self.base.build(self.transform(model, jnp.zeros((), jnp.int32)))

        def init(key: Key) -> ScheduledState:
            return ScheduledState(jnp.zeros((), jnp.int32), first.init(key))

        def step(key: Key, state: ScheduledState, records: Record) -> tuple[ScheduledState, Any]:
            kernel = self.base.build(self.transform(model, state.step))
            inner, info = kernel.step(key, state.inner, records)
            return ScheduledState(state.step + 1, inner), info

        def retain(state: ScheduledState) -> Tree:
            return first.retain(state.inner)

        return first._replace(init=init, step=step, retain=retain)
