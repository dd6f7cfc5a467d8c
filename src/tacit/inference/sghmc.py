"""Stochastic gradient Hamiltonian Monte Carlo whose privacy noise is that of its friction."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.inference.langevin import Langevin, LangevinInfo
from tacit.inference.method import Kernel, declare, objective_of, potential_gradient
from tacit.inference.schedules import scheduled_clip_norm
from tacit.models import Model
from tacit.rng import normal_like
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["SGHMC"]


class SGHMCState(NamedTuple):
    """Position and momentum, both sums of releases, and how many steps led to them."""

    params: Params
    momentum: Tree
    step: Array


@declare(
    name="sghmc",
    summary="draws, by Langevin dynamics with momentum",
    citations=("chen2014stochastic",),
    relative_rate=0.1,
    is_chain=True,
)
@dataclass(frozen=True, kw_only=True)
class SGHMC(Langevin):
    """Langevin dynamics with momentum on ``U(w) = sum of losses - log p(w)``.

        m' = (1 - a) m - sqrt(h) [ G/q - grad log p(w) ],    G = sum clip(g_i) + s C xi
        w' = w + sqrt(h) m'

    where ``q`` is the inclusion rate of the batches, by which the engine divides.
    Friction ``a`` takes momentum out, and noise must bring back as much. In the time that a step
    takes, ``sqrt(h)``, the friction per time is ``a / sqrt(h)``, and the dynamics keep
    ``exp(-U(w)/tau - |m|^2/(2 tau))`` if their noise has variance ``2 tau`` times friction per
    time, that is ``2 a tau`` a step. The engine's noise enters the momentum with variance
    ``h s**2 C**2 / q**2``. So

        s = (q / C) sqrt(2 a tau / h),    tau = h s**2 C**2 / (2 a q**2),

    and one release serves privacy and sampling. With ``v = sqrt(h) m`` this is the usual form,
    ``v' = (1 - a) v - h [...]`` and ``w' = w + v'``; momentum is kept as ``m`` because its scale
    does not change when the step size does. ``a = 1`` forgets all momentum: SGLD with twice the
    step size. At one temperature and ``h``, less friction means less noise, so more cost a step,
    and steps that go further.

    Use the constructors: `fixed_temperature` (the step size then follows from the budget),
    `fixed_noise` (the temperature follows and is reported), `non_private`.

    Guarantee:
      One release a step. Position and momentum are functions of releases, and nothing in `State` or
      `Info` depends on a less noisy gradient. Thinning gives no discount.

    What is sampled: as with SGLD, clipping biases the drift, and Poisson batches add noise of
    their own, so the temperature is a lower bound. The step size biases the variance: on a
    Gaussian of precision ``b`` it is ``(tau / b) / (1 - h b / (2 (2 - a)))``, which also says how
    large steps may be.

    Args:
      release: the engine. Its noise multiplier belongs to the first step.
      step_size: ``h`` of the first step.
      friction: the part of the momentum that a step takes away, ``a``, in (0, 1].
      schedule: factor of the step size at each step.
      noise_power: how noise follows the step size, ``s_t = s_0 (h_t / h_0) ** noise_power``: -1/2
        keeps the temperature, 0 keeps the noise.
      langevin_temperature: for non-private runs only, where the method draws the noise itself.

    Example:
      >>> from tacit.privacy.sampling import PoissonBatch
      >>> method = SGHMC.fixed_temperature(
      ...     sampling=PoissonBatch(num_records=60_000, batch_size=256),
      ...     clip_norm=1.5, step_size=1e-5, friction=0.1)
      >>> f"{method.release.noise_multiplier:.3f}"
      '0.395'

    Reference:
      Chen, Fox, Guestrin, "Stochastic gradient Hamiltonian Monte Carlo" (2014), equation 15.
    """

    friction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        _check.fraction(friction=self.friction)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model; chains start at rest."""
        objective = objective_of(model)

        def init(key: Key) -> SGHMCState:
            params = objective.init(key)
            momentum = jax.tree.map(jnp.zeros_like, _tree.at_least_float32(params))
            return SGHMCState(params, momentum, jnp.zeros((), jnp.int32))

        def step(key: Key, state: SGHMCState, records: Record) -> tuple[SGHMCState, LangevinInfo]:
            gradient_key, noise_key = jax.random.split(key)
            info = self._info(state.step)
            time = jnp.sqrt(info.step_size)
            gradient = potential_gradient(
                gradient_key,
                self.release,
                objective,
                state.params,
                records,
                noise_multiplier=self._noise.override(state.step),
                clip_norm=scheduled_clip_norm(self.release, self.clip_schedule, state.step),
            )
            momentum = jax.tree.map(
                lambda m, g: (1 - self.friction) * m - time * g, state.momentum, gradient
            )
            if self.langevin_temperature:
                std = math.sqrt(2 * self.friction * self.langevin_temperature)
                noise = normal_like(noise_key, momentum, std=std)
                momentum = jax.tree.map(jnp.add, momentum, noise)
            params = jax.tree.map(
                lambda w, m: (w + time * m).astype(w.dtype), state.params, momentum
            )
            return SGHMCState(params, momentum, state.step + 1), info

        return Kernel(init, step, lambda state: state.params, Points())

    @property
    def _heat(self) -> float:
        return 1 / (2 * self.friction)
