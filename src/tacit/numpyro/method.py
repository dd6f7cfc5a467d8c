"""One step of stochastic variational inference on a split program, through the engine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import DpEvent
from jax import lax
from numpyro.optim import _NumPyroOptim

from tacit.inference.base import Kernel, Objective, add_regulariser
from tacit.inference.repeats import without_repeats
from tacit.models.programs import SplitProgram
from tacit.numpyro.losses import PrivateLoss, released_loss
from tacit.privacy.events import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

__all__ = ["ProgramSVI", "SVIInfo", "StepState", "program_objective"]


class StepState(NamedTuple):
    """What a step carries; all of it may be published.

    Attributes:
      optim_state: parameters and what the optimiser remembers of earlier releases.
      rng_key: of the guide's draws, which are the same for all records; no noise comes from it.
      step: how many steps were made, each of them paid for.
    """

    optim_state: Tree
    rng_key: Key
    step: Array


class SVIInfo(NamedTuple):
    """The loss: a release of its own, or NaN."""

    loss: Scalar


@dataclass(frozen=True, kw_only=True)
class ProgramSVI:
    """Stochastic variational inference as NumPyro does it, with a private gradient.

        params <- optimiser( G / rate - grad shared_term )
        G = sum of clip( -grad record_term_i ) + noise

    The optimiser sees the gradient of the whole negative evidence lower bound, as in
    `numpyro.infer.SVI`, not of its mean.

    Guarantee:
      A step makes one release, and one more where a loss is due, both in ``cost``. The guide's
      draws come from the state's own key, never from records. The optimiser acts after the noise.

    Args:
      release: the engine: sampling, clip and noise.
      optim: an optimiser in NumPyro's shape.
      num_records: how many records there are in all.
      loss: which losses are released; None for none.
      skip_non_finite: leaves parameters as they are where the released gradient is not finite.
        The release was made and is paid for.
      shares_batches: whether gradient and loss of a step are made on one and the same batch, which
        the user has drawn.
      key_impl: the generator of the guide's draws; by default that of the key a run starts with.

    Reference:
      Jälkö et al., "Differentially private variational inference for non-conjugate models" (2017),
      with prior and entropy outside the clip and the estimate divided by the public inclusion
      rate.
    """

    release: GaussianSum
    optim: _NumPyroOptim
    num_records: int
    loss: PrivateLoss | None = None
    skip_non_finite: bool = False
    shares_batches: bool = False
    key_impl: Any = None

    @property
    def public_records(self) -> int:
        """The number of records that may be shown and computed with."""
        return self.release.sampling.public_records

    @property
    def has_losses(self) -> bool:
        """Whether steps return losses that are numbers: paid for, or of a run without privacy."""
        is_due = self.loss is not None and self.loss.every is not None
        return is_due or not self.release.is_private

    def cost(self, num_steps: int, *, start: int = 0) -> DpEvent:
        """One release a step, those of the losses, and at the start those of all evaluations."""
        if self.loss is None:
            return repeated(self.release.cost, num_steps)
        due = self.loss.num_due(num_steps, start)
        if self.shares_batches:
            steps = composed(
                repeated(self.release.cost, num_steps - due),
                repeated(self.loss.joint_cost(self.release), due),
            )
        else:
            steps = composed(
                repeated(self.release.cost, num_steps),
                repeated(self.loss.release_beside(self.release).cost, due),
            )
        if start > 0:
            return steps
        return composed(steps, self.cost_of_evaluations)

    @property
    def cost_of_evaluations(self) -> DpEvent:
        """What all evaluations cost that were asked for."""
        if self.loss is None:
            return dp_accounting.NoOpDpEvent()
        return self.loss.cost_of_evaluations(self.release, is_amplified=not self.shares_batches)

    def scale_noise(self, factor: float) -> Self:
        """Scales the noise of gradients, and with it that of losses."""
        multiplier = self.release.noise_multiplier * factor
        return replace(self, release=replace(self.release, noise_multiplier=multiplier))

    def build(self, model: Any) -> Kernel:
        """Returns the kernel for a `SplitProgram`; it retains nothing but losses."""
        objective = program_objective(model)

        def init(key: Key) -> StepState:
            # The same keys as NumPyro's SVI takes for the same purposes.
            rng_key = jax.random.split(key, 3)[0]
            if self.key_impl is not None:
                rng_key = jax.random.key(jax.random.bits(rng_key), impl=self.key_impl)
            return StepState(self.optim.init(model.init(key)), rng_key, jnp.zeros((), jnp.int32))

        def step(key: Key, state: StepState, records: Record) -> tuple[StepState, SVIInfo]:
            gradient_key, loss_key = jax.random.split(key)
            rng_key, shared = jax.random.split(state.rng_key)
            params = self.optim.get_params(state.optim_state)

            def record_loss(params: Params, record: Record, key: Key) -> Scalar:
                return objective.record_loss(params, shared, record, key)

            def loss_on(key: Key, release: GaussianSum) -> Scalar:
                rest = objective.regulariser(params, shared)
                return released_loss(key, release, partial(record_loss, params), rest, records)

            estimate = self.release.gradient(gradient_key, record_loss, params, records)
            gradient = add_regulariser(estimate, objective, params, shared)
            if self.release.is_private:
                loss = self._due_loss(state.step, partial(loss_on, loss_key))
            else:
                # Nothing is promised, so the loss may be seen: that of the gradient's own batch.
                plain = GaussianSum.non_private(sampling=self.release.sampling)
                loss = loss_on(gradient_key, plain)
            optim_state = self.optim.update(gradient, state.optim_state, value=loss)
            if self.skip_non_finite:
                leaves = jax.tree.leaves(gradient)
                is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
                optim_state = jax.tree.map(
                    lambda new, old: jnp.where(is_finite, new, old), optim_state, state.optim_state
                )
            return StepState(optim_state, rng_key, state.step + 1), SVIInfo(loss)

        # The last state has all there is: earlier parameters are not part of the posterior.
        return Kernel(init, without_repeats(step), lambda state: (), Points())

    def _due_loss(self, step: Array, loss_on: Callable[[GaussianSum], Scalar]) -> Scalar:
        """The loss, released at the steps at which one is due; NaN at others."""
        if self.loss is None or self.loss.every is None:
            return jnp.full((), jnp.nan)
        release = self.loss.release_beside(self.release)
        return lax.cond(
            step % self.loss.every == 0, lambda: loss_on(release), lambda: jnp.full((), jnp.nan)
        )


def program_objective(program: SplitProgram) -> Objective:
    """Returns the negative evidence lower bound, split by what may see a record.

    What is shared by the records of a batch is a key: the guide's draws come from it. A record
    comes in the field ``x`` of a `tacit.Record`, as a tree of the program's record arguments.
    """

    def record_loss(params: Params, shared: Key, record: Record, key: Key) -> Scalar:
        return -program.record_term(params, shared, record.x, key)

    def regulariser(params: Params, shared: Key) -> Scalar:
        return -program.shared_term(params, shared)

    def same(key: Any) -> Any:
        return key

    return Objective(program.init, same, record_loss, regulariser)
