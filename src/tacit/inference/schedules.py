"""Step-size schedules: public factors of the first step size, functions of the step alone."""

from dataclasses import dataclass
from typing import Protocol

import jax.numpy as jnp

from tacit import _check
from tacit.typing import Scalar

__all__ = ["Constant", "Cosine", "Exponential", "Polynomial", "Schedule"]


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
