"""Variational inference by natural gradients."""

from dataclasses import dataclass, field
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.inference.evidence import Evidence, evidence_of, first_evidence
from tacit.inference.method import (
    Kernel,
    OneRelease,
    TableSettings,
    declare,
    noted_gradient,
    objective_of,
)
from tacit.inference.schedules import Constant, Schedule
from tacit.models import Model
from tacit.models.base import IntegrableLogPrior
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.samplers import DiagonalGaussian
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["IVON"]


class IVONState(NamedTuple):
    """The Gaussian, what is remembered of earlier releases, and what was noted of them."""

    mean: Params
    precision: Tree
    momentum: Tree
    step: Array
    evidence: Evidence | None


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
            evidence = first_evidence(mean, self.release, model)
            return IVONState(mean, precision, nothing, jnp.zeros((), jnp.int32), evidence)

        def step(key: Key, state: IVONState, records: Record) -> tuple[IVONState, IVONInfo]:
            draw_key, release_key = jax.random.split(key)
            std = _std(state.precision)
            offset = DiagonalGaussian().draw(
                draw_key, {"mean": jax.tree.map(jnp.zeros_like, std), "std": std}
            )
            drawn = jax.tree.map(lambda m, d: (m + d).astype(m.dtype), state.mean, offset)
            gradient, evidence = noted_gradient(
                release_key, self.release, objective, drawn, records, evidence=state.evidence
            )
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
            state = IVONState(mean, precision, momentum, state.step + 1, evidence)
            return state, IVONInfo()

        def retain(state: IVONState) -> Tree:
            std = jax.tree.map(lambda m, s: s.astype(m.dtype), state.mean, _std(state.precision))
            return {"mean": state.mean, "std": std}

        return Kernel(
            init, step, retain, DiagonalGaussian(), evidence=evidence_of, engine=self.release
        )


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
