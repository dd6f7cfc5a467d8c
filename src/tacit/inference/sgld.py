"""Langevin dynamics of first and second order, whose privacy noise is their own noise."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import Evidence, evidence_of, first_evidence
from tacit.inference.langevin import Langevin, LangevinInfo
from tacit.inference.method import (
    Kernel,
    Objective,
    add_regulariser,
    declare,
    noted_gradient,
    objective_of,
    retained_params,
)
from tacit.inference.schedules import Constant, Schedule, scheduled_clip_norm
from tacit.inference.sgd import SGD
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.rng import normal_like
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Tree

__all__ = ["SGHMC", "SGLD"]


class SGLDState(NamedTuple):
    """The released iterate, how many steps led to it, and what was noted of their releases."""

    params: Params
    step: Array
    evidence: Evidence | None


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

    @classmethod
    def from_descent(cls, *, release: GaussianSum, learning_rate: float) -> "SGLD":
        """Returns the Langevin dynamics that plain DP-SGD with this learning rate is.

        Args:
          release: the engine of DP-SGD, which stays as it is, and with it the cost.
          learning_rate: of DP-SGD on the mean gradient.

        Example:
          >>> from tacit.privacy.sampling import PoissonBatch
          >>> release = GaussianSum(
          ...     sampling=PoissonBatch(num_records=60_000, batch_size=256),
          ...     clip_norm=1.5, noise_multiplier=1.3)
          >>> SGLD.from_descent(release=release, learning_rate=0.25).step_size
          8.333333333333334e-06
        """
        _check.positive(learning_rate=learning_rate)
        return cls.fixed_noise(
            release=release, step_size=2 * learning_rate / release.sampling.public_records
        )

    def as_descent(self) -> SGD:
        """Returns the DP-SGD that makes the same iterates from the same releases.

        Its learning rate on the mean gradient is ``h n / 2``, its engine the same (Zhang et al.,
        theorem 1).

        Raises:
          InvalidArgumentError: where noise follows the step size, is added before the clip, or is
            the method's own: DP-SGD has nothing like it.

        Example:
          >>> from tacit.privacy.sampling import PoissonBatch
          >>> sampling = PoissonBatch(num_records=60_000, batch_size=256)
          >>> zhang = SGLD.zhang(sampling=sampling, clip_norm=1.5, learning_rate=5e-6)
          >>> f"{zhang.as_descent().release.noise_multiplier:.4f}"  # B / (n sqrt(eta) C), B 251.6
          '1.2500'
        """
        is_steady = self.noise_power == 0 or self._noise.is_constant
        if self.pre_noise or self.langevin_temperature or not is_steady:
            raise InvalidArgumentError(
                "method must have constant noise, all of it from the engine, to be DP-SGD; got"
                f" {self!r}. Use SGLD.fixed_noise."
            )
        scale = self.step_size * self.release.sampling.public_records / 2
        optimizer = optax.sgd(lambda step: scale * self.schedule(step))
        return SGD(release=self.release, optimizer=optimizer, clip_schedule=self.clip_schedule)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)

        def init(key: Key) -> SGLDState:
            params = objective.init(key)
            evidence = None if self.pre_noise else first_evidence(params, self.release, model)
            return SGLDState(params, jnp.zeros((), jnp.int32), evidence)

        def step(key: Key, state: SGLDState, records: Record) -> tuple[SGLDState, LangevinInfo]:
            gradient_key, langevin_key = jax.random.split(key)
            info = self._info(state.step)
            gradient, evidence = self._gradient(gradient_key, objective, state, records)
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
            return SGLDState(params, state.step + 1, evidence), info

        return Kernel(
            init, step, retained_params, Points(), evidence=evidence_of, engine=self.release
        )

    @property
    def _heat(self) -> float:
        return 1 / 4

    def _gradient(
        self, key: Key, objective: Objective, state: SGLDState, records: Record
    ) -> tuple[Tree, Evidence | None]:
        params, multiplier = state.params, self._noise.override(state.step)
        clip_norm = scheduled_clip_norm(self.release, self.clip_schedule, state.step)
        if not self.pre_noise:
            return noted_gradient(
                key,
                self.release,
                objective,
                params,
                records,
                evidence=state.evidence,
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
        return add_regulariser(estimate, objective, params, shared), None


class SGHMCState(NamedTuple):
    """Position and momentum, both sums of releases, and what was noted of these."""

    params: Params
    momentum: Tree
    step: Array
    evidence: Evidence | None


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
            evidence = first_evidence(params, self.release, model)
            return SGHMCState(params, momentum, jnp.zeros((), jnp.int32), evidence)

        def step(key: Key, state: SGHMCState, records: Record) -> tuple[SGHMCState, LangevinInfo]:
            gradient_key, noise_key = jax.random.split(key)
            info = self._info(state.step)
            time = jnp.sqrt(info.step_size)
            gradient, evidence = noted_gradient(
                gradient_key,
                self.release,
                objective,
                state.params,
                records,
                evidence=state.evidence,
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
            return SGHMCState(params, momentum, state.step + 1, evidence), info

        return Kernel(
            init, step, retained_params, Points(), evidence=evidence_of, engine=self.release
        )

    @property
    def _heat(self) -> float:
        return 1 / (2 * self.friction)
