"""Variational inference: by reparameterised gradients, and by natural gradients."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import optax

from tacit import _check, _tree
from tacit.inference.guides import Guide, MeanField, expected_log_prior
from tacit.inference.method import (
    Kernel,
    Objective,
    OneRelease,
    TableSettings,
    declare,
    objective_of,
    potential_gradient,
)
from tacit.inference.schedules import Constant, Schedule
from tacit.inference.sgd import descent
from tacit.models import Model
from tacit.models.base import IntegrableLogPrior
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.samplers import DiagonalGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["IVON", "VI", "RecordDraws", "SharedDraws", "variational_objective"]


@dataclass(frozen=True, kw_only=True)
class SharedDraws:
    """All records of a batch see the same draws of the parameters; fast."""


@dataclass(frozen=True, kw_only=True)
class RecordDraws:
    """Every record sees draws of its own, from its own key.

    The gradient is less noisy, since the draws average over the batch. But each record then has its
    own weights, so per-record gradients are formed: for small models.
    """


Draws: TypeAlias = SharedDraws | RecordDraws


@declare(
    name="vi",
    summary="a Gaussian, by variational inference",
    citations=("jalko2017differentially",),
    relative_rate=1 / 15,
)
@dataclass(frozen=True, kw_only=True)
class VI(OneRelease):
    """Minimises the expected loss under a guide plus its divergence from the prior.

        theta <- theta - lr * [ G / (rate * n) + grad KL(q_theta | p) / n ]
        G = sum of clip( grad (1/S) sum_s loss_i(w_s) ) + noise,    w_s = w(theta, e_s)

    A record's gradient for all of the guide's parameters is averaged over draws and then clipped
    once. The divergence has no data: it is exact, once, outside the clip. It is in closed form for
    the priors of this package; for others the expected log prior is an average over the
    step's shared draws.

    Guarantee:
      One release a step, nothing else; the noise of the draws comes from keys, not from records.
      The optimiser acts after the noise.

    Args:
      release: the engine: sampling, clip and noise.
      optimizer: an optax transformation of the gradient of the mean.
      guide: the family of the approximation.
      num_particles: how many draws are averaged before the clip. S draws cost S passes, and norms
        take about S^2 / 2 products for each layer of the widths.
      draws: whether records share them.
      clip_schedule: factor of the clip norm at each step, which the noise follows.

    Reference:
      Blundell et al., "Weight uncertainty in neural networks" (2015); Zhang et al.'s DP-BBP with
      the divergence weighted by 1/n and the noise before the optimiser.
    """

    optimizer: optax.GradientTransformation
    guide: Guide = field(default_factory=MeanField)
    num_particles: int = 1
    draws: Draws = field(default_factory=SharedDraws)
    clip_schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        _check.positive_integer(num_particles=self.num_particles)

    @classmethod
    def non_private(
        cls,
        *,
        sampling: Sampling,
        optimizer: optax.GradientTransformation,
        guide: Guide | None = None,
        num_particles: int = 1,
        draws: Draws | None = None,
    ) -> "VI":
        """Returns plain variational inference: no clip, no noise, epsilon infinite."""
        return cls(
            release=GaussianSum.non_private(sampling=sampling),
            optimizer=optimizer,
            guide=guide or MeanField(),
            num_particles=num_particles,
            draws=draws or SharedDraws(),
        )

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns a mean-field Gaussian, learnt by descent with momentum."""
        optimizer = optax.sgd(settings.learning_rate, momentum=0.9)
        return cls(release=settings.release, optimizer=optimizer, guide=MeanField(init_std=0.03))

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = variational_objective(model, self.guide, self.num_particles, self.draws)
        init, step = descent(objective, self.release, self.optimizer, self.clip_schedule)
        return Kernel(
            init, step, lambda state: self.guide.retained(state.params), self.guide.sampler
        )


def variational_objective(
    model: Model, guide: Guide, num_particles: int, draws: Draws
) -> Objective:
    """Returns the negative evidence lower bound, split by what may see a record."""
    plain = objective_of(model)

    def init(key: Key) -> Params:
        model_key, guide_key = jax.random.split(key)
        return guide.init(guide_key, model.init(model_key))

    shapes = jax.eval_shape(init, jax.random.key(0))

    def noises(key: Key) -> list[Any]:
        return [guide.noise(own, shapes) for own in jax.random.split(key, num_particles)]

    def record_loss(params: Params, shared: list[Any], record: Record, key: Key) -> Scalar:
        loss_key, noise_key = jax.random.split(key)
        used = shared if isinstance(draws, SharedDraws) else noises(noise_key)
        # A list and not a mapped axis: then the clip sees each draw's weights as such.
        losses = [
            plain.record_loss(guide.draw(params, noise), None, record, own)
            for noise, own in zip(used, jax.random.split(loss_key, num_particles), strict=True)
        ]
        return jnp.mean(jnp.stack(losses))

    def regulariser(params: Params, shared: list[Any]) -> Scalar:
        mean, std = guide.marginals(params)
        expected = expected_log_prior(
            model.log_prior, mean, std, lambda: [guide.draw(params, noise) for noise in shared]
        )
        return -guide.entropy(params) - expected

    return Objective(init, noises, record_loss, regulariser)


class IVONState(NamedTuple):
    """The Gaussian, and what is remembered of earlier releases."""

    mean: Params
    precision: Tree
    momentum: Tree
    step: Array


class IVONInfo(NamedTuple):
    """Nothing: a training loss would be another release."""


@declare(
    name="ivon",
    summary="a Gaussian, by natural-gradient variational inference",
    citations=("shen2024variational",),
    relative_rate=0.01,
)
@dataclass(frozen=True, kw_only=True)
class IVON(OneRelease):
    """Learns a mean-field Gaussian ``N(m, 1/P)`` by natural-gradient steps.

    Each step draws ``w = m + e / sqrt(P)``, asks for one private gradient ``G`` of the summed loss
    at ``w``, and uses it twice:

        P_hat = G * (w - m) * P + prior curvature         (Stein: its expectation is E_q[hessian])
        P <- P (1 + x + x^2 / 2),    x = curvature_rate * (P_hat - P) / P
        m <- m - learning_rate * (momentum of G + prior gradient) / P

    At the fixed point ``P`` is the expected curvature of the negative log posterior and ``m`` its
    stationary point, which is the best mean-field Gaussian. ``G`` estimates the sum over all
    records, so the number of records has no other place here; a learning rate of one is a Newton
    step. ``P`` stays positive whatever the noise: its factor is at least one half.

    The prior enters exactly, outside the clip: its expected gradient and curvature under the
    Gaussian are derivatives of its expectation. A prior without a closed form joins ``G`` instead,
    after the noise.

    What the noise does: it is independent of ``e``, so ``P_hat`` stays unbiased. Its relative
    standard deviation is ``noise_std / sqrt(P)`` a step, and that of ``P`` about
    ``sqrt(curvature_rate / 2)`` of it; the factor's second-order term makes ``1/P``, the variance,
    right on average. Clipping is another matter: it shrinks large gradients, and with them ``P``.

    Guarantee:
      One release a step, nothing else. Curvature, momentum and the draw are made of releases and
      keys, so they are free.

    Args:
      release: the engine: sampling, clip and noise.
      learning_rate: of the mean, relative to a Newton step.
      curvature_rate: how much of ``P_hat`` a step takes in; smaller is less noisy and slower.
      momentum: how much of earlier gradients the mean's step keeps.
      init_std: standard deviation of every parameter at the start.
      schedule: factor of the learning rate at each step.

    Reference:
      Shen et al., "Variational learning is effective for large deep networks" (2024); the factor
      that keeps ``P`` positive is from Lin, Schmidt, Khan, "Handling the positive-definite
      constraint in the Bayesian learning rule" (2020).
    """

    learning_rate: float
    curvature_rate: float = 1e-3
    momentum: float = 0.9
    init_std: float = 0.02
    schedule: Schedule = field(default_factory=Constant)

    def __post_init__(self) -> None:
        _check.positive(learning_rate=self.learning_rate, init_std=self.init_std)
        _check.fraction(curvature_rate=self.curvature_rate)
        _check.fraction(momentum=self.momentum, zero=True, one=False)

    @classmethod
    def non_private(
        cls,
        *,
        sampling: Sampling,
        learning_rate: float,
        curvature_rate: float = 1e-3,
        momentum: float = 0.9,
        init_std: float = 0.02,
        schedule: Schedule | None = None,
    ) -> "IVON":
        """Returns the plain method: no clip, no noise, epsilon infinite."""
        return cls(
            release=GaussianSum.non_private(sampling=sampling),
            learning_rate=learning_rate,
            curvature_rate=curvature_rate,
            momentum=momentum,
            init_std=init_std,
            schedule=schedule or Constant(),
        )

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns the method at the recipe's learning rate."""
        return cls(release=settings.release, learning_rate=settings.learning_rate)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)
        log_prior = model.log_prior
        if isinstance(log_prior, IntegrableLogPrior):
            # The prior is added in closed form below, not at the draw.
            objective = objective._replace(regulariser=lambda params, shared: jnp.zeros(()))

        def init(key: Key) -> IVONState:
            mean = model.init(key)
            wide = _tree.at_least_float32(mean)
            precision = jax.tree.map(lambda m: jnp.full_like(m, self.init_std**-2), wide)
            nothing = jax.tree.map(jnp.zeros_like, wide)
            return IVONState(mean, precision, nothing, jnp.zeros((), jnp.int32))

        def step(key: Key, state: IVONState, records: Record) -> tuple[IVONState, IVONInfo]:
            draw_key, release_key = jax.random.split(key)
            std = _std(state.precision)
            offset = DiagonalGaussian().draw(
                draw_key, {"mean": jax.tree.map(jnp.zeros_like, std), "std": std}
            )
            drawn = jax.tree.map(lambda m, d: (m + d).astype(m.dtype), state.mean, offset)
            gradient = potential_gradient(release_key, self.release, objective, drawn, records)
            if isinstance(log_prior, IntegrableLogPrior):
                slope, curvature = _prior_moments(log_prior, state.mean, std)
            else:
                slope = curvature = jax.tree.map(jnp.zeros_like, gradient)

            def moved_precision(p: Array, g: Array, d: Array, c: Array) -> Array:
                change = self.curvature_rate * (g * d * p + c - p) / p
                return p * (1 + change + 0.5 * jnp.square(change))

            precision = jax.tree.map(moved_precision, state.precision, gradient, offset, curvature)
            momentum = jax.tree.map(
                lambda old, new: self.momentum * old + (1 - self.momentum) * new,
                state.momentum,
                gradient,
            )
            # Early on the momentum is an average that began at zero.
            share = 1 - self.momentum ** (state.step + 1)
            rate = self.learning_rate * self.schedule(state.step)
            mean = jax.tree.map(
                lambda m, g, s, p: (m - rate * (g / share + s) / p).astype(m.dtype),
                state.mean,
                momentum,
                slope,
                precision,
            )
            return IVONState(mean, precision, momentum, state.step + 1), IVONInfo()

        def retain(state: IVONState) -> Tree:
            std = jax.tree.map(lambda m, s: s.astype(m.dtype), state.mean, _std(state.precision))
            return {"mean": state.mean, "std": std}

        return Kernel(init, step, retain, DiagonalGaussian())


def _std(precision: Tree) -> Tree:
    return jax.tree.map(jax.lax.rsqrt, precision)


def _prior_moments(log_prior: IntegrableLogPrior, mean: Params, std: Tree) -> tuple[Tree, Tree]:
    """Returns the expected gradient and curvature of the negative log prior under the Gaussian.

    The derivative of an expectation by the mean is the expected gradient (Bonnet), and that by
    the standard deviation is the expected curvature times the standard deviation (Price).
    """

    def negative(mean: Params, std: Tree) -> Scalar:
        return -log_prior.expected(mean, std)

    by_mean, by_std = jax.grad(negative, argnums=(0, 1))(_tree.at_least_float32(mean), std)
    return by_mean, jax.tree.map(jnp.divide, by_std, std)
