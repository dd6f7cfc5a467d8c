"""Variational inference by reparameterised gradients."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeAlias

import jax
import jax.numpy as jnp
import optax

from tacit import _check, _tree
from tacit.inference.aligned import AlignedObjective, aligned_gradient
from tacit.inference.evidence import Evidence, evidence_of, first_evidence, only_norms
from tacit.inference.guides import Guide, MeanField, expected_log_prior
from tacit.inference.method import (
    Kernel,
    Objective,
    OneRelease,
    TableSettings,
    declare,
    noted_gradient,
    objective_of,
)
from tacit.inference.schedules import Constant, Schedule, scheduled_clip_norm
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = [
    "LATE",
    "VI",
    "AlignedDraws",
    "RecordDraws",
    "SharedDraws",
    "late_average",
    "variational_objective",
]


LATE = 3.0
"""The power with which late iterates weigh more in an average, by default."""


@dataclass(frozen=True, kw_only=True)
class AlignedDraws:
    """All records of a batch see the same draws, and are asked for their gradients at these.

    The gradient with respect to the draws is clipped and released; that of the guide's parameters
    follows from it. So the guide's spreads and factors add nothing to a record's norm nor to the
    noise.
    """


@dataclass(frozen=True, kw_only=True)
class SharedDraws:
    """All records of a batch see the same draws, and are asked for the guide's gradient.

    That is the DP-BBP of Zhang et al.: a record's gradient for means and spreads together is
    clipped and released.
    """


@dataclass(frozen=True, kw_only=True)
class RecordDraws:
    """Every record sees draws of its own, from its own key, and is asked for the guide's gradient.

    The gradient is less noisy, since the draws average over the batch. But each record then has its
    own weights, so per-record gradients are formed: for small models.
    """


Draws: TypeAlias = AlignedDraws | SharedDraws | RecordDraws


class VIState(NamedTuple):
    """The guide's parameters and their average, and what is remembered of earlier releases.

    Attributes:
      params: of the guide.
      average: of the guide's parameters over the steps; None where it is not kept.
      optimizer: what the optimiser remembers.
      step: how many steps were made.
      evidence: what was noted of the releases.
    """

    params: Params
    average: Params | None
    optimizer: Tree
    step: Array
    evidence: Evidence | None


class VIInfo(NamedTuple):
    """Nothing: a training loss would be another release."""


def late_average(average: Tree, latest: Tree, step: Array, *, power: float) -> Tree:
    """Returns the average with one iterate more, in which the ``t``-th weighs about ``t**power``.

    It forgets how a run began and needs no word on how long it will be. At a power of three it is
    as noisy as a plain average over the last 44 % of the run.

    Args:
      average: over the iterates before.
      latest: the iterate to add.
      step: how many are in the average.
      power: 0 weighs all alike.

    Example:
      >>> float(late_average(jnp.float32(5.0), jnp.float32(2.0), jnp.int32(0), power=3.0))
      2.0

    Reference:
      Shamir, Zhang, "Stochastic gradient descent for non-smooth optimization" (2013),
      polynomial-decay averaging.
    """
    share = (power + 1) / (power + 1 + step)
    return jax.tree.map(lambda a, w: a + share * (w - a), average, latest)


@declare(
    name="vi",
    summary="a Gaussian, by variational inference",
    citations=("jalko2017differentially",),
    relative_rate=1 / 15,
)
@dataclass(frozen=True, kw_only=True)
class VI(OneRelease):
    """Minimises the expected loss under a guide plus its divergence from the prior.

        theta <- theta - lr * [ (dw/dtheta)^T G / (rate * n) + grad KL(q_theta | p) / n ]
        G = sum of clip( d/dw loss_i(w) ) + noise,    w = w(theta, e)

    All records of a step share the draw ``w``, so the gradient with respect to it is all there is
    to release. Several draws are released together, each with the loss divided by their number, in
    one clip. The divergence has no data: it is exact, once, outside the clip. It is in closed form
    for the priors of this package; for others the expected log prior is an average over the
    step's shared draws.

    The posterior is the guide at the average of its parameters over the run, in which late steps
    weigh more, since the noise of single steps averages out.

    Guarantee:
      One release a step, nothing else; the noise of the draws comes from keys, not from records.
      The optimiser acts after the noise.

    Args:
      release: the engine: sampling, clip and noise.
      optimizer: an optax transformation of the gradient of the mean.
      guide: the family of the approximation.
      num_particles: how many draws are averaged before the clip. S draws cost S passes.
      draws: what records see and are asked for. With `SharedDraws` a record's gradient for all of
        the guide's parameters is clipped (`zhang`).
      clip_schedule: factor of the clip norm at each step, which the noise follows.
      averaging: the power of the step by which an iterate weighs in the average that the posterior
        keeps, 0 for a plain mean. None keeps the last iterate.

    Reference:
      Blundell et al., "Weight uncertainty in neural networks" (2015); Jälkö, Prediger, Honkela,
      Kaski, "DPVIm: differentially private variational inference improved" (2023), for aligned
      releases.
    """

    optimizer: optax.GradientTransformation
    guide: Guide = field(default_factory=MeanField)
    num_particles: int = 1
    draws: Draws = field(default_factory=AlignedDraws)
    clip_schedule: Schedule = field(default_factory=Constant)
    averaging: float | None = LATE

    def __post_init__(self) -> None:
        _check.positive_integer(num_particles=self.num_particles)
        if self.averaging is not None:
            _check.non_negative(averaging=self.averaging)

    @classmethod
    def non_private(
        cls,
        *,
        sampling: Sampling,
        optimizer: optax.GradientTransformation,
        guide: Guide | None = None,
        num_particles: int = 1,
        draws: Draws | None = None,
        averaging: float | None = LATE,
    ) -> "VI":
        """Returns plain variational inference: no clip, no noise, epsilon infinite."""
        return cls(
            release=GaussianSum.non_private(sampling=sampling),
            optimizer=optimizer,
            guide=guide or MeanField(),
            num_particles=num_particles,
            draws=draws or AlignedDraws(),
            averaging=averaging,
        )

    @classmethod
    def zhang(
        cls,
        *,
        release: GaussianSum,
        optimizer: optax.GradientTransformation,
        guide: Guide | None = None,
        num_particles: int = 1,
    ) -> "VI":
        """Returns Zhang et al.'s DP-BBP, which clips a record's gradient for mean and scale.

        That releases twice as many numbers as an aligned step on a mean field. The posterior is the
        guide of the last step.
        """
        return cls(
            release=release,
            optimizer=optimizer,
            guide=guide or MeanField(),
            num_particles=num_particles,
            draws=SharedDraws(),
            averaging=None,
        )

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns a mean-field Gaussian, learnt by descent with momentum and a decaying rate."""
        rate = optax.cosine_decay_schedule(settings.learning_rate, settings.num_steps, alpha=0.1)
        optimizer = optax.sgd(rate, momentum=0.9)
        return cls(release=settings.release, optimizer=optimizer, guide=MeanField(init_std=0.03))

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = variational_objective(model, self.guide, self.num_particles, self.draws)
        gradient_of = self._gradient_of(model, objective)
        optimizer = optax.with_extra_args_support(self.optimizer)
        is_aligned = isinstance(self.draws, AlignedDraws)

        def init(key: Key) -> VIState:
            params = objective.init(key)
            wide = _tree.at_least_float32(params)
            evidence = first_evidence(self.guide.marginals(params).mean, self.release, model)
            return VIState(
                params=params,
                average=None if self.averaging is None else wide,
                optimizer=optimizer.init(wide),
                step=jnp.zeros((), jnp.int32),
                evidence=evidence if is_aligned else only_norms(evidence),
            )

        def step(key: Key, state: VIState, records: Record) -> tuple[VIState, VIInfo]:
            clip_norm = scheduled_clip_norm(self.release, self.clip_schedule, state.step)
            gradient, evidence = gradient_of(key, state, records, clip_norm)
            mean = jax.tree.map(lambda g: g / self.release.sampling.public_records, gradient)
            updates, memory = optimizer.update(
                mean, state.optimizer, _tree.at_least_float32(state.params)
            )
            params = optax.apply_updates(state.params, updates)
            average = None
            if self.averaging is not None:
                latest = _tree.at_least_float32(params)
                average = late_average(state.average, latest, state.step, power=self.averaging)
            return VIState(params, average, memory, state.step + 1, evidence), VIInfo()

        def retain(state: VIState) -> Tree:
            if state.average is None:
                return self.guide.retained(state.params)
            averaged = jax.tree.map(lambda w, a: a.astype(w.dtype), state.params, state.average)
            return self.guide.retained(averaged)

        return Kernel(
            init,
            step,
            retain,
            self.guide.sampler,
            evidence=evidence_of,
            engine=self.release,
        )

    def _gradient_of(
        self, model: Model, objective: Objective
    ) -> Callable[..., tuple[Tree, Evidence | None]]:
        """Returns how a step asks the records, and what it makes of the answer."""
        if not isinstance(self.draws, AlignedDraws):

            def of_guide(
                key: Key, state: VIState, records: Record, clip_norm: Scalar | float | None
            ) -> tuple[Tree, Evidence | None]:
                return noted_gradient(
                    key,
                    self.release,
                    objective,
                    state.params,
                    records,
                    evidence=state.evidence,
                    clip_norm=clip_norm,
                )

            return of_guide
        plain = objective_of(model)

        def record_loss(draws: list[Params], record: Record, key: Key) -> Scalar:
            keys = jax.random.split(jax.random.split(key)[0], self.num_particles)
            return _average_loss(plain, draws, record, keys)

        def of_draws(
            key: Key, state: VIState, records: Record, clip_norm: Scalar | float | None
        ) -> tuple[Tree, Evidence | None]:
            shared_key, release_key = jax.random.split(key)
            noises = objective.shared(shared_key)
            aligned = AlignedObjective(
                lambda params: [self.guide.draw(params, noise) for noise in noises],
                record_loss,
                lambda params: objective.regulariser(params, noises),
            )
            return aligned_gradient(
                release_key,
                self.release,
                aligned,
                state.params,
                records,
                evidence=state.evidence,
                clip_norm=clip_norm,
            )

        return of_draws


def _average_loss(plain: Objective, draws: list[Params], record: Record, keys: Key) -> Scalar:
    # A list and not a mapped axis: then the clip sees each draw's weights as such.
    losses = [
        plain.record_loss(draw, None, record, own) for draw, own in zip(draws, keys, strict=True)
    ]
    return jnp.mean(jnp.stack(losses))


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
        used = noises(noise_key) if isinstance(draws, RecordDraws) else shared
        drawn = [guide.draw(params, noise) for noise in used]
        return _average_loss(plain, drawn, record, jax.random.split(loss_key, num_particles))

    def regulariser(params: Params, shared: list[Any]) -> Scalar:
        mean, std = guide.marginals(params)
        expected = expected_log_prior(
            model.log_prior, mean, std, lambda: [guide.draw(params, noise) for noise in shared]
        )
        return -guide.entropy(params) - expected

    return Objective(init, noises, record_loss, regulariser)
