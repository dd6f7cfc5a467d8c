"""Hamiltonian Monte Carlo with private gradients and a private, penalised acceptance."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import DpEvent
from jax import lax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.inference.evidence import Evidence, evidence_of, first_evidence, noted, only_norms
from tacit.inference.method import (
    Kernel,
    Objective,
    add_regulariser,
    declare,
    objective_of,
    retained_params,
)
from tacit.models import Model
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.slack import Counted
from tacit.privacy.cost import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import normal_like, seeded_key
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["HMC"]

_HUGE = 1e15
"""Stands for losses that are not finite; its square still is, in float32."""


class HMCState(NamedTuple):
    """Where a chain is.

    Attributes:
      params: the current position.
      gradient: the released gradient there, for the next proposal; None unless it is reused.
      step: how many proposals were made.
      record_key: the raw key that fixes each record's dropout mask for the whole chain. It decides
        masks only, never a batch or noise, and the clip bounds a record whatever its mask is: so
        it may be stored and published, as keys that noise comes from may not.
      evidence: how many records had their part of the ratio clipped; None without privacy.
    """

    params: Params
    gradient: Tree
    step: Array
    record_key: Array
    evidence: Evidence | None


class HMCInfo(NamedTuple):
    """The decision of a step, and what it was made from; functions of releases.

    Attributes:
      acceptance: one where the proposal was accepted, else zero; its mean is the acceptance rate.
      acceptance_probability: with which it was decided.
      step_size: of this proposal, after the jitter.
    """

    acceptance: Scalar
    acceptance_probability: Scalar
    step_size: Scalar


@declare(
    name="hmc",
    summary="draws, by Hamiltonian Monte Carlo with a private acceptance",
    citations=("raisa2021differentially",),
)
@dataclass(frozen=True, kw_only=True)
class HMC:
    """Leapfrog trajectories on ``U(w) = sum of losses - log p(w)`` with a Metropolis correction.

    Momentum is drawn from N(0, M). The gradients along the trajectory are releases, and so is the
    ratio of likelihoods between its ends, asked per unit of distance so that one clip b serves:

        D = |w' - w| * release of sum_i clip_b( (l_i(w) - l_i(w')) / |w' - w| )
        accept with min(1, exp( D + log p(w')/p(w) + K(m) - K(m') - v/2 )),  v = (z b |w' - w|)^2

    The noise of D makes acceptance too likely on average, since the exponential is convex; HALF its
    variance undoes that exactly. Noise in the gradients does no harm beyond lower acceptance: each
    kick still depends on the position only, so trajectories preserve volume, and reversing
    time and the order of the noise reverses them. For the same reason the gradient at the
    current position may be used again in the next proposal (``reuse_gradient``).

    Guarantee:
      A step makes ``num_leapfrog + 1`` gradient releases and one release of the ratio; with
      ``reuse_gradient`` one gradient less, except in the first step; without ``gradient`` the
      ratio only. That is what `cost` states, and with full batches it is ``(L + 1) / z_g**2 + 1 /
      z_r**2`` in squares of GDP's mu. Momentum and the uniform number of the acceptance know
      nothing of the records, so `State` and `Info` are functions of releases. A rejected step
      costs as much as any other.

    What is sampled: the posterior, as long as no ratio is really clipped; the step size and
    clipped or Poisson gradients cost acceptance only. Once ratios are really clipped, no target
    is known: the chain's law then depends on how far it proposes to go. Far from the posterior
    trajectories are long, and the penalty grows with the square of their length, so that a
    private chain may never leave a distant start: watch the acceptance. A random likelihood
    (dropout, a random start of an attack) is held fixed: each record has one key for the whole
    chain, so every chain samples the posterior of its own masks. In float32 the difference of
    two large log priors is exact to about 1e-7 of their size.

    Args:
      gradient: the engine of the gradients: full batches (see its ``chunk_size``) or sampled ones.
        With None trajectories are those of a standard normal, at no privacy cost. That is for
        coordinates in which the posterior nearly is one, as `tacit.inference.fit_hmc` makes them;
        elsewhere no proposal is accepted.
      ratio: the engine of the ratio, on full batches. Its ``clip_norm`` bounds how fast the loss of
        one record may change per unit of distance in the parameters.
      step_size: of the leapfrog.
      num_leapfrog: moves in a trajectory, L.
      mass: the diagonal of M, public: one number, or a tree that begins like the parameters, with
        numbers or arrays.
      jitter: each proposal's step size is multiplied by a number from 1 - jitter to 1 + jitter.
      reuse_gradient: whether the next proposal starts from the gradient that ended the last.

    Example:
      >>> engine = GaussianSum(
      ...     sampling=FullBatch(num_records=100), clip_norm=1.0, noise_multiplier=4.0)
      >>> method = HMC(gradient=engine, ratio=engine, step_size=0.01, num_leapfrog=10)
      >>> method.cost(5).events[0].count, method.cost(5).events[1].count
      (55, 5)
      >>> replace(method, reuse_gradient=True).cost(5).events[0].count
      51

    Reference:
      Neal, "MCMC using Hamiltonian dynamics" (2011); Ceperley, Dewing, "The penalty method for
      random walks with uncertain energies" (1999); Räisä, Koskela, Honkela, "Differentially
      private Hamiltonian Monte Carlo" (2021), here with a fixed clip per unit of distance.
    """

    gradient: GaussianSum | None
    ratio: GaussianSum
    step_size: float
    num_leapfrog: int
    mass: Any = 1.0
    jitter: float = 0.0
    reuse_gradient: bool = False

    def __post_init__(self) -> None:
        _check.positive(step_size=self.step_size)
        _check.positive_integer(num_leapfrog=self.num_leapfrog)
        _check.fraction(jitter=self.jitter, zero=True, one=False)
        if not jax.tree.leaves(self.mass) or not all(
            np.isfinite(leaf).all() and np.all(np.asarray(leaf) > 0)
            for leaf in jax.tree.leaves(self.mass)
        ):
            raise InvalidArgumentError(
                f"mass must have positive, finite values; got {self.mass!r}. Use 1.0 for none."
            )
        if not isinstance(self.ratio.sampling, FullBatch):
            raise InvalidArgumentError(
                f"ratio.sampling must be FullBatch; got {self.ratio.sampling!r}. No correction is"
                " known for the noise of a sampled ratio: give FullBatch and a chunk_size."
            )
        if not isinstance(self.ratio.clipping, Flat):
            raise InvalidArgumentError(
                f"ratio.clipping must be Flat(); got {self.ratio.clipping!r}. The ratio is one"
                " number, and any other rule changes those that are within the clip."
            )
        if self.gradient is None:
            return
        if self.gradient.sampling.num_records != self.ratio.sampling.num_records:
            raise InvalidArgumentError(
                "gradient and ratio must have the same num_records; got"
                f" {self.gradient.sampling.num_records} and {self.ratio.sampling.num_records}."
            )
        if self.gradient.is_private != self.ratio.is_private:
            raise InvalidArgumentError(
                "gradient and ratio must both have noise, or neither; got multipliers"
                f" {self.gradient.noise_multiplier} and {self.ratio.noise_multiplier}. One release"
                " without noise undoes the other's privacy."
            )

    @classmethod
    def non_private(
        cls,
        *,
        num_records: int,
        step_size: float,
        num_leapfrog: int,
        mass: Any = 1.0,
        jitter: float = 0.0,
        chunk_size: int | None = None,
    ) -> "HMC":
        """Returns plain HMC: exact gradients and ratios, epsilon infinite."""
        exact = GaussianSum.non_private(
            sampling=FullBatch(num_records=num_records), chunk_size=chunk_size
        )
        return cls(
            gradient=exact,
            ratio=exact,
            step_size=step_size,
            num_leapfrog=num_leapfrog,
            mass=mass,
            jitter=jitter,
            reuse_gradient=True,
        )

    @property
    def num_records(self) -> int:
        """How many records the method was configured for."""
        return self.ratio.sampling.num_records

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.ratio.sampling.public_records

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """The gradients of the trajectories, if they are released, and one ratio a step."""
        ratios = repeated(self.ratio.cost, num_steps)
        if self.gradient is None:
            return ratios
        num_gradients = num_steps * (self.num_leapfrog + 1)
        if self.reuse_gradient:
            num_gradients -= num_steps if start else max(num_steps - 1, 0)
        return composed(repeated(self.gradient.cost, num_gradients), ratios)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise of both engines; nothing else changes."""

        def scaled(engine: GaussianSum) -> GaussianSum:
            return replace(engine, noise_multiplier=engine.noise_multiplier * factor)

        gradient = None if self.gradient is None else scaled(self.gradient)
        return replace(self, gradient=gradient, ratio=scaled(self.ratio))

    def build(self, model: Model) -> Kernel:
        """Returns the kernel for a model."""
        objective = objective_of(model)
        mass = _mass_like(jax.eval_shape(objective.init, seeded_key(0)), self.mass)

        def init(key: Key) -> HMCState:
            params_key, record_key = jax.random.split(key)
            params = objective.init(params_key)
            unknown = jax.tree.map(jnp.zeros_like, _tree.at_least_float32(params))
            return HMCState(
                params,
                unknown if self.reuse_gradient else None,
                jnp.zeros((), jnp.int32),
                jax.random.key_data(record_key),
                only_norms(first_evidence(params, self.ratio)),
            )

        def step(key: Key, state: HMCState, records: Record) -> tuple[HMCState, HMCInfo]:
            *proposal_keys, ratio_key, accept_key = jax.random.split(key, 6)
            record_key = jax.random.wrap_key_data(state.record_key, impl=jax.random.key_impl(key))

            def gradient(key: Key, params: Params) -> Tree:
                if self.gradient is None:
                    return _tree.at_least_float32(params)
                estimate = self.gradient.gradient(
                    key, _loss(objective), params, records, record_key=record_key
                )
                return add_regulariser(estimate, objective, params, None)

            proposal = self._propose(proposal_keys, state, gradient, mass)
            ends = state.params, proposal.params
            log_ratio, variance, found = self._log_ratio(
                ratio_key, objective, ends, records, record_key=record_key
            )
            log_probability = _log_acceptance(log_ratio + proposal.kinetic_drop, variance)
            # The logarithm of a uniform number.
            accepted = -jax.random.exponential(accept_key) < log_probability

            def chosen(new: Tree, old: Tree) -> Tree:
                return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, old)

            next_state = HMCState(
                chosen(proposal.params, state.params),
                chosen(proposal.last, proposal.first) if self.reuse_gradient else None,
                state.step + 1,
                state.record_key,
                noted(state.evidence, *ends, variance, found),
            )
            return next_state, HMCInfo(
                accepted.astype(jnp.float32), jnp.exp(log_probability), proposal.step_size
            )

        engine = self.ratio
        return Kernel(init, step, retained_params, Points(), evidence=evidence_of, engine=engine)

    def _propose(
        self,
        keys: Sequence[Key],
        state: HMCState,
        gradient: Callable[[Key, Params], Tree],
        mass: Tree,
    ) -> "_Proposal":
        """Follows a trajectory from a fresh momentum; ``gradient`` makes the releases."""
        jitter_key, momentum_key, first_key, path_key = keys
        step_size = self.step_size * (1 + self.jitter * jax.random.uniform(jitter_key, minval=-1.0))
        normal = normal_like(momentum_key, mass)
        momentum = jax.tree.map(lambda m, xi: jnp.sqrt(m) * xi, mass, normal)
        first = (
            lax.cond(state.step == 0, gradient, lambda *_: state.gradient, first_key, state.params)
            if self.reuse_gradient
            else gradient(first_key, state.params)
        )
        params, last_momentum, last = _leapfrog(
            gradient,
            jax.random.split(path_key, self.num_leapfrog),
            (state.params, momentum, first),
            mass=mass,
            step_size=step_size,
        )
        drop = _kinetic_drop(momentum, last_momentum, mass)
        return _Proposal(params, first, last, drop, step_size)

    def _log_ratio(
        self,
        key: Key,
        objective: Objective,
        ends: tuple[Params, Params],
        records: Record,
        *,
        record_key: Key,
    ) -> tuple[Scalar, Scalar, Counted]:
        """Returns a noisy log posterior ratio, its variance, and the release that it is made of."""
        old, new = ends
        distance = optax.tree.norm(_tree.at_least_float32(jax.tree.map(jnp.subtract, new, old)))
        unit = jnp.where(distance > 0, distance, 1.0)
        loss = _loss(objective)

        def rise_per_distance(record: Record, key: Key) -> Scalar:
            # A new position without a finite loss is as bad as the clip allows, and not ignored.
            before, after = (
                jnp.nan_to_num(loss(params, record, key), nan=_HUGE, posinf=_HUGE, neginf=_HUGE)
                for params in ends
            )
            return jnp.clip((before - after) / unit, -_HUGE, _HUGE)

        found = self.ratio.counted(key, rise_per_distance, records, record_key=record_key)
        log_prior = objective.regulariser(old, None) - objective.regulariser(new, None)
        variance = (self.ratio.noise_std * distance) ** 2
        return distance * found.estimate + log_prior, variance, found


class _Proposal(NamedTuple):
    """The end of a trajectory, the gradients at both ends, and the drop of kinetic energy."""

    params: Params
    first: Tree
    last: Tree
    kinetic_drop: Scalar
    step_size: Scalar


def _loss(objective: Objective) -> Callable[[Params, Record, Key], Scalar]:
    return lambda params, record, key: objective.record_loss(params, None, record, key)


def _mass_like(params: Params, mass: Any) -> Tree:
    """Returns a mass for every parameter, in float32."""
    try:
        return jax.tree.map(
            lambda leaf, own: jnp.broadcast_to(jnp.asarray(own, jnp.float32), leaf.shape),
            params,
            jax.tree.broadcast(mass, params),
        )
    except ValueError as error:
        raise InvalidArgumentError(
            f"mass must be one number, or a tree that begins like the parameters: {error}"
        ) from error


def _leapfrog(
    gradient: Callable[[Key, Params], Tree],
    keys: Key,
    start: tuple[Params, Tree, Tree],
    *,
    mass: Tree,
    step_size: Scalar,
) -> tuple[Params, Tree, Tree]:
    """Returns position, momentum and gradient after one move for each key."""

    def move(carry: tuple[Params, Tree, Tree], key: Key) -> tuple[tuple[Params, Tree, Tree], None]:
        params, momentum, slope = carry
        momentum = jax.tree.map(lambda p, g: p - 0.5 * step_size * g, momentum, slope)
        params = jax.tree.map(
            lambda w, p, m: (w + step_size * p / m).astype(w.dtype), params, momentum, mass
        )
        slope = gradient(key, params)
        momentum = jax.tree.map(lambda p, g: p - 0.5 * step_size * g, momentum, slope)
        return (params, momentum, slope), None

    return lax.scan(move, start, keys)[0]


def _kinetic_drop(before: Tree, after: Tree, mass: Tree) -> Scalar:
    """Returns K(before) - K(after), without the cancellation of two large sums."""
    terms = jax.tree.map(lambda a, b, m: jnp.sum(0.5 * (a - b) * (a + b) / m), before, after, mass)
    return jax.tree.reduce(jnp.add, terms)


def _log_acceptance(log_ratio: Scalar, variance: Scalar) -> Scalar:
    """Returns the log probability of acceptance; where that is not a number, of none."""
    penalised = log_ratio - 0.5 * variance
    return jnp.where(jnp.isnan(penalised), -jnp.inf, jnp.minimum(penalised, 0.0))
