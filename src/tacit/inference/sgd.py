"""Stochastic gradient descent on the log posterior, and averages of what a method releases."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import optax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import Evidence, evidence_of, first_evidence
from tacit.inference.method import (
    Around,
    Info,
    Kernel,
    Method,
    OneRelease,
    State,
    TableSettings,
    declare,
    noted_gradient,
    objective_of,
    retained_params,
)
from tacit.inference.schedules import Constant, Schedule, scheduled_clip_norm
from tacit.models import Model
from tacit.privacy.mechanism import GaussianSum
from tacit.samplers import DiagonalGaussian, LowRankGaussian, Points
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["SGD", "SWAG", "IterateAverage", "descent"]


class SGDState(NamedTuple):
    """Parameters, what the optimiser remembers of earlier releases, and what was noted of them."""

    params: Params
    optimizer: Tree
    step: Array
    evidence: Evidence | None


class SGDInfo(NamedTuple):
    """Nothing: a training loss would be another release."""


@declare(
    name="sgd",
    summary="a point estimate, by DP-SGD with momentum",
    citations=("abadi2016deep",),
    relative_rate=1 / 15,
)
@dataclass(frozen=True, kw_only=True)
class SGD(OneRelease):
    """Any optax optimiser on the private gradient of the mean negative log posterior.

        w <- w - lr * [ G / (rate * n) - grad log p(w) / n ]

    Guarantee:
      One release a step, nothing else. The optimiser acts after the noise, so momentum and
      adaptive scaling are free.

    Args:
      release: the engine: sampling, clip and noise.
      optimizer: an optax transformation of that mean gradient.
      clip_schedule: factor of the clip norm at each step. The noise follows the clip norm, so that
        every step costs the same.

    Reference:
      Abadi et al., "Deep learning with differential privacy" (2016), with the estimate divided
      by the public inclusion rate.
    """

    optimizer: optax.GradientTransformation
    clip_schedule: Schedule = field(default_factory=Constant)

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns descent with momentum."""
        optimizer = optax.sgd(settings.learning_rate, momentum=0.9)
        return cls(release=settings.release, optimizer=optimizer)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        init, step = descent(model, self.release, self.optimizer, self.clip_schedule)
        return Kernel(
            init, step, retained_params, Points(), evidence=evidence_of, engine=self.release
        )


def descent(
    model: Model,
    release: GaussianSum,
    optimizer: optax.GradientTransformation,
    clip_schedule: Schedule,
) -> tuple[Callable[[Key], SGDState], Callable[[Key, SGDState, Record], tuple[SGDState, SGDInfo]]]:
    """Returns ``init`` and ``step`` of an optimiser on the private gradient of a model's potential.

    The optimiser sees the gradient of the potential divided by the public number of records.
    """
    objective = objective_of(model)
    # Accepts transformations that want no extra arguments and those that do alike.
    optimizer = optax.with_extra_args_support(optimizer)

    def init(key: Key) -> SGDState:
        params = objective.init(key)
        memory = optimizer.init(_tree.at_least_float32(params))
        evidence = first_evidence(params, release, model)
        return SGDState(params, memory, jnp.zeros((), jnp.int32), evidence)

    def step(key: Key, state: SGDState, records: Record) -> tuple[SGDState, SGDInfo]:
        clip_norm = scheduled_clip_norm(release, clip_schedule, state.step)
        gradient, evidence = noted_gradient(
            key,
            release,
            objective,
            state.params,
            records,
            evidence=state.evidence,
            clip_norm=clip_norm,
        )
        mean = jax.tree.map(lambda g: g / release.sampling.public_records, gradient)
        params = _tree.at_least_float32(state.params)
        updates, memory = optimizer.update(mean, state.optimizer, params)
        moved = optax.apply_updates(state.params, updates)
        return SGDState(moved, memory, state.step + 1, evidence), SGDInfo()

    return init, step


class AverageState(NamedTuple):
    """The base's state, and the mean of the iterates taken so far; before the first, the latest."""

    base: State
    step: Array
    num_taken: Array
    mean: Params


class SWAGState(NamedTuple):
    """The average, the variance of what was averaged, and the latest deviations from it."""

    average: AverageState
    variance: Params
    deviations: Params


class AverageInfo(NamedTuple):
    """What the base reports, and how many iterates are in the average."""

    base: Info
    num_taken: Scalar


@declare(
    name="iterate_average",
    summary="the mean of the iterates of another method",
    citations=("polyak1992acceleration",),
)
@dataclass(frozen=True, kw_only=True)
class IterateAverage(Around):
    """Retains the mean of a method's iterates instead of its last one.

    Noise that a private optimiser adds step by step averages out.

    Guarantee:
      Post-processing: the base's iterates are released whether averaged or not, so the cost is
      the base's.

    Args:
      base: any method that retains points.
      start: how many steps are made before the first iterate enters. A run that ends sooner
        retains its last iterate; `Info` says that none was taken.
      decay: None weighs all iterates alike; a number makes a moving average that keeps this share
        of itself at every step, once it has seen so many that a plain mean would keep more.

    Reference:
      Polyak, Juditsky, "Acceleration of stochastic approximation by averaging" (1992).
    """

    start: int
    decay: float | None = None

    def __post_init__(self) -> None:
        _check.non_negative_integer(start=self.start)
        if self.decay is not None:
            _check.fraction(decay=self.decay, zero=True, one=False)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        kernel = _of_points(self.base, model)

        def init(key: Key) -> AverageState:
            return _begin(kernel, key)

        def step(key: Key, state: AverageState, records: Record) -> tuple[State, AverageInfo]:
            return _advance(kernel, key, state, records, start=self.start, decay=self.decay)[:2]

        def retain(state: AverageState) -> Tree:
            return _in_the_type_of(kernel.retain(state.base), state.mean)

        return kernel._replace(
            init=init, step=step, retain=retain, evidence=_evidence_of_base(kernel)
        )


@declare(
    name="swag",
    summary="a Gaussian, fitted to the iterates of SGD",
    citations=("maddox2019simple",),
    relative_rate=1 / 15,
)
@dataclass(frozen=True, kw_only=True)
class SWAG(Around):
    """Retains a Gaussian fitted to a method's iterates: their mean, spread and main directions.

        covariance = diag(variance) / 2 + sum over the last K deviations of d d^T / (2 (K - 1))

    The spread is that of the iterates, privacy noise included: it is the posterior's where the base
    samples it, and else as wide as step size and noise make it.

    Guarantee:
      Post-processing: the base's iterates are released whether used or not, so the cost is the
      base's.

    Args:
      base: any method that retains points.
      start: how many steps are made before the first iterate enters. A run that ends sooner
        retains its last iterate with no spread; `Info` says that none was taken.
      every: every how many steps from then on one more enters.
      rank: how many deviations are kept; 0 keeps none and gives the diagonal its full weight.

    Reference:
      Maddox et al., "A simple baseline for Bayesian uncertainty in deep learning" (2019),
      algorithm 1.
    """

    start: int
    every: int = 1
    rank: int = 20

    def __post_init__(self) -> None:
        _check.non_negative_integer(start=self.start, rank=self.rank)
        _check.positive_integer(every=self.every)
        if self.rank == 1:
            raise InvalidArgumentError(
                "rank must be 0 or at least 2; got 1. One deviation has no covariance."
            )

    @classmethod
    def for_table(cls, settings: TableSettings) -> Self:
        """Returns the Gaussian of the second half of a descent."""
        start = settings.num_steps // 2
        rank = min(10, settings.num_steps - start)
        return cls(base=SGD.for_table(settings), start=start, rank=rank)

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        kernel = _of_points(self.base, model)

        def init(key: Key) -> SWAGState:
            average = _begin(kernel, key)
            zeros = jax.tree.map(jnp.zeros_like, average.mean)
            ring = jax.tree.map(lambda x: jnp.zeros((self.rank, *x.shape), x.dtype), zeros)
            return SWAGState(average, zeros, ring)

        def step(key: Key, state: SWAGState, records: Record) -> tuple[SWAGState, AverageInfo]:
            before = state.average.mean
            average, info, share = _advance(
                kernel, key, state.average, records, start=self.start, every=self.every
            )
            params = _tree.at_least_float32(kernel.retain(average.base))
            # Chan's update, which never subtracts two large squares.
            variance = jax.tree.map(
                lambda v, m, w: (1 - share) * (v + share * (w - m) ** 2),
                state.variance,
                before,
                params,
            )
            if not self.rank:
                return SWAGState(average, variance, state.deviations), info
            is_taken = average.num_taken > state.average.num_taken
            slot = state.average.num_taken % self.rank
            deviations = jax.tree.map(
                lambda ring, m, w: ring.at[slot].set(jnp.where(is_taken, w - m, ring[slot])),
                state.deviations,
                average.mean,
                params,
            )
            return SWAGState(average, variance, deviations), info

        def retain(state: SWAGState) -> Tree:
            like = kernel.retain(state.average.base)
            share = 0.5 if self.rank else 1.0
            std = jax.tree.map(lambda v: jnp.sqrt(share * v), state.variance)
            kept = {"mean": state.average.mean, "std": std}
            if self.rank:
                columns = jnp.minimum(state.average.num_taken, self.rank)
                scale = 1 / jnp.sqrt(2.0 * jnp.maximum(columns - 1, 1))
                kept["factors"] = jax.tree.map(lambda d: scale * d, state.deviations)
            return {name: _in_the_type_of(like, tree) for name, tree in kept.items()}

        sampler = LowRankGaussian(rank=self.rank) if self.rank else DiagonalGaussian()
        evidence = _evidence_of_base(kernel, lambda state: state.average.base)
        return kernel._replace(
            init=init, step=step, retain=retain, sampler=sampler, evidence=evidence
        )


def _evidence_of_base(
    kernel: Kernel, base_of: Callable[[State], State] = lambda state: state.base
) -> Callable[[State], Evidence | None] | None:
    evidence = kernel.evidence
    return None if evidence is None else lambda state: evidence(base_of(state))


def _of_points(base: Method, model: Model) -> Kernel:
    kernel = base.build(model)
    if not isinstance(kernel.sampler, Points) or kernel.num_members is not None:
        raise InvalidArgumentError(
            f"base must retain points to be averaged; {type(base).__name__} retains"
            f" {type(kernel.sampler).__name__}. Average SGD, SGLD or another method of iterates."
        )
    return kernel


def _begin(kernel: Kernel, key: Key) -> AverageState:
    base = kernel.init(key)
    zero = jnp.zeros((), jnp.int32)
    return AverageState(base, zero, zero, _tree.at_least_float32(kernel.retain(base)))


def _advance(
    kernel: Kernel,
    key: Key,
    state: AverageState,
    records: Record,
    *,
    start: int,
    every: int = 1,
    decay: float | None = None,
) -> tuple[AverageState, AverageInfo, Scalar]:
    """Makes a step of the base; also returns the weight of its iterate in the new average."""
    base, info = kernel.step(key, state.base, records)
    # The iterate after step t, counted from one, is taken at start + 1, start + 1 + every, ...
    is_taken = (state.step >= start) & ((state.step - start) % every == 0)
    num_taken = state.num_taken + is_taken
    share = 1 / jnp.maximum(num_taken, 1)
    if decay is not None:
        share = jnp.maximum(share, 1 - decay)
    # Until one is taken, and for the first, the average is the latest iterate.
    share = jnp.where(is_taken | (num_taken == 0), share, 0.0)
    mean = jax.tree.map(
        lambda m, w: (1 - share) * m + share * w,
        state.mean,
        _tree.at_least_float32(kernel.retain(base)),
    )
    return (
        AverageState(base, state.step + 1, num_taken, mean),
        AverageInfo(info, num_taken.astype(jnp.float32)),
        share,
    )


def _in_the_type_of(like: Params, tree: Tree) -> Tree:
    return jax.tree.map(lambda x, leaf: leaf.astype(x.dtype), like, tree)
