"""Fitting: check, run a plan on private records, state what it cost, keep the posterior."""

import contextlib
import datetime
import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from tacit import _display
from tacit.errors import InvalidArgumentError, UtilityWarning
from tacit.inference.chains import Checkpoint, OnProgress
from tacit.inference.compilation import compiled_kernel
from tacit.inference.corrected import ModelPosterior, corrected
from tacit.inference.evidence import histogram_in
from tacit.inference.half_precision import Recording
from tacit.inference.method import Kernel, Method
from tacit.inference.plan import Plan, calibrate_steps
from tacit.inference.run import ChainRun, Course, Start
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.clipping.slack import NormHistogram
from tacit.privacy.cost import count_releases
from tacit.privacy.statement import Statement
from tacit.privacy.statement.construction import make_statement, require_adjacency
from tacit.privacy.statement.text import clipped_records
from tacit.privacy.stopping import AnytimeRDP
from tacit.state_file import state_file_of
from tacit.tables.base import Table, as_table
from tacit.typing import Record, Tree

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["LEAST_ACCEPTANCE", "CompiledFit", "Fit", "fit"]

LEAST_ACCEPTANCE = 0.05
"""Of proposals: chains that accept fewer hardly move."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """What a run gives back; all of it is covered by the statement.

    Attributes:
      posterior: retained states, ready to predict, save and publish.
      statement: what is promised, computed from what was executed.
      plan: what was run.
      info: the mean of the method's public `Info` over the steps just before each retained state
        (since the last one, or since the chunk began).
      checkpoint: from which the run can go on.
      norms: how large records' contributions were beside the clip norm in the second half of the
        run, from the same releases; None without privacy and where the rule leaves no room for it.
    """

    posterior: Posterior
    statement: Statement
    plan: Plan
    info: Tree
    checkpoint: Checkpoint
    norms: NormHistogram | None = None

    def __repr__(self) -> str:
        return f"Fit({self.posterior!r}, {self.plan.num_steps} steps)"

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        plan, posterior = self.plan._sheet(), self.posterior._sheet()
        rows = [*posterior.rows, *plan.rows[1:]]
        if self.norms is not None:
            rows.append(("clipped records", clipped_records(self.statement.to_json())))
        return replace(posterior, title=f"Fit by {plan.rows[0][1]}", rows=rows)


def fit(
    plan: Plan,
    model: Model,
    records: Record | Table,
    *,
    budget: Budget,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: OnProgress | None = None,
    resume: Checkpoint | None = None,
    on_chunk: Callable[[Checkpoint], None] | None = None,
    chunk_steps: int | None = None,
    half_precision: str | os.PathLike[str] | None = None,
    compiled: "CompiledFit | None" = None,
) -> Fit:
    """Runs a plan on private records within a budget.

    Guarantee:
      The result depends on the records only through the releases that the statement counts.
      When the plan would exceed the budget, or what the ledger has left, this raises
      `BudgetExceededError` before any record is read. Noise, batches and masks come from a fresh
      256-bit key of the operating system, drawn for this call, never stored and never given out,
      so it cannot be used twice. A model or method that closes over the table raises
      `CrossRecordError`; one that closes over a statistic of it, such as a mean, cannot be found
      out.

    Args:
      plan: what to run; ``num_steps=None`` runs until the budget is spent.
      model: what to infer.
      records: the table; one row for each unit of privacy. It may be in memory, spread over devices
        and processes (`distribute`), or on the host (`OnHost`). Where several processes take part,
        each calls this with the same arguments and gets the same result; only the coordinator draws
        the key, pays the ledger, and calls ``progress`` and ``on_chunk``.
      budget: what may be spent; `Budget.non_private()` says that nothing is promised.
      seed: for tests and examples only: replaces the fresh key by a known one and marks the
        statement INSECURE.
      ledger: is asked for the whole plan first, and charged for each chunk of steps before it is
        dispatched. It refuses a chunk only where others were charged in between; then the run
        ends with its error, and ``on_chunk`` has the checkpoint of what was made and paid for.
      progress: is told steps and epsilon after each chunk.
      resume: goes on from there instead of from the start. What was executed before is counted in
        the budget and the statement, as it was executed, not as this plan would have. Within what
        the run was declared to be at its start, the statement is that of the whole declared run,
        wherever this plan ends. Beyond it, the length was chosen after looking, and the statement
        is by `AnytimeRDP`, which is larger. ``num_steps=None`` goes on to the declared length, and
        from there until the budget is spent.
      on_chunk: receives a checkpoint after each chunk.
      chunk_steps: how many steps are dispatched at once; a twentieth of the run by default.
      half_precision: a folder, to which retained states are written in half precision while the run
        goes on, as ``retained.states``: posteriors of many draws of a large network then need no
        memory, and `Posterior.rounding` says how much the rounding changed. By default they stay in
        memory as they are.
      compiled: what was compiled for this method and model before, for fits that are many.
    """
    require_adjacency(plan.method, budget, spent=plan.spent.event)
    _require_records(records)
    compiled = compiled or CompiledFit(plan.method, model)
    if compiled.method is not plan.method or compiled.model is not model:
        # What runs must be what is accounted for.
        raise InvalidArgumentError(
            "compiled must be of this very plan.method and model; it was made of others. Leave it"
            " out, or make one by CompiledFit(plan.method, model)."
        )
    start = Start(cost=plan.spent) if resume is None else _start_of(resume, plan, budget)
    if plan.num_steps is None:
        plan = plan.with_steps(_steps_until_spent(plan, budget, start))
    course = Course(
        name=type(plan.method).__name__,
        cost_between=plan.cost_between,
        kept_steps=plan.kept_steps,
        num_chains=plan.num_chains,
        num_records=plan.method.num_records,
    )
    run = ChainRun.within(
        budget, course, compiled.kernel, records, start=start, seed=seed, chunk_steps=chunk_steps
    )
    budget.warn_if_delta_is_large(plan.method.public_records)
    # All that could fail is made now: nothing may go wrong once records were read and paid for.
    statement = _statement(plan, run, is_charged=ledger is not None)
    recording = _recording(half_precision, run, model)
    with contextlib.nullcontext() if recording is None else contextlib.closing(recording):
        if recording is not None:
            most_steps = recording.most_steps(course.kept_steps)
            run = replace(run, chunk_steps=min(run.chunk_steps, most_steps))
        checkpoint = run.execute(
            ledger=ledger, progress=progress, on_chunk=on_chunk, recording=recording
        )
    norms = _norms_in(compiled.kernel.kernel, checkpoint.states)
    statement = replace(
        statement,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        norms=None if norms is None else norms.to_json(),
    )
    posterior = Posterior(
        model=model,
        sampler=compiled.kernel.kernel.sampler,
        kept=_members_as_chains(compiled.kernel.kernel, checkpoint.kept),
        statement=statement.to_json(),
    )
    if math.isfinite(statement.epsilon):
        posterior = compiled.corrected(posterior, checkpoint.states, records)
    posterior = _with_acceptance(posterior, checkpoint.info)
    return Fit(
        posterior=posterior,
        statement=statement,
        plan=plan,
        info=checkpoint.info,
        checkpoint=checkpoint,
        norms=norms,
    )


class CompiledFit:
    """What a fit of one method and model compiles, for any number of fits while neither changes.

    Attributes:
      method: how.
      model: what is inferred.
      kernel: of both.
    """

    def __init__(self, method: Method, model: Model) -> None:
        self.method, self.model = method, model
        self.kernel = compiled_kernel(method, model)
        self._exact: tuple[Record, ModelPosterior] | None = None

    def corrected(self, posterior: Posterior, states: Tree, records: Record | Table) -> Posterior:
        """Returns the posterior given all releases of a run, as `tacit.inference.corrected` has it.

        Args:
          posterior: as the method made it.
          states: of all chains, at the end of the run.
          records: the table; only its shapes are read.
        """
        return corrected(posterior, self.kernel.kernel, states, records, exact_of=self._exact_of)

    def _exact_of(self, model: Model, record: Record) -> ModelPosterior:
        if self._exact is None or self._exact[0] != record:
            self._exact = record, ModelPosterior(model, record)
        return self._exact[1]


def _norms_in(kernel: Kernel, states: Tree) -> NormHistogram | None:
    """Returns how large contributions were, as the states of all chains have noted."""
    if kernel.evidence is None or kernel.engine is None:
        return None
    evidence = jax.vmap(kernel.evidence)(states)
    return None if evidence is None else histogram_in(evidence, kernel.engine)


def _with_acceptance(posterior: Posterior, info: Tree) -> Posterior:
    """Returns the posterior with a caveat, and warns, where chains hardly accepted a proposal."""
    acceptance = getattr(info, "acceptance", None)
    if acceptance is None or float(jnp.mean(acceptance)) >= LEAST_ACCEPTANCE:
        return posterior
    caveat = (
        f"The chains accepted {float(jnp.mean(acceptance)):.1%} of their proposals, so their draws"
        " say where they started and not what the records say. Start nearer (fit_hmc does), take"
        " shorter steps or fewer parameters, or use Laplace."
    )
    # The records were paid for: the run keeps its posterior also where warnings are errors.
    with contextlib.suppress(UtilityWarning):
        warnings.warn(caveat, UtilityWarning, stacklevel=3)
    facts = posterior.intervals
    return replace(posterior, intervals=replace(facts, caveats=(*facts.caveats, caveat)))


def _start_of(resume: Checkpoint, plan: Plan, budget: Budget) -> Start:
    """Returns where a run goes on from, or raises where a plan is not one of that run."""
    require_adjacency(plan.method, budget, spent=resume.cost.event)
    if not count_releases(plan.spent.event) <= count_releases(resume.cost.event):
        raise InvalidArgumentError(
            "plan.spent must be part of what resume was made with, which is all that is counted;"
            f" got {plan.spent!r}. Resume with the plan of the run that made it."
        )
    return Start(
        step=resume.step,
        states=resume.states,
        retained=None if resume.kept is None else (resume.kept, resume.info),
        cost=resume.cost,
        run_id=resume.run_id,
        declared=resume.declared,
    )


def _steps_until_spent(plan: Plan, budget: Budget, start: Start) -> int:
    """Returns at which step a plan of no length of its own ends."""
    if start.declared is not None and start.step < start.declared.num_steps:
        return start.declared.num_steps
    if start.step > 0:
        budget = replace(budget, accountant=AnytimeRDP(adjacency=budget.accountant.adjacency))
    steps = calibrate_steps(replace(plan, spent=start.cost), budget, start=start.step).num_steps
    assert steps is not None
    return steps


def _statement(plan: Plan, run: ChainRun, *, is_charged: bool) -> Statement:
    mask = as_table(run.records).record.mask
    num_steps, num_rows = run.course.num_steps, None if mask is None else mask.shape[0]
    unit = "one record (one row)"
    if num_rows is not None:
        unit = f"one person, with at most {num_rows} rows"
    return make_statement(
        cost=replace(run.cost_until(num_steps), event=run.claim.cost),
        budget=run.claim.budget,
        unit=unit,
        num_units=plan.method.public_records,
        method=plan.method,
        num_steps=num_steps,
        length=run.claim.length,
        num_chains=plan.num_chains,
        rows_per_unit=num_rows or 1,
        is_charged=is_charged,
        tuning=plan.tuning,
    )


def _recording(
    folder: str | os.PathLike[str] | None, run: ChainRun, model: Model
) -> Recording | None:
    """Returns where a run's retained states are written; None where they stay in memory."""
    course, start = run.course, run.start
    before = None if start.retained is None else start.retained[0]
    if folder is None:
        if before is not None and state_file_of(before) is not None:
            raise InvalidArgumentError(
                "half_precision must be a folder, since the states that resume has retained are in"
                " half precision; got None. Give the folder that they are in, or another."
            )
        return None
    num_rows = len([step for step in course.kept_steps if step > start.step])
    if before is not None:
        num_rows += jax.tree.leaves(before)[0].shape[1]
    return Recording(
        folder,
        run.compiled.kernel,
        model,
        as_table(run.records).record,
        num_chains=course.num_chains,
        num_rows=num_rows,
        before=before,
    )


def _members_as_chains(kernel: Kernel, kept: Tree) -> Tree:
    if kernel.num_members is None or state_file_of(kept) is not None:
        return kept
    # From (num_chains, num_kept, num_members, ...).
    return jax.tree.map(
        lambda leaf: leaf.swapaxes(1, 2).reshape(-1, leaf.shape[1], *leaf.shape[3:]), kept
    )


def _require_records(records: Record | Table) -> None:
    record = records.record if isinstance(records, Table) else records
    if not isinstance(record, Record):
        raise InvalidArgumentError(
            f"records must be a Record table; got {type(records).__name__}. Make one with"
            " tacit.data.as_records(x, y)."
        )
