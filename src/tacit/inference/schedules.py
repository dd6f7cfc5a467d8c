"""Schedules: step sizes and losses that change with the step, by public factors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import Evidence, only_norms
from tacit.inference.method import Around, Kernel, declare
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Array, Key, Record, Scalar, Tree

__all__ = [
    "Constant",
    "Cosine",
    "Cyclical",
    "Exponential",
    "Polynomial",
    "Ramp",
    "Schedule",
    "Scheduled",
    "scheduled_clip_norm",
]


class Schedule(Protocol):
    """Returns the factor of the step size at a step; one at step zero, always positive."""

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        ...


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same step size throughout."""

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns one."""
        return jnp.ones_like(jnp.asarray(step, jnp.float32))


@dataclass(frozen=True, kw_only=True)
class Polynomial:
    """``(1 + step / delay) ** -power``: Langevin theory wants a power in (1/2, 1].

    Example:
      >>> float(Polynomial(delay=100, power=1.0)(100))
      0.5
    """

    delay: float
    power: float = 0.55

    def __post_init__(self) -> None:
        _check.positive(delay=self.delay)
        _check.non_negative(power=self.power)

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        return (1.0 + jnp.asarray(step, jnp.float32) / self.delay) ** -self.power


@dataclass(frozen=True, kw_only=True)
class Exponential:
    """Halves every ``half_life`` steps."""

    half_life: float

    def __post_init__(self) -> None:
        _check.positive(half_life=self.half_life)

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        return jnp.exp2(-jnp.asarray(step, jnp.float32) / self.half_life)


@dataclass(frozen=True, kw_only=True)
class Cosine:
    """Falls along half a cosine to ``floor`` within ``num_steps`` and stays there."""

    num_steps: int
    floor: float = 0.1

    def __post_init__(self) -> None:
        _check.positive_integer(num_steps=self.num_steps)
        _check.fraction(floor=self.floor)

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        left = jnp.maximum(self.num_steps - jnp.asarray(step, jnp.float32), 0.0) / self.num_steps
        # Half of one plus a cosine, as a square: without cancellation near the end.
        return self.floor + (1.0 - self.floor) * jnp.sin(0.5 * jnp.pi * left) ** 2


@dataclass(frozen=True, kw_only=True)
class Cyclical:
    """Falls along half a cosine within a cycle, then starts again at one.

    The long steps that begin a cycle take a chain to another mode, the short ones that end it
    sample there. At fixed temperature short steps need more noise, so the ends of cycles are cheap
    in privacy. A cycle that is too short ends before the chain has come to rest in a mode. Retain
    the state that ends each cycle by thinning with the cycle's length, in a run of whole cycles;
    the states between are released and paid for all the same.

    Args:
      num_steps: the length of a cycle.
      floor: what is added to the fall, so that the last factor is above it; zero is the paper's.

    Example:
      >>> schedule = Cyclical(num_steps=50)
      >>> [f"{float(schedule(step)):.3f}" for step in (0, 25, 49, 50)]
      ['1.000', '0.500', '0.001', '1.000']
      >>> from tacit.inference import SGLD, Plan
      >>> from tacit.privacy.sampling import FullBatch
      >>> method = SGLD.fixed_temperature(
      ...     sampling=FullBatch(num_records=100), clip_norm=1.0, step_size=0.1, schedule=schedule)
      >>> Plan(method=method, num_steps=200, thinning=schedule.num_steps).kept_steps
      (50, 100, 150, 200)

    Reference:
      Zhang, Li, Zhang, Chen, Wilson, "Cyclical stochastic gradient MCMC for Bayesian deep learning"
      (2020), equation 1.
    """

    num_steps: int
    floor: float = 0.0

    def __post_init__(self) -> None:
        _check.positive_integer(num_steps=self.num_steps)
        _check.fraction(floor=self.floor, zero=True)

    def __call__(self, step: Scalar | int) -> Scalar:
        """Returns the factor at ``step``."""
        # The remainder of whole numbers is exact, so that all cycles have the same factors.
        done = jnp.asarray(step, jnp.int32) % self.num_steps
        left = (self.num_steps - done).astype(jnp.float32) / self.num_steps
        return self.floor + (1.0 - self.floor) * jnp.sin(0.5 * jnp.pi * left) ** 2


def scheduled_clip_norm(
    release: GaussianSum, clip_schedule: Schedule, step: Scalar
) -> Scalar | None:
    """Returns what to pass to an engine at a step; None where its own clip norm is meant."""
    if isinstance(clip_schedule, Constant):
        return None
    return release.clip_norm * clip_schedule(step)


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


@declare(name="scheduled", summary="another method, on a model that changes with the step")
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
      >>> from tacit.robust import Linf
      >>> from tacit.certify import certified
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

        def evidence(state: ScheduledState) -> Evidence | None:
            # Releases at different steps are of different models: no posterior has them all.
            noted = None if first.evidence is None else first.evidence(state.inner)
            return only_norms(noted)

        return first._replace(init=init, step=step, retain=retain, evidence=evidence)
