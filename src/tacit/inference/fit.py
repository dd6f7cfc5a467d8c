"""Running a plan: charge, dispatch a chunk of steps, repeat; refuse before touching a record."""

import bisect
import contextlib
import datetime
import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check, _display
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.inference.chains import Chains, chunks_between, feed_of, require_shared_chains
from tacit.inference.checkpoint import Charges, Checkpoint, OnProgress
from tacit.inference.compilation import compiled_kernel, step_on_table
from tacit.inference.method import Kernel
from tacit.inference.plan import Plan, calibrate_steps
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.clipping.isolation import require_no_table
from tacit.privacy.cost import Cost, count_releases, event_to_json
from tacit.privacy.statement import Statement, make_statement, require_adjacency
from tacit.privacy.stopping import AnytimeRDP, Declared, claim_of
from tacit.processes import on_coordinator, require_same_everywhere, shared_fresh_key
from tacit.rng import seeded_key
from tacit.tables import Distributed, OnHost, Table, as_table, describe_mesh
from tacit.typing import Record, Tree

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["Fit", "fit"]

_NUM_CHUNKS = 20
_NUM_CURVE_POINTS = 8


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
    """

    posterior: Posterior
    statement: Statement
    plan: Plan
    info: Tree
    checkpoint: Checkpoint

    def __repr__(self) -> str:
        return f"Fit({self.posterior!r}, {self.plan.num_steps} steps)"

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        plan, posterior = self.plan._sheet(), self.posterior._sheet()
        return replace(
            posterior, title=f"Fit by {plan.rows[0][1]}", rows=[*posterior.rows, *plan.rows[1:]]
        )


def fit(
    plan: Plan,
    model: Model,
    records: Record | Distributed | OnHost,
    *,
    budget: Budget,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: OnProgress | None = None,
    resume: Checkpoint | None = None,
    on_chunk: Callable[[Checkpoint], None] | None = None,
    chunk_steps: int | None = None,
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
    """
    _require_fitting_records(plan, records, budget)
    kernel = compiled_kernel(plan.method, model).kernel
    shape = jax.eval_shape(kernel.init, seeded_key(0))
    if resume is not None:
        _require_fitting_checkpoint(plan, shape, resume, budget)
    start, history = (0, plan.spent) if resume is None else (resume.step, resume.cost)
    if plan.num_steps is None:
        plan = plan.with_steps(_steps_until_spent(plan, budget, start, history, resume))
    num_steps = plan.kept_steps[-1]
    if start >= num_steps:
        raise InvalidArgumentError(
            f"resume is at step {start}, but the plan ends at step {num_steps}. Nothing is left."
        )
    chunk_steps = math.ceil(num_steps / _NUM_CHUNKS) if chunk_steps is None else chunk_steps
    _check.positive_integer(chunk_steps=chunk_steps)
    feed = feed_of(records, kernel, shape, num_chains=plan.num_chains)
    chunk_steps = min(chunk_steps, feed.max_steps or chunk_steps, num_steps - start)

    def cost_until(step: int) -> Cost:
        return history + Cost(plan.cost_between(start, step), is_secure=seed is None)

    def checkpoint_at(step: int) -> Checkpoint:
        return Checkpoint(
            step,
            chains.states,
            *chains.retained,
            cost_until(step),
            charges.run_id,
            claim.declared,
        )

    def tell(step: int, spent_at: Callable[[int], float] | None) -> None:
        if on_chunk is not None:
            on_chunk(checkpoint_at(step))
        if progress is not None and spent_at is not None:
            progress(step=step, num_steps=num_steps, epsilon=spent_at(step))

    whole = cost_until(num_steps)
    claim = claim_of(
        whole.event,
        num_steps=num_steps,
        declared=_declared(resume, num_steps, whole.event),
        budget=budget,
    )
    claim.budget.require(claim.cost)
    _warn_if_weak(plan, budget)
    rows_per_unit = _rows_per_unit(records)
    # All that could fail is made now: nothing may go wrong once records were read and paid for.
    statement = make_statement(
        cost=replace(whole, event=claim.cost),
        budget=claim.budget,
        unit=_unit(rows_per_unit),
        num_units=plan.method.public_records,
        method=plan.method,
        num_steps=num_steps,
        length=claim.length,
        num_chains=plan.num_chains,
        rows_per_unit=rows_per_unit or 1,
        is_charged=ledger is not None,
    )
    _require_no_table(kernel, shape, records)
    require_same_everywhere(
        records=str((plan.method.num_records, as_table(records).record)),
        mesh=describe_mesh(getattr(records, "mesh", None)),
        plan=str((event_to_json(whole.event), plan.kept_steps, chunk_steps)),
        states=str((plan.num_chains, shape)),
        seed=str(seed),
        resume=str(start),
    )
    charges = Charges.begin(
        ledger,
        plan,
        records,
        start=start,
        stop=num_steps,
        resume=resume,
        is_secure=seed is None,
        adjacency=budget.accountant.adjacency,
    )

    key = shared_fresh_key() if seed is None else seeded_key(seed)
    chains = Chains(plan, model, key, resume=resume, mesh=getattr(records, "mesh", None))
    chunks = chunks_between(start, num_steps, chunk_steps, plan.kept_steps)
    stops = [chunk[-1] for chunk in chunks]
    spent_at = None
    if progress is not None:
        spent_at = _epsilon_curve(lambda step: claim.budget.spent(cost_until(step)), stops)
    spans = list(zip([start, *stops], stops, strict=False))
    with contextlib.closing(feed.tables(chains.keys, spans, chunk_steps)) as tables:
        for chunk, (before, stop), table in zip(chunks, spans, tables, strict=True):
            charges.pay(before, stop)
            chains.take_on(table, [before, *chunk])
            on_coordinator(functools.partial(tell, stop, spent_at))

    checkpoint = checkpoint_at(num_steps)
    statement = replace(
        statement, date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    )
    posterior = Posterior(
        model=model,
        sampler=kernel.sampler,
        kept=_members_as_chains(kernel, checkpoint.kept),
        statement=statement.to_json(),
    )
    return Fit(
        posterior=posterior,
        statement=statement,
        plan=plan,
        info=checkpoint.info,
        checkpoint=checkpoint,
    )


def _epsilon_curve(spent: Callable[[int], float], stops: list[int]) -> Callable[[int], float]:
    """Returns epsilon after a number of steps, from a few values computed once, rounded up."""
    every = math.ceil(len(stops) / _NUM_CURVE_POINTS)
    points = sorted({*stops[::-every]})
    values = [spent(point) for point in points]
    return lambda step: values[bisect.bisect_left(points, step)]


def _steps_until_spent(
    plan: Plan, budget: Budget, start: int, history: Cost, resume: Checkpoint | None
) -> int:
    """Returns at which step a plan of no length of its own ends."""
    declared = None if resume is None else resume.declared
    if declared is not None and start < declared.num_steps:
        return declared.num_steps
    if resume is not None and start > 0:
        budget = replace(budget, accountant=AnytimeRDP(adjacency=budget.accountant.adjacency))
    steps = calibrate_steps(replace(plan, spent=history), budget, start=start).num_steps
    assert steps is not None
    return steps


def _declared(resume: Checkpoint | None, num_steps: int, cost: DpEvent) -> Declared | None:
    """Returns what a run was declared to be: what its first plan said, before any release."""
    if resume is None or (resume.step == 0 and resume.declared is None):
        return Declared(num_steps, cost)
    return resume.declared


def _members_as_chains(kernel: Kernel, kept: Tree) -> Tree:
    if kernel.num_members is None:
        return kept
    # From (num_chains, num_kept, num_members, ...).
    return jax.tree.map(
        lambda leaf: leaf.swapaxes(1, 2).reshape(-1, leaf.shape[1], *leaf.shape[3:]), kept
    )


def _warn_if_weak(plan: Plan, budget: Budget) -> None:
    budget.warn_if_delta_is_large(plan.method.public_records)
    if math.isfinite(budget.epsilon) and not budget.accountant.is_bound:
        warnings.warn(
            f"the accountant {budget.accountant.name} gives no upper bound, so the statement is NOT"
            " A GUARANTEE. Use PLD or RDP for results that leave the house.",
            PrivacyWarning,
            stacklevel=3,
        )


def _require_fitting_checkpoint(
    plan: Plan, shape: Tree, resume: Checkpoint, budget: Budget
) -> None:
    wanted = jax.tree.map(lambda leaf: (plan.num_chains, *leaf.shape), shape)
    found = jax.tree.map(jnp.shape, resume.states)
    require_adjacency(plan.method, budget, spent=resume.cost.event)
    if found != wanted:
        raise InvalidArgumentError(
            f"resume does not fit the plan and model: its states have shapes {found}, where"
            f" {wanted} is wanted. Resume with the plan and model of the run that made it."
        )
    if not count_releases(plan.spent.event) <= count_releases(resume.cost.event):
        raise InvalidArgumentError(
            "plan.spent must be part of what resume was made with, which is all that is counted;"
            f" got {plan.spent!r}. Resume with the plan of the run that made it."
        )


def _require_fitting_records(plan: Plan, records: Table | Record, budget: Budget) -> None:
    require_adjacency(plan.method, budget, spent=plan.spent.event)
    if not isinstance(records, Record | Distributed | OnHost):
        raise InvalidArgumentError(
            f"records must be a Record table; got {type(records).__name__}. Make one with"
            " tacit.data.as_records(x, y)."
        )
    found = as_table(records).num_records
    if found != plan.method.num_records:
        raise InvalidArgumentError(
            f"records has {found} rows, but the method's sampling was configured for"
            f" num_records={plan.method.num_records}. The sampling rate would be wrong."
        )
    require_shared_chains(plan.num_chains, getattr(records, "mesh", None))


def _require_no_table(kernel: Kernel, shape: Tree, records: Tree) -> None:
    key = seeded_key(0)
    require_no_table(kernel.init, key, records=records)
    step = functools.partial(step_on_table, kernel)
    require_no_table(step, key, shape, records, records=records)


def _rows_per_unit(records: Table | Record) -> int | None:
    mask = as_table(records).record.mask
    return None if mask is None else mask.shape[0]


def _unit(rows_per_unit: int | None) -> str:
    if rows_per_unit is None:
        return "one record (one row)"
    return f"one person, with at most {rows_per_unit} rows"
