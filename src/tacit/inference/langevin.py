"""What Langevin methods share: engine noise that follows the step size, and its exact cost."""

import abc
import math
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.method import TableSettings
from tacit.inference.schedules import Constant, Schedule
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.cost import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.typing import Array, Scalar

__all__ = ["FIXED_TEMPERATURE", "Langevin", "LangevinInfo", "ScheduledNoise"]

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
      clip_schedule: factors of the clip norm. At fixed temperature the multiplier is divided by
        them, so that the noise itself stays; else the noise follows the clip norm.

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
    clip_schedule: Schedule = field(default_factory=Constant)

    @property
    def is_constant(self) -> bool:
        """Whether all steps use the configured multiplier."""
        follows_clip = self.power == FIXED_TEMPERATURE
        is_clip_constant = isinstance(self.clip_schedule, Constant) or not follows_clip
        is_constant = isinstance(self.schedule, Constant) and is_clip_constant
        return is_constant or not self.release.is_private

    def multiplier(self, step: Array) -> Scalar:
        """The multiplier of a step."""
        followed = self.release.noise_multiplier * self.schedule(step) ** self.power
        return followed / self.clip_schedule(step) if self.power == FIXED_TEMPERATURE else followed

    def clip_norm(self, step: Array) -> Scalar:
        """The clip norm of a step."""
        return self.release.clip_norm * self.clip_schedule(step)

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
        clips = np.asarray(jax.vmap(self.clip_schedule)(steps), np.float64)
        margin = _ROUNDING * (1 + abs(self.power) * _magnitude(factors) + _magnitude(clips))
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


def _magnitude(factors: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(1 + np.abs(np.log2(np.maximum(factors, np.finfo(np.float32).tiny))))


@dataclass(frozen=True, kw_only=True)
class Langevin(abc.ABC):
    """What methods share whose privacy noise is that of Langevin dynamics.

    Args:
      release: the engine. Its noise multiplier belongs to the first step.
      step_size: of the first step.
      schedule: factor of the step size at each step.
      noise_power: how noise follows the step size, ``s_t = s_0 (h_t / h_0) ** noise_power``.
      langevin_temperature: for non-private runs only, where the method draws the noise itself.
      clip_schedule: factor of the clip norm at each step. At fixed temperature the noise stays, so
        a smaller clip norm is cheaper; else the noise follows the clip norm.
    """

    release: GaussianSum
    step_size: float
    schedule: Schedule = field(default_factory=Constant)
    noise_power: float = 0.0
    langevin_temperature: float = 0.0
    clip_schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        _check.positive(step_size=self.step_size)
        _check.finite(noise_power=self.noise_power)
        _check.non_negative(langevin_temperature=self.langevin_temperature)
        if self.release.is_private and self.langevin_temperature:
            raise InvalidArgumentError(
                f"langevin_temperature must be 0 in a private run; got {self.langevin_temperature}."
                f" There the engine adds all the noise: use {type(self).__name__}"
                ".fixed_temperature."
            )

    @classmethod
    def fixed_temperature(
        cls,
        *,
        sampling: Sampling,
        clip_norm: float,
        step_size: float,
        temperature: float = 1.0,
        schedule: Schedule | None = None,
        clipping: Clipping | None = None,
        chunk_size: int | None = None,
        **own: Any,
    ) -> Self:
        """Returns a sampler at a given temperature; the noise multiplier follows from it.

        Calibration then changes the step size: a smaller budget means smaller steps.

        Args:
          sampling: of the engine.
          clip_norm: of the engine.
          step_size: of the first step.
          temperature: of the chain.
          schedule: factor of the step size at each step.
          clipping: of the engine.
          chunk_size: of the engine.
          own: fields that the method has for itself, such as SGHMC's ``friction``.
        """
        _check.positive(temperature=temperature)
        unit = GaussianSum(
            sampling=sampling,
            clip_norm=clip_norm,
            noise_multiplier=1.0,
            clipping=clipping or Flat(),
            chunk_size=chunk_size,
        )
        method = cls(
            release=unit,
            step_size=step_size,
            schedule=schedule or Constant(),
            noise_power=FIXED_TEMPERATURE,
            **own,
        )
        multiplier = math.sqrt(temperature / (method._heat * step_size)) / unit.noise_std
        return replace(method, release=replace(unit, noise_multiplier=multiplier))

    @classmethod
    def fixed_noise(
        cls,
        *,
        release: GaussianSum,
        step_size: float,
        schedule: Schedule | None = None,
        **own: Any,
    ) -> Self:
        """Returns a sampler with the noise that the budget asks for; its temperature follows."""
        return cls(release=release, step_size=step_size, schedule=schedule or Constant(), **own)

    @classmethod
    def non_private(
        cls,
        *,
        sampling: Sampling,
        step_size: float,
        temperature: float = 1.0,
        schedule: Schedule | None = None,
        chunk_size: int | None = None,
        **own: Any,
    ) -> Self:
        """Returns the plain method: no clip, Langevin noise by itself, epsilon infinite."""
        return cls(
            release=GaussianSum.non_private(sampling=sampling, chunk_size=chunk_size),
            step_size=step_size,
            schedule=schedule or Constant(),
            langevin_temperature=temperature,
            **own,
        )

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns a sampler whose drift is descent at the recipe's learning rate."""
        release = settings.release
        return cls(
            release=release,
            step_size=2 * settings.learning_rate / release.sampling.num_records,
            # Without privacy there is no noise that could serve as Langevin noise.
            langevin_temperature=0.0 if release.is_private else 1.0,
        )

    @property
    def num_records(self) -> int:
        """How many records the method was configured for."""
        return self.release.sampling.num_records

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.release.sampling.public_records

    def temperature(self, step: int = 0) -> float:
        """The temperature of the injected noise at a step, a lower bound on that of the chain."""
        return float(self._info(jnp.asarray(step)).temperature)

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """One release a step, each with the multiplier of its step or slightly less."""
        return self._noise.cost(num_steps, start)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise; at fixed temperature the step size follows, else the temperature."""
        release, step_factor = self._noise.scaled(factor)
        return replace(self, release=release, step_size=self.step_size * step_factor)

    @property
    def _noise(self) -> ScheduledNoise:
        return ScheduledNoise(
            release=self.release,
            schedule=self.schedule,
            power=self.noise_power,
            clip_schedule=self.clip_schedule,
        )

    def _info(self, step: Array) -> LangevinInfo:
        step_size, multiplier = self.step_size * self.schedule(step), self._noise.multiplier(step)
        if not self.release.is_private:
            return LangevinInfo(step_size, multiplier, jnp.asarray(self.langevin_temperature))
        std = multiplier * self._noise.clip_norm(step) / self.release.sampling.inclusion_rate
        return LangevinInfo(step_size, multiplier, self._heat * step_size * std**2)

    @property
    @abc.abstractmethod
    def _heat(self) -> float:
        """The temperature at which gradients with unit noise sample, for each unit of step size."""
