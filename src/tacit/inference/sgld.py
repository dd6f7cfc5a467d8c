"""Stochastic gradient Langevin dynamics whose privacy noise is its Langevin noise."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.inference.langevin import Langevin, LangevinInfo
from tacit.inference.method import (
    Kernel,
    Objective,
    add_regulariser,
    declare,
    objective_of,
    potential_gradient,
)
from tacit.inference.schedules import Constant, Schedule, scheduled_clip_norm
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.rng import normal_like
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["SGLD"]


class SGLDState(NamedTuple):
    """The released iterate and how many steps led to it."""

    params: Params
    step: Array


@declare(
    name="sgld",
    summary="draws, by Langevin dynamics whose noise is the privacy noise",
    citations=("welling2011bayesian", "wang2015privacy"),
    is_chain=True,
)
@dataclass(frozen=True, kw_only=True)
class SGLD(Langevin):
    """Langevin steps on ``U(w) = sum of losses - log p(w)``; the engine adds the noise.

        w' = w - (h/2) [ G/q - grad log p(w) ],    G = sum clip(g_i) + s C xi

    where ``q`` is the inclusion rate of the batches, by which the engine divides.
    The engine's noise moves the iterate with variance ``(h/2)**2 s**2 C**2 / q**2``, which is
    ``h * temperature``: so ``temperature = h s**2 C**2 / (4 q**2)``. One release serves privacy and
    sampling. Use the constructors: `fixed_temperature` (the step size then follows from the
    budget), `fixed_noise` (the temperature follows and is reported), `zhang`, `knolle`,
    `non_private`.

    Guarantee:
      One release a step; the iterate is a function of releases, and nothing in `State` or `Info`
      depends on a less noisy gradient. Thinning gives no discount.

    What is sampled: clipping biases the drift, so the target is the potential whose gradient is the
    clipped one; Poisson batches add sampling noise, so the temperature is a lower bound; the
    step size biases the variance (on N(0,1) it is 1/(1 - h/4) at temperature one).

    Args:
      release: the engine. Its noise multiplier belongs to the first step.
      step_size: ``h`` of the first step.
      schedule: factor of the step size at each step.
      noise_power: how noise follows the step size, ``s_t = s_0 (h_t / h_0) ** noise_power``: -1/2
        keeps the temperature, 0 keeps the noise, +1/2 is Knolle's rule.
      pre_noise: standard deviation of noise added to each record's gradient before the clip; for
        utility only, it has no part in the guarantee, and it takes the slow path.
      langevin_temperature: for non-private runs only, where the method draws the noise itself.

    Reference:
      Welling, Teh, "Bayesian learning via stochastic gradient Langevin dynamics" (2011).
    """

    pre_noise: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.non_negative(pre_noise=self.pre_noise)

    @classmethod
    def zhang(
        cls,
        *,
        sampling: Sampling,
        clip_norm: float,
        learning_rate: float,
        clip_schedule: Schedule | None = None,
    ) -> "SGLD":
        """Returns Zhang et al.'s DP-SGLD: drift ``eta``, noise variance ``eta``.

        That is step size ``2 eta`` at temperature one half, and equals DP-SGD with learning rate
        ``eta n`` and multiplier ``B / (n sqrt(eta) C)``, with ``B`` the mean size of a batch (their
        theorem 1). A ``clip_schedule`` makes their clip norms C_t; the multiplier goes with its
        inverse.
        """
        constant = cls.fixed_temperature(
            sampling=sampling, clip_norm=clip_norm, step_size=2 * learning_rate, temperature=0.5
        )
        return replace(constant, clip_schedule=clip_schedule or Constant())

    @classmethod
    def knolle(
        cls,
        *,
        sampling: Sampling,
        clip_norm: float,
        learning_rate: float,
        temperature: float,
        schedule: Schedule | None = None,
        pre_noise: float = 0.0,
    ) -> "SGLD":
        """Returns Knolle et al.'s temperature-scaled DP-SGLD.

        Learning rate ``a_t`` on the mean gradient, multiplier ``sqrt(2 a_t tau)`` on the sum: noise
        decays with the learning rate, so later steps cost more. Their ``tau`` is not the posterior
        temperature; that one is reported in `Info`.
        """
        _check.positive(learning_rate=learning_rate, temperature=temperature)
        return cls(
            release=GaussianSum(
                sampling=sampling,
                clip_norm=clip_norm,
                noise_multiplier=math.sqrt(2 * learning_rate * temperature),
            ),
            step_size=2 * learning_rate / sampling.public_records,
            schedule=schedule or Constant(),
            noise_power=0.5,
            pre_noise=pre_noise,
        )

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)

        def init(key: Key) -> SGLDState:
            return SGLDState(objective.init(key), jnp.zeros((), jnp.int32))

        def step(key: Key, state: SGLDState, records: Record) -> tuple[SGLDState, LangevinInfo]:
            gradient_key, langevin_key = jax.random.split(key)
            info = self._info(state.step)
            gradient = self._gradient(gradient_key, objective, state, records)
            params = jax.tree.map(
                lambda w, g: (w - 0.5 * info.step_size * g).astype(w.dtype), state.params, gradient
            )
            if self.langevin_temperature:
                std = jnp.sqrt(info.step_size * self.langevin_temperature)
                params = jax.tree.map(
                    lambda w, xi: (w + xi).astype(w.dtype),
                    params,
                    normal_like(langevin_key, params, std=std),
                )
            return SGLDState(params, state.step + 1), info

        return Kernel(init, step, lambda state: state.params, Points())

    @property
    def _heat(self) -> float:
        return 1 / 4

    def _gradient(self, key: Key, objective: Objective, state: SGLDState, records: Record) -> Tree:
        params, multiplier = state.params, self._noise.override(state.step)
        clip_norm = scheduled_clip_norm(self.release, self.clip_schedule, state.step)
        if not self.pre_noise:
            return potential_gradient(
                key,
                self.release,
                objective,
                params,
                records,
                noise_multiplier=multiplier,
                clip_norm=clip_norm,
            )
        shared_key, release_key = jax.random.split(key)
        shared = objective.shared(shared_key)

        def noisy_gradient(record: Record, key: Key) -> Tree:
            loss_key, noise_key = jax.random.split(key)
            gradient = _tree.at_least_float32(
                jax.grad(objective.record_loss)(params, shared, record, loss_key)
            )
            noise = normal_like(noise_key, gradient, std=self.pre_noise)
            return jax.tree.map(jnp.add, gradient, noise)

        estimate = self.release(
            release_key,
            noisy_gradient,
            records,
            noise_multiplier=multiplier,
            clip_norm=clip_norm,
        )
        return add_regulariser(estimate, objective, params, shared)
