"""One step of stochastic variational inference on a split program, through the engine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, Self

import dp_accounting
import jax
import jax.numpy as jnp
from dp_accounting import DpEvent
from jax import lax
from numpyro.optim import _NumPyroOptim

from tacit import _check
from tacit.inference.aligned import AlignedObjective, aligned_gradient
from tacit.inference.compilation import without_repeats
from tacit.inference.evidence import Evidence, evidence_of, first_evidence, noted, only_norms
from tacit.inference.method import Kernel, Objective, add_regulariser, declare
from tacit.inference.vi import LATE, late_average
from tacit.models.programs.split import SplitProgram
from tacit.privacy.cost import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import fresh_key
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Query, Scalar, Tree

__all__ = [
    "DPSVIState",
    "PrivateLoss",
    "ProgramSVI",
    "SVIInfo",
    "StepState",
    "program_objective",
    "released_loss",
]


@dataclass(frozen=True, kw_only=True)
class PrivateLoss:
    """Asks for private estimates of the loss, which are paid for beside the gradients.

    A loss of the records is one more thing that tells of them, so `tacit.numpyro.DPSVI` returns NaN
    for it unless it is asked for one. The estimate sums the records' own losses, each cut to
    ``[-clip, clip]``, with noise; prior and entropy are added exactly.

    Guarantee:
      Each estimate is one release by the engine with ``noise_ratio`` times the noise multiplier of
      the gradients; its cost is in that of the run. It is made on a batch of its own, which is paid
      for as such; or, where batches are the user's, on that of the gradient, and the two are paid
      for as one release with less noise. The cost of all ``num_evaluations`` is paid with the
      first step, whether they are made or not.

    Args:
      clip: the largest loss that one record contributes; a public number.
      noise_ratio: the noise multiplier of a loss, in units of that of a gradient. A release costs
        about ``1 / noise_ratio**2`` of a gradient's.
      every: at which steps a loss is released: the first and then each ``every``-th. At others it
        is NaN. None: at no step.
      num_evaluations: how often `DPSVI.evaluate` may be called.
    """

    clip: float
    noise_ratio: float = 4.0
    every: int | None = 1
    num_evaluations: int = 0

    def __post_init__(self) -> None:
        _check.positive(clip=self.clip, noise_ratio=self.noise_ratio)
        _check.non_negative_integer(num_evaluations=self.num_evaluations)
        if self.every is not None:
            _check.positive_integer(every=self.every)

    def release_beside(self, gradient: GaussianSum) -> GaussianSum:
        """Returns the engine of the losses for that of the gradients."""
        return replace(
            gradient,
            clip_norm=self.clip,
            noise_multiplier=gradient.noise_multiplier * self.noise_ratio,
        )

    def num_due(self, num_steps: int, start: int) -> int:
        """Returns how many of the steps ``start`` to ``start + num_steps`` release a loss."""
        if self.every is None:
            return 0
        return -(-(start + num_steps) // self.every) - -(-start // self.every)

    def joint_cost(self, gradient: GaussianSum) -> DpEvent:
        """What a gradient and a loss of one and the same batch cost: one Gaussian, less noisy."""
        noise = gradient.noise_multiplier
        beside = noise * self.noise_ratio
        return gradient.cost_of((noise**-2 + beside**-2) ** -0.5 if noise > 0 else 0.0)

    def cost_of_evaluations(self, gradient: GaussianSum, *, is_amplified: bool) -> DpEvent:
        """What all evaluations cost.

        Where they see batches of the user's, which steps may have seen too, they are not amplified:
        given all that was released before, an evaluation tells at most what a Gaussian does.
        """
        release = self.release_beside(gradient)
        cost = release.cost
        if not is_amplified and release.is_private:
            cost = dp_accounting.GaussianDpEvent(release.noise_multiplier)
        return repeated(cost, self.num_evaluations)


def released_loss(key: Key, release: GaussianSum, query: Query, rest: Scalar, data: Tree) -> Scalar:
    """Returns one release's estimate of the loss over all records.

    Args:
      key: fresh for every call.
      release: the engine of losses.
      query: the loss of one record.
      rest: the loss that no record is in.
      data: the records.
    """
    return lax.convert_element_type(release(key, query, data) + rest, jnp.float32)


class StepState(NamedTuple):
    """What a step carries; all of it may be published.

    Attributes:
      optim_state: parameters and what the optimiser remembers of earlier releases.
      rng_key: of the guide's draws, which are the same for all records; no noise comes from it.
      step: how many steps were made, each of them paid for.
      average: of the unconstrained parameters over the steps, in which late ones weigh more.
      evidence: what was noted of the releases, so that their noise can be counted and the clip be
        judged afterwards; None without privacy.
    """

    optim_state: Tree
    rng_key: Key
    step: Array
    average: Params
    evidence: Evidence | None

    @property
    def decisive(self) -> tuple[Tree, Key, Array]:
        """All that a step's release depends on; the rest only remembers earlier ones."""
        return self.optim_state, self.rng_key, self.step


class DPSVIState(NamedTuple):
    """The state of a run: `numpyro.infer.svi.SVIState` and what privacy needs beside it.

    A state is there to be used once. A statement counts the steps that led to *one* state: two
    steps from the same state are two releases, and it knows of one of them. Publish what comes of
    one, or add up the costs of both, as a ledger does. Outside compiled code `DPSVI` warns of it;
    inside, nothing can be seen. Steps from one state never share their noise, unless what they ask
    for is the same in every bit of state, records and mask: outside compiled code each draws its
    own, inside it follows from all of these and the secret key. Printed or pickled, a state is
    without its secret key; one that is read back has a new one.

    Attributes:
      optim_state: of the optimiser; may be published.
      mutable_state: always None; programs with mutable state are refused.
      rng_key: of the guide's draws; may be published.
      step: how many steps were made; may be published.
      fingerprint: tells states of one configuration from those of others; may be published.
      declared: how many steps were declared before the first, 0 if none were; may be published.
      average: of the unconstrained parameters over the steps; may be published.
      evidence: what was noted of the releases; may be published.
      private_key: SECRET, of batches and noise inside compiled code. Each step replaces it, so that
        it tells nothing of the noise of earlier ones.
    """

    optim_state: Tree
    mutable_state: None
    rng_key: Key
    step: Array
    fingerprint: Array
    declared: Array
    average: Params
    evidence: Evidence | None
    private_key: Key

    @property
    def public(self) -> StepState:
        """What a step carries; all of it may be published."""
        return StepState(self.optim_state, self.rng_key, self.step, self.average, self.evidence)

    def __repr__(self) -> str:
        shown = [name for name in self._fields if name not in ("evidence", "private_key")]
        fields = ", ".join(f"{name}={getattr(self, name)!r}" for name in shown)
        return f"DPSVIState({fields}, private_key=<secret>)"

    def __reduce__(self) -> tuple[Any, ...]:
        return _with_fresh_key, tuple(self)[:-1]

    def moved_to(self, public: StepState) -> "DPSVIState":
        """Returns the state after some steps."""
        return self._replace(**public._asdict())


def _with_fresh_key(*public: Any) -> DPSVIState:
    return DPSVIState._make((*public, fresh_key()))


class SVIInfo(NamedTuple):
    """The loss: a release of its own, or NaN."""

    loss: Scalar


@declare(
    name="program_svi",
    summary="a guide of a NumPyro program, by variational inference",
    citations=("jalko2017differentially",),
)
@dataclass(frozen=True, kw_only=True)
class ProgramSVI:
    """Stochastic variational inference as NumPyro does it, with a private gradient.

        params <- optimiser( (dz/dparams)^T G / rate - grad shared_term )
        G = sum of clip( - d/dz record_term_i ) + noise

    Here ``z`` is the step's draw of the shared latents, unconstrained: it is all that records see
    of the parameters. Where they see more (the guide is a function of the record, or the model has
    parameters of its own), ``z`` is the parameters. The program's `Alignment` says which.

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

    @property
    def has_evaluations(self) -> bool:
        """Whether evaluations were asked for, or nothing is promised."""
        is_paid = self.loss is not None and self.loss.num_evaluations > 0
        return is_paid or not self.release.is_private

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

    def build(self, model: SplitProgram) -> Kernel:
        """Returns the kernel for a program; it retains nothing but losses."""
        objective = program_objective(model)
        is_aligned = model.latents is not None

        def init(key: Key) -> StepState:
            # The same keys as NumPyro's SVI takes for the same purposes.
            rng_key = jax.random.split(key, 3)[0]
            if self.key_impl is not None:
                rng_key = jax.random.key(jax.random.bits(rng_key), impl=self.key_impl)
            params = model.init(key)
            drawn = jax.eval_shape(model.draws, params, rng_key)[0] if is_aligned else params
            evidence = first_evidence(drawn, self.release)
            evidence = evidence if is_aligned else only_norms(evidence)
            start = jnp.zeros((), jnp.int32)
            return StepState(self.optim.init(params), rng_key, start, params, evidence)

        def step(key: Key, state: StepState, records: Tree) -> tuple[StepState, SVIInfo]:
            gradient_key, loss_key = jax.random.split(key)
            rng_key, shared = jax.random.split(state.rng_key)
            params = self.optim.get_params(state.optim_state)

            def record_loss(params: Params, record: Sequence[Array], key: Key) -> Scalar:
                return objective.record_loss(params, shared, record, key)

            def loss_on(key: Key, release: GaussianSum) -> Scalar:
                rest = objective.regulariser(params, shared)
                return released_loss(key, release, partial(record_loss, params), rest, records)

            if is_aligned:
                aligned = _aligned(model, objective, shared)
                gradient, evidence = aligned_gradient(
                    gradient_key, self.release, aligned, params, records, evidence=state.evidence
                )
            else:
                found = self.release.counted_gradient(gradient_key, record_loss, params, records)
                gradient = add_regulariser(found.estimate, objective, params, shared)
                evidence = noted(state.evidence, params, gradient, 0.0, found)
            if self.release.is_private:
                loss = self._due_loss(state.step, partial(loss_on, loss_key))
            else:
                # Nothing is promised, so the loss may be seen: that of the gradient's own batch.
                plain = GaussianSum.non_private(sampling=self.release.sampling)
                loss = loss_on(gradient_key, plain)
            optim_state = self.optim.update(gradient, state.optim_state, value=loss)
            latest = self.optim.get_params(optim_state)
            average = late_average(state.average, latest, state.step, power=LATE)
            after = StepState(optim_state, rng_key, state.step + 1, average, evidence)
            if self.skip_non_finite:
                skipped = state._replace(rng_key=rng_key, step=after.step)
                after = _if_finite(gradient, after, skipped)
            return after, SVIInfo(loss)

        # The last state has all there is: earlier parameters are not part of the posterior.
        return Kernel(
            init,
            without_repeats(step),
            lambda state: (),
            Points(),
            evidence=evidence_of,
            engine=self.release,
        )

    def _due_loss(self, step: Array, loss_on: Callable[[GaussianSum], Scalar]) -> Scalar:
        """The loss, released at the steps at which one is due; NaN at others."""
        if self.loss is None or self.loss.every is None:
            return jnp.full((), jnp.nan)
        release = self.loss.release_beside(self.release)
        return lax.cond(
            step % self.loss.every == 0, lambda: loss_on(release), lambda: jnp.full((), jnp.nan)
        )


def _if_finite(gradient: Tree, after: StepState, otherwise: StepState) -> StepState:
    leaves = jax.tree.leaves(gradient)
    is_finite = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))
    chosen: StepState = jax.tree.map(
        lambda new, old: jnp.where(is_finite, new, old), after, otherwise
    )
    return chosen


def _aligned(program: SplitProgram, objective: Objective, shared: Key) -> AlignedObjective:
    def record_loss(draws: list[Params], record: Sequence[Array], key: Key) -> Scalar:
        return -program.seen_term(draws, shared, record, key)

    return AlignedObjective(
        draws=lambda params: program.draws(params, shared),
        record_loss=record_loss,
        regulariser=lambda params: objective.regulariser(params, shared),
    )


def program_objective(program: SplitProgram) -> Objective:
    """Returns the negative evidence lower bound, split by what may see a record.

    What is shared by the records of a batch is a key: the guide's draws come from it. A record is
    one row of each array among the program's arguments.
    """

    def record_loss(params: Params, shared: Key, record: Sequence[Array], key: Key) -> Scalar:
        return -program.record_term(params, shared, record, key)

    def regulariser(params: Params, shared: Key) -> Scalar:
        return -program.shared_term(params, shared)

    return Objective(program.init, lambda key: key, record_loss, regulariser)
