"""Running a plan: charge, dispatch a chunk of steps, repeat; refuse before touching a record."""

import bisect
import datetime
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent, NoOpDpEvent

from tacit import _check, _display, _tree
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.inference.base import Kernel
from tacit.inference.charges import Charges, num_values_of
from tacit.inference.checkpoint import Checkpoint
from tacit.inference.compiled import compiled_kernel
from tacit.inference.plan import Plan, calibrate_steps
from tacit.inference.progress import OnProgress
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.clipping.isolation import require_no_table
from tacit.privacy.events import composed, count_releases
from tacit.privacy.statement import Statement, make_statement, tail_of
from tacit.rng import fresh_key, seeded_key
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
    records: Record,
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
      records: the table; one row for each unit of privacy.
      budget: what may be spent; `Budget.non_private()` says that nothing is promised.
      seed: for tests and examples only: replaces the fresh key by a known one and marks the
        statement INSECURE.
      ledger: is asked for the whole plan first, and charged for each chunk of steps before it is
        dispatched. It refuses a chunk only where others were charged in between; then the run
        ends with its error, and ``on_chunk`` has the checkpoint of what was made and paid for.
      progress: is told steps and epsilon after each chunk.
      resume: goes on from there instead of from the start. What was executed before is counted in
        the budget and the statement, as it was executed, not as this plan would have.
      on_chunk: receives a checkpoint after each chunk.
      chunk_steps: how many steps are dispatched at once; a twentieth of the run by default.
    """
    _require_fitting_records(plan, records)
    kernel, advance = compiled_kernel(plan.method, model)
    shape = jax.eval_shape(kernel.init, seeded_key(0))
    if resume is not None:
        _require_fitting_checkpoint(plan, shape, resume)
    start, history = (0, plan.spent) if resume is None else (resume.step, resume.cost)
    if plan.num_steps is None:
        num_steps = calibrate_steps(replace(plan, spent=history), budget, start=start).num_steps
        plan = replace(plan, num_steps=num_steps)
    num_steps = plan.kept_steps[-1]
    if start >= num_steps:
        raise InvalidArgumentError(
            f"resume is at step {start}, but the plan ends at step {num_steps}. Nothing is left."
        )
    chunk_steps = math.ceil(num_steps / _NUM_CHUNKS) if chunk_steps is None else chunk_steps
    _check.positive_integer(chunk_steps=chunk_steps)

    def cost_until(step: int) -> DpEvent:
        return composed(history, plan.cost_between(start, step))

    def checkpoint_at(step: int) -> Checkpoint:
        return Checkpoint(
            step, states, *_retained(kept), cost_until(step), is_secure, charges.run_id
        )

    own_values = num_values_of(plan, model)
    num_values = _largest(plan, own_values)
    tail = tail_of(cost_until(num_steps), num_values=num_values)
    budget.require(cost_until(num_steps), tail=tail)
    _warn_if_weak(plan, budget)
    is_secure = seed is None and (plan.spent_is_secure if resume is None else resume.is_secure)
    # All that could fail is made now: nothing may go wrong once records were read and paid for.
    statement = make_statement(
        cost=cost_until(num_steps),
        budget=budget,
        unit=_unit(records),
        num_units=plan.method.num_records,
        num_values=num_values,
        is_secure=is_secure,
        method=plan.method,
        num_steps=num_steps,
        num_chains=plan.num_chains,
        rows_per_unit=1 if records.mask is None else records.mask.shape[1],
        is_charged=ledger is not None,
    )
    charges = Charges.begin(
        ledger,
        plan,
        records,
        start=start,
        stop=num_steps,
        num_values=own_values,
        resume=resume,
        is_secure=seed is None,
    )
    _require_no_table(kernel, shape, records)

    init_key, run_key = jax.random.split(fresh_key() if seed is None else seeded_key(seed))
    chain_keys = jax.random.split(run_key, plan.num_chains)
    states = (
        jax.vmap(kernel.init)(jax.random.split(init_key, plan.num_chains))
        if resume is None
        else resume.states
    )
    kept = [] if resume is None or resume.kept is None else [(resume.kept, resume.info)]
    chunks = _chunks(start, num_steps, chunk_steps, plan.kept_steps)
    spent_at = None
    if progress is not None:
        spent_at = _epsilon_curve(
            lambda step: budget.spent(cost_until(step), tail=tail), [chunk[-1] for chunk in chunks]
        )

    kept_steps = set(plan.kept_steps)
    before = start
    for boundaries in chunks:
        stop = boundaries[-1]
        charges.pay(before, stop)
        states, emitted = advance(chain_keys, states, records, jnp.array([before, *boundaries]))
        wanted = [boundaries.index(step) for step in sorted(kept_steps.intersection(boundaries))]
        if wanted:
            kept.append(jax.tree.map(lambda leaf, at=wanted: leaf[:, jnp.array(at)], emitted))
        before = stop
        if on_chunk is not None:
            on_chunk(checkpoint_at(stop))
        if progress is not None and spent_at is not None:
            progress(step=stop, num_steps=num_steps, epsilon=spent_at(stop))

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


def _chunks(
    start: int, stop: int, chunk_steps: int, kept_steps: tuple[int, ...]
) -> list[list[int]]:
    """Cuts a run into chunks, each a list of boundaries of one length, padded with its end."""
    chunks = []
    for first in range(start, stop, chunk_steps):
        last = min(first + chunk_steps, stop)
        inside = kept_steps[
            bisect.bisect_right(kept_steps, first) : bisect.bisect_left(kept_steps, last)
        ]
        chunks.append([*inside, last])
    length = max(map(len, chunks))
    return [chunk + [chunk[-1]] * (length - len(chunk)) for chunk in chunks]


def _epsilon_curve(spent: Callable[[int], float], stops: list[int]) -> Callable[[int], float]:
    """Returns epsilon after a number of steps, from a few values computed once, rounded up."""
    every = math.ceil(len(stops) / _NUM_CURVE_POINTS)
    points = sorted({*stops[::-every]})
    values = [spent(point) for point in points]
    return lambda step: values[bisect.bisect_left(points, step)]


def _largest(plan: Plan, own_values: int) -> int:
    """How many numbers the largest release has, with those that the plan has spent."""
    has_spent = not isinstance(plan.spent, NoOpDpEvent)
    return max(own_values, plan.spent_values) if has_spent else own_values


def _members_as_chains(kernel: Kernel, kept: Tree) -> Tree:
    if kernel.num_members is None:
        return kept
    # From (num_chains, num_kept, num_members, ...).
    return jax.tree.map(
        lambda leaf: leaf.swapaxes(1, 2).reshape(-1, leaf.shape[1], *leaf.shape[3:]), kept
    )


def _retained(kept: list[Any]) -> tuple[Tree, Tree]:
    """What was kept so far, and the infos, each as one tree; None before the first."""
    if not kept:
        return None, None
    states, info = jax.tree.map(lambda *leaves: jnp.concatenate(leaves, axis=1), *kept)
    return states, info


def _warn_if_weak(plan: Plan, budget: Budget) -> None:
    budget.warn_if_delta_is_large(plan.method.num_records)
    if math.isfinite(budget.epsilon) and not budget.accountant.is_bound:
        warnings.warn(
            f"the accountant {budget.accountant.name} gives no upper bound, so the statement is NOT"
            " A GUARANTEE. Use PLD or RDP for results that leave the house.",
            PrivacyWarning,
            stacklevel=3,
        )


def _require_fitting_checkpoint(plan: Plan, shape: Tree, resume: Checkpoint) -> None:
    wanted = jax.tree.map(lambda leaf: (plan.num_chains, *leaf.shape), shape)
    found = jax.tree.map(jnp.shape, resume.states)
    if found != wanted:
        raise InvalidArgumentError(
            f"resume does not fit the plan and model: its states have shapes {found}, where"
            f" {wanted} is wanted. Resume with the plan and model of the run that made it."
        )
    if not count_releases(plan.spent) <= count_releases(resume.cost):
        raise InvalidArgumentError(
            "plan.spent must be part of what resume was made with, which is all that is counted;"
            f" got {plan.spent!r}. Resume with the plan of the run that made it."
        )


def _require_fitting_records(plan: Plan, records: Record) -> None:
    if not isinstance(records, Record):
        raise InvalidArgumentError(
            f"records must be a Record table; got {type(records).__name__}. Make one with"
            " tacit.data.as_records(x, y)."
        )
    found = _tree.num_records(records)
    if found != plan.method.num_records:
        raise InvalidArgumentError(
            f"records has {found} rows, but the method's sampling was configured for"
            f" num_records={plan.method.num_records}. The sampling rate would be wrong."
        )


def _require_no_table(kernel: Kernel, shape: Tree, records: Record) -> None:
    key = seeded_key(0)
    require_no_table(kernel.init, key, records=records)
    require_no_table(kernel.step, key, shape, records, records=records)


def _unit(records: Record) -> str:
    if records.mask is None:
        return "one record (one row)"
    return f"one person, with at most {records.mask.shape[1]} rows"
