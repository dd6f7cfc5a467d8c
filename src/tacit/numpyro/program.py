"""A prepared program: all that the first call fixes for good, and what later calls must keep."""

import functools
import secrets
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from numpy.typing import NDArray
from numpyro.optim import _NumPyroOptim

from tacit import _tree
from tacit.compiling import compiled_once
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.inference.compilation import Compiled, compiled_kernel
from tacit.inference.method import Kernel
from tacit.models.programs.arguments import Arguments
from tacit.models.programs.split import SplitProgram, split_program
from tacit.numpyro.method import (
    DPSVIState,
    PrivateLoss,
    ProgramSVI,
    StepState,
    program_objective,
    released_loss,
)
from tacit.numpyro.settings import PrivacySettings, Resolved, is_traced, reads_the_loss, takes
from tacit.privacy.clipping.gradient import ClippingReport, explain_clipping
from tacit.privacy.clipping.isolation import require_no_table
from tacit.privacy.cost import event_to_json
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, StatedBatch
from tacit.privacy.stopping import Declared
from tacit.rng import fresh_key, keyed_hash, seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["PreparedProgram", "prepared_program"]


@dataclass(frozen=True, kw_only=True)
class PreparedProgram:
    """A split program and its method. It holds no record.

    Attributes:
      arguments: of the first call; in the place of its records are their shapes.
      program: the program, taken apart.
      resolved: method, budget and number of steps.
      seed: where keys are known; None where they come from the operating system.
    """

    arguments: Arguments
    program: SplitProgram
    resolved: Resolved
    seed: int | None

    @functools.cached_property
    def fingerprint(self) -> int:
        """Tells states whose steps cost the same from others; all that goes into it is public."""
        method = self.resolved.method
        cost = event_to_json(method.cost(1))
        parts = (method.public_records, cost, method.loss, method.shares_batches, self.seed is None)
        return zlib.crc32(" ".join(map(str, parts)).encode())

    @functools.cached_property
    def name(self) -> NDArray[np.uint32]:
        """A public random name: steps of programs that cost the same have different noise."""
        return np.frombuffer(secrets.token_bytes(32), np.uint32)

    def method_on(self, mask: Array | None) -> ProgramSVI:
        """Returns the method for one of the user's batches, or for a table, which has no mask."""
        method = self.resolved.method
        if mask is None:
            return method
        stated = StatedBatch(stated=method.release.sampling, mask=mask)
        return replace(method, release=replace(method.release, sampling=stated))

    def first_state(
        self, rng_key: Key, init_params: Params | None, num_steps: int | None
    ) -> DPSVIState:
        """Returns the state before the first step; its secret key is new.

        It declares the steps that the budget is for; where there is no such limit, ``num_steps``.
        """
        if not jnp.issubdtype(rng_key.dtype, jax.dtypes.prng_key):
            rng_key = jax.random.wrap_key_data(rng_key)
        method = self.resolved.method
        # What `fit` makes of a seed, so that single steps and a run are the same.
        root = fresh_key() if self.seed is None else seeded_key(self.seed)
        first, private_key = self._start(rng_key, root)
        if init_params is not None:
            params = method.optim.get_params(first.optim_state)
            params = params | self._unconstrained(init_params)
            first = first._replace(optim_state=method.optim.init(params), average=params)
        return DPSVIState(
            optim_state=first.optim_state,
            mutable_state=None,
            rng_key=first.rng_key,
            step=first.step,
            fingerprint=jax.device_put(np.uint32(self.fingerprint)),
            declared=jax.device_put(np.int32(self.resolved.max_steps or num_steps or 0)),
            average=first.average,
            evidence=first.evidence,
            private_key=private_key,
        )

    @functools.cached_property
    def _start(self) -> Callable[[Key, Key], tuple[StepState, Key]]:
        def start(rng_key: Key, root: Key) -> tuple[StepState, Key]:
            private_key = jax.random.split(jax.random.split(root)[1], 1)[0]
            return self.resolved.method.build(self.program).init(rng_key), private_key

        return start if self.program.program.sets_up else compiled_once(start)

    def _unconstrained(self, params: Params) -> Params:
        transforms = self.program.transforms
        unknown = sorted(set(params) - set(transforms))
        if unknown:
            raise InvalidArgumentError(
                f"init_params must name parameters of the program; got {unknown}, where there are"
                f" {sorted(transforms)}."
            )
        return {name: transforms[name].inv(value) for name, value in params.items()}

    def declared_of(self, state: DPSVIState) -> Declared | None:
        """Returns what was declared before a state's first step; None where nothing was."""
        num_steps = int(state.declared)
        return Declared(num_steps, self.resolved.method.cost(num_steps)) if num_steps else None

    def compiled(self, state: DPSVIState, *, skip_non_finite: bool) -> Compiled:
        """Returns what runs on a table from a state on: the same, for all runs and single steps."""
        method = replace(
            self.resolved.method,
            skip_non_finite=skip_non_finite,
            # A run makes a state to see its shapes: it must be one of the same kind of keys.
            key_impl=jax.random.key_impl(state.rng_key),
        )
        return compiled_kernel(method, self.program)

    def kernel_on(
        self, state: DPSVIState, mask: Array | None, *, skip_non_finite: bool = False
    ) -> Kernel:
        """Returns the kernel for a table, or for one of the user's batches, with its mask."""
        if mask is None:
            return self.compiled(state, skip_non_finite=skip_non_finite).kernel
        method = replace(self.method_on(mask), skip_non_finite=skip_non_finite)
        return method.build(self.program)

    def step(
        self,
        key: Key,
        state: DPSVIState,
        records: list[Array],
        mask: Array | None,
        *,
        skip_non_finite: bool,
    ) -> tuple[DPSVIState, Scalar]:
        """Takes one step; a pure function."""
        kernel = self.kernel_on(state, mask, skip_non_finite=skip_non_finite)
        public, info = kernel.step(key, state.public, records)
        return state.moved_to(public), info.loss

    @functools.cached_property
    def compiled_step(self) -> Callable[..., tuple[DPSVIState, Scalar]]:
        """The same, compiled once for all calls."""
        return jax.jit(self.step, static_argnames="skip_non_finite")

    def loss(self, key: Key, state: DPSVIState, records: list[Array], mask: Array | None) -> Scalar:
        """Returns one release's estimate of the loss; without privacy, the loss itself."""
        method = self.method_on(mask)
        release = method.release
        if method.loss is not None and release.is_private:
            release = method.loss.release_beside(release)
        elif self.resolved.is_table:
            # Of a table NumPyro's loss is that of all records, whatever batches steps look at.
            whole = FullBatch(num_records=method.num_records)
            release = GaussianSum.non_private(sampling=whole)
        else:
            release = GaussianSum.non_private(sampling=release.sampling)
        _, shared = jax.random.split(state.rng_key)
        params = method.optim.get_params(state.optim_state)
        objective = program_objective(self.program)

        def query(record: Sequence[Array], key: Key) -> Scalar:
            return objective.record_loss(params, shared, record, key)

        return released_loss(key, release, query, objective.regulariser(params, shared), records)

    @functools.cached_property
    def compiled_loss(self) -> Callable[..., Scalar]:
        """The same, compiled once for all calls."""
        return jax.jit(self.loss)

    def explain_clipping(self) -> ClippingReport:
        """Returns what gradients are released with respect to, and how each part is clipped."""
        key, program = jax.random.key(0), self.program
        params = jax.eval_shape(program.init, key)
        record = [leaf[0] for leaf in program.blank]

        def of_params(params: Params, record: Sequence[Array], own: Key) -> Scalar:
            return -program.record_term(params, key, record, own)

        def of_draws(draws: list[Params], record: Sequence[Array], own: Key) -> Scalar:
            return -program.seen_term(draws, key, record, own)

        if program.latents is None:
            found = explain_clipping(of_params, params, record)
        else:
            draws = jax.eval_shape(program.draws, params, key)
            found = explain_clipping(of_draws, draws, record)
        return replace(found, released=f"{program.alignment}.")

    def step_within_budget(
        self, state: DPSVIState, records: list[Array], mask: Array | None, *, skip_non_finite: bool
    ) -> tuple[DPSVIState, Scalar]:
        """Takes one step, without raising anything.

        Its noise follows from the state's secret key and every bit of what its release depends on:
        the state but for its memory of earlier releases, records and mask
        (`tacit.rng.keyed_hash`). All rows are read for it, at about two nanoseconds a number.
        Takes none where the budget is spent, or where the state is one of which the cost is not
        known here.
        """

        def step(state: DPSVIState) -> tuple[DPSVIState, Scalar]:
            if self.seed is None:
                # What is kept cannot tell what the step's own noise was. All that a step is made of
                # decides it, so that no two steps from one state share theirs.
                rest, own = jax.random.split(state.private_key)
                key = keyed_hash(own, (state.public.decisive, self.name, records, mask))
                state = state._replace(private_key=rest)
            else:
                key = jax.random.fold_in(state.private_key, state.step)
            return self.step(key, state, records, mask, skip_non_finite=skip_non_finite)

        is_allowed = state.fingerprint == np.uint32(self.fingerprint)
        if self.resolved.max_steps is not None:
            is_allowed &= state.step < self.resolved.max_steps
        return lax.cond(
            is_allowed,
            step,
            lambda state: (state, jnp.full((), jnp.nan)),
            state,
        )

    def records_of(self, arguments: Arguments) -> list[Array]:
        """Returns the records of a call; raises unless all else is as in the first call."""
        first = self.arguments
        found, wanted = (
            [(name, *leaf.shape[1:], str(leaf.dtype)) for name, leaf in zip(*rows, strict=True)]
            for rows in ((arguments.names, arguments.records), (first.names, first.records))
        )
        if found != wanted:
            raise InvalidArgumentError(
                f"this DPSVI was prepared for records of {wanted}; got {found}. Make another one"
                " for other records."
            )
        capacity = self.resolved.method.release.sampling.capacity
        if not self.resolved.is_table and not 0 < arguments.num_records <= capacity:
            raise InvalidArgumentError(
                f"a batch must have from 1 to {capacity} rows, as many as the stated sampling can"
                f" draw; got {arguments.num_records}. State a larger max_batch_size where larger"
                " batches are drawn. Pad an empty batch and mark the padding by mask: leaving it"
                " out would tell that it was empty."
            )
        if self.resolved.is_table and arguments.num_records != first.num_records:
            raise InvalidArgumentError(
                f"this DPSVI was prepared for {first.num_records} records; got"
                f" {arguments.num_records}. The sampling rate would be wrong: make another one, or"
                " give num_obs_total if these are batches of your own."
            )
        now, then = (jax.tree.leaves(a.build([0] * len(a.records))) for a in (arguments, first))
        if len(now) != len(then) or not all(map(_is_same, now, then)):
            raise InvalidArgumentError(
                "public arguments must be those of the first call, and not traced: they are part"
                " of the program. Give them as static arguments, DPSVI(..., name=value)."
            )
        return arguments.records

    def batch_of(
        self, arguments: Arguments, mask: Array | None
    ) -> tuple[list[Array], Array | None]:
        """Returns the records of a call, and for a batch which of them are no padding."""
        records = self.records_of(arguments)
        if self.resolved.is_table:
            if mask is not None:
                raise InvalidArgumentError(
                    "mask is for batches of your own; here the program is called with the whole"
                    " table, and batches are drawn inside. Leave it out."
                )
            return records, None
        if mask is None:
            return records, jnp.ones(arguments.num_records, bool)
        if jnp.shape(mask) != (arguments.num_records,):
            raise InvalidArgumentError(
                f"mask must have one value for each of the {arguments.num_records} rows; got shape"
                f" {jnp.shape(mask)}."
            )
        return records, jnp.asarray(mask, bool)

    def require_no_table(self, state: DPSVIState, records: list[Array]) -> None:
        """Raises where program or optimiser close over the records of a call."""
        key, num_records = seeded_key(0), self.resolved.method.num_records
        mask = None if self.resolved.is_table else jnp.ones(_tree.num_records(records), bool)
        kernel = self.kernel_on(state, mask)
        shape = jax.eval_shape(lambda: state.public)
        # The whole table, of which a call may have a batch, may not be closed over either.
        whole = None if mask is None else num_records
        require_no_table(kernel.init, key, records=records, num_records=whole)
        require_no_table(kernel.step, key, shape, records, records=records, num_records=whole)

    def require_own(self, state: DPSVIState) -> None:
        """Raises for states of which the cost is not known here."""
        if int(state.fingerprint) != self.fingerprint:
            raise InvalidArgumentError(
                "the state was made by a DPSVI whose steps cost something else, or whose keys or"
                " batches come from elsewhere, so its cost is not known here. Start from its"
                " parameters by init_params, and add up both statements."
            )

    def require_steps(self, start: int, num_steps: int) -> None:
        """Raises where so many steps more exceed the budget."""
        max_steps = self.resolved.max_steps
        if max_steps is not None and start + num_steps > max_steps:
            raise BudgetExceededError(
                f"the budget is for {max_steps} steps; {start} were made, and {num_steps} more are"
                " asked for. Make a DPSVI with a larger num_steps (and so more noise) or epsilon."
            )


def _is_same(one: Any, other: Any) -> bool:
    """Whether two public constants are equal; what is traced is equal to itself only."""
    if one is other:
        return True
    if is_traced((one, other)) or callable(one) or callable(other):
        return False
    return bool(np.array_equal(one, other))


def prepared_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    settings: PrivacySettings,
    optim: _NumPyroOptim,
    loss: PrivateLoss | None,
    plate: str | None,
    num_particles: int,
    num_steps: int | None,
    seed: int | None,
) -> PreparedProgram:
    """Takes a program apart and finds its noise; of the records only shapes are used.

    Args:
      model: a NumPyro model.
      guide: its guide.
      arguments: of the call.
      settings: what was asked for.
      optim: an optimiser in NumPyro's shape.
      loss: which losses are released; None for none.
      plate: the name of the record plate; found where it is None.
      num_particles: how many draws of the latents are averaged.
      num_steps: how many steps the budget is for, where the settings do not say.
      seed: where keys are known.
    """
    program = split_program(
        model,
        guide,
        arguments,
        plate=plate,
        num_particles=num_particles,
    )
    params = jax.eval_shape(program.init, jax.random.key(0))
    resolved = settings.resolve(
        num_rows=arguments.num_records,
        optim=optim,
        loss=loss,
        num_steps=num_steps,
    )
    num_records = resolved.method.num_records
    if program.plate_size not in (num_records, arguments.num_records):
        raise InvalidArgumentError(
            f"the plate {program.plate!r} says that there are {program.plate_size} records, but"
            f" there are {num_records}. Correct it, or say num_obs_total={program.plate_size}"
            " if the program is called with batches of so many."
        )
    if not resolved.method.has_losses and reads_the_loss(optim, params):
        raise InvalidArgumentError(
            "optim uses the value of the loss, and there is none without a release. Give"
            " loss_release=PrivateLoss(...), or an optimiser that uses gradients only."
        )
    if not resolved.is_table and takes(model, "mask"):
        raise InvalidArgumentError(
            "the model must not have an argument named mask where it is called with batches:"
            " update has one, for padding. Rename the model's."
        )
    # Only public constants and shapes stay: no record outlives the call.
    shapes = jax.eval_shape(lambda: arguments.records)
    return PreparedProgram(
        arguments=arguments._replace(records=shapes),
        program=program,
        resolved=resolved,
        seed=seed,
    )
