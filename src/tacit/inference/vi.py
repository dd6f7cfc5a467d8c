"""Variational inference by reparameterised gradients: Bayes by backprop, private."""

from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import jax
import jax.numpy as jnp
import optax

from tacit import _check
from tacit.inference.guides import Guide, MeanField, expected_log_prior
from tacit.inference.method import (
    Kernel,
    Objective,
    OneRelease,
    TableSettings,
    declare,
    objective_of,
)
from tacit.inference.schedules import Constant, Schedule
from tacit.inference.sgd import descent
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.typing import Key, Params, Record, Scalar

__all__ = ["VI", "RecordDraws", "SharedDraws", "variational_objective"]


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
