"""One step of stochastic variational inference on a split program, through the engine.

A step that differentiates a record's loss and a regulariser on their own draws the same latents in
both. Compilers find such repeats in straight code, but in the body of a loop XLA first moves
constants out, a copy for each repeat, and after that takes the repeats for different.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, ParamSpec, Self, TypeVar

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from jax import lax
from jax.extend import core
from numpyro.infer import Trace_ELBO
from numpyro.optim import _NumPyroOptim

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.method import Kernel, Objective, add_regulariser, declare
from tacit.models.programs import SplitProgram
from tacit.privacy.clipping.equations import bind, inlined
from tacit.privacy.cost import composed, repeated
from tacit.privacy.mechanism import GaussianSum
from tacit.samplers import Points
from tacit.typing import Array, Key, Params, Query, Record, Scalar, Tree

__all__ = [
    "PrivateLoss",
    "ProgramSVI",
    "SVIInfo",
    "StepState",
    "num_particles_of",
    "program_objective",
    "released_loss",
    "without_repeats",
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


def num_particles_of(loss: Any) -> int:
    """Returns how many particles an objective averages; raises unless it can be split."""
    # Subclasses of Trace_ELBO compute something else.
    if type(loss) is not Trace_ELBO:
        raise InvalidArgumentError(
            "loss must be numpyro.infer.Trace_ELBO, which is a sum over records and a part"
            f" without them; got {type(loss).__name__}. Use Trace_ELBO(num_particles=...)."
        )
    if loss.multi_sample_guide or not loss.sum_sites:
        raise InvalidArgumentError(
            "loss must be a plain Trace_ELBO; got one with multi_sample_guide or without sum_sites."
            " Use Trace_ELBO(num_particles=...)."
        )
    return int(loss.num_particles)


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_repeats(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Returns a function of the same values in which no operation is made twice on one operand.

    Example:
      >>> import jax.numpy as jnp
      >>> twice = without_repeats(lambda x: jnp.sin(x) + jnp.sin(x))
      >>> str(jax.make_jaxpr(twice)(1.0)).count("sin")
      1
    """

    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        config: Any = jax.config
        if config.jax_disable_jit:  # then nothing is traced, and branches not taken are not run
            return function(*args, **kwargs)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        arguments = [*closed.consts, *jax.tree.leaves((args, kwargs))]
        results = _run(inlined(closed), arguments)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _run(closed: core.ClosedJaxpr, arguments: list[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    inputs = zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True)
    values: dict[core.Var, Any] = dict(inputs)
    first: dict[core.Var, core.Var] = {}  # of each repeated result, where it was made first
    made: dict[Hashable, list[core.Var]] = {}

    def read(operand: core.Var | core.Literal) -> Any:
        if isinstance(operand, core.Literal):
            return operand.val
        return values[first.get(operand, operand)]

    for equation in jaxpr.eqns:
        name = _name_of(equation, first)
        if name is not None and name in made:
            first |= zip(equation.outvars, made[name], strict=True)
            continue
        outs = bind(equation, list(map(read, equation.invars)))
        values |= zip(equation.outvars, outs, strict=True)
        if name is not None:
            made[name] = list(equation.outvars)
    return [read(out) for out in jaxpr.outvars]


def _name_of(equation: core.JaxprEqn, first: dict[core.Var, core.Var]) -> Hashable | None:
    """Returns what tells an equation from all that give something else; None if nothing does."""
    literals = [operand for operand in equation.invars if isinstance(operand, core.Literal)]
    if equation.effects or any(np.ndim(literal.val) for literal in literals):
        return None
    # As text, zeros of both signs differ and NaN equals itself.
    operands = tuple(
        (repr(operand.val), str(operand.aval))
        if isinstance(operand, core.Literal)
        else first.get(operand, operand)
        for operand in equation.invars
    )
    name = (equation.primitive, frozenset(equation.params.items()), operands)
    try:
        hash(name)
    except TypeError:
        return None
    return name


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


@declare(
    name="program_svi",
    summary="a guide of a NumPyro program, by variational inference",
    citations=("jalko2017differentially",),
)
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
