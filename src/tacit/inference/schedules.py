"""Step-size schedules: public factors of the first step size, functions of the step alone."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from tacit import _check
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Scalar

__all__ = [
    "Constant",
    "Cosine",
    "Cyclical",
    "Exponential",
    "Polynomial",
    "Schedule",
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
