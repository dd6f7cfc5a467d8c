"""What Langevin methods share: engine noise that follows the step size, and its exact cost."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit.errors import InvalidArgumentError
from tacit.inference.schedules import Constant, Schedule
from tacit.privacy.events import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Array, Scalar

__all__ = ["FIXED_TEMPERATURE", "LangevinInfo", "ScheduledNoise"]

FIXED_TEMPERATURE = -0.5
"""The power of the step size by which noise must follow it for the temperature to stay."""

_ROUNDING = 2.0**-20
"""Eight float32 roundings: what one operation of a schedule may lose, relative to its argument."""


class LangevinInfo(NamedTuple):
    """Public settings of the step just made."""

    step_size: Scalar
    noise_multiplier: Scalar
    temperature: Scalar


@dataclass(frozen=True, kw_only=True)
class ScheduledNoise:
    """Noise multipliers ``s_t = s_0 f_t ** power`` under the factors ``f_t`` of a step size.

    Guarantee:
      `cost` is that of what a run passes to the engine by `override`, or of slightly less noise.

    Args:
      release: the engine; its multiplier belongs to the first step.
      schedule: the factors.
      power: -1/2 keeps the temperature of a Langevin method, 0 keeps the noise.

    Example:
      >>> from tacit.inference.schedules import Polynomial
      >>> from tacit.privacy.sampling import FullBatch
      >>> release = GaussianSum(
      ...     sampling=FullBatch(num_records=9), clip_norm=1.0, noise_multiplier=2.0)
      >>> noise = ScheduledNoise(
      ...     release=release, schedule=Polynomial(delay=3, power=1.0), power=-0.5)
      >>> float(noise.multiplier(jnp.asarray(9)))
      4.0
    """

    release: GaussianSum
    schedule: Schedule
    power: float

    @property
    def is_constant(self) -> bool:
        """Whether all steps use the configured multiplier."""
        return isinstance(self.schedule, Constant) or not self.release.is_private

    def multiplier(self, step: Array) -> Scalar:
        """The multiplier of a step."""
        return self.release.noise_multiplier * self.schedule(step) ** self.power

    def override(self, step: Array) -> Scalar | None:
        """What to pass to the engine at a step; None where its own multiplier is meant.

        A constant goes in as the configured number, so that cost and noise agree to the last bit.
        """
        return None if self.is_constant else self.multiplier(step)

    def cost(self, num_steps: int, start: int) -> DpEvent:
        """One release a step, each with the multiplier of its step or slightly less."""
        if self.is_constant or not num_steps:
            return repeated(self.release.cost, num_steps)
        counts = Counter(self.stated_multipliers(num_steps, start).tolist())
        return composed(*(repeated(self.release.cost_of(s), count) for s, count in counts.items()))

    def stated_multipliers(self, num_steps: int, start: int) -> NDArray[np.float64]:
        """Lower bounds on the multipliers of the steps, however their computation is compiled.

        The run and this function evaluate the schedule in float32 in different programs, which
        may round differently. A power or an exponential turns a rounding of its exponent into a
        relative error of the result in proportion to the logarithm of the result, and raising to
        ``power`` multiplies the error that the factor already has.
        """
        steps = jnp.arange(start, start + num_steps)
        factors = np.asarray(jax.vmap(self.schedule)(steps), np.float64)
        used = np.asarray(jax.vmap(self.multiplier)(steps), np.float64)
        magnitude = 1 + np.abs(np.log2(np.maximum(factors, np.finfo(np.float32).tiny)))
        margin = _ROUNDING * (1 + abs(self.power) * magnitude)
        return np.asarray(used * np.maximum(1 - margin, 0.0))

    def scaled(self, factor: float) -> tuple[GaussianSum, float]:
        """Returns the engine with scaled noise, and the factor of the step size that follows.

        At fixed temperature the step size goes with the inverse square of the noise; else it stays,
        and the temperature follows.
        """
        multiplier = self.release.noise_multiplier * factor
        release = replace(self.release, noise_multiplier=multiplier)
        if self.power != FIXED_TEMPERATURE:
            return release, 1.0
        if factor == 0:
            raise InvalidArgumentError(
                "factor must be positive at fixed temperature; got 0. For a run without privacy"
                " use the constructor non_private."
            )
        return release, 1 / factor**2
