"""A run: chains on a table, declared before a record is read, paid for chunk by chunk."""

import bisect
import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError, PrivacyWarning
from tacit.inference.chains import (
    Chains,
    Checkpoint,
    Feed,
    OnProgress,
    chunks_between,
    feed_of,
    require_shared_chains,
)
from tacit.inference.compilation import Compiled, step_on_table
from tacit.inference.half_precision import Recording
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.budget import Budget, Ledger, Run, RunRequest
from tacit.privacy.clipping.isolation import require_no_table
from tacit.privacy.cost import Cost, event_to_json
from tacit.privacy.stopping import Claim, Declared, claim_of
from tacit.processes import on_coordinator, require_same_everywhere, shared_fresh_key
from tacit.rng import seeded_key
from tacit.tables.base import as_table
from tacit.tables.distributed import describe_mesh, mesh_of
from tacit.typing import Tree

__all__ = ["ChainRun", "Charges", "Course", "Start"]

_NUM_CHUNKS = 20
_NUM_CURVE_POINTS = 8


class Course(NamedTuple):
    """What a run executes; all of it is public, and fixed before a record is read.

    Attributes:
      name: of the method, as a ledger shows it.
      cost_between: ``cost_between(start, stop)`` is the cost of these steps of all chains.
      kept_steps: after how many steps a state is retained; the run ends with the last of them.
      num_chains: how many chains.
      num_records: how many records the method was configured for.
    """

    name: str
    cost_between: Callable[[int, int], DpEvent]
    kept_steps: Sequence[int]
    num_chains: int
    num_records: int

    @property
    def num_steps(self) -> int:
        """How many steps of every chain there are at the end."""
        return self.kept_steps[-1]


class Start(NamedTuple):
    """Where a run begins.

    Attributes:
      step: how many steps of every chain were made before, and are paid for.
      states: the chains' states then, with a leading chain axis; None for new chains.
      retained: what was kept before, and its infos; None where nothing was.
      cost: all that was executed before.
      run_id: what the ledger called the run that led here; None where there was no ledger.
      declared: what was said before the first step; None where nothing was.
    """

    step: int = 0
    states: Tree | None = None
    retained: tuple[Tree, Tree] | None = None
    cost: Cost = Cost.nothing()
    run_id: str | None = None
    declared: Declared | None = None


@dataclass(frozen=True, kw_only=True)
class Charges:
    """What a run owes to a ledger; nothing where there is none.

    Guarantee:
      `begin` raises `BudgetExceededError` before a record is read if the ledger cannot pay for all
      of it. When `pay` returns, the steps are paid for.

    Attributes:
      course: what is executed.
      run: what the ledger has let begin; None where there is none, and on other processes than the
        coordinator, which alone pays.
    """

    course: Course
    run: Run | None

    @classmethod
    def begin(
        cls,
        ledger: Ledger | None,
        course: Course,
        records: Tree,
        *,
        start: Start,
        is_secure: bool,
        adjacency: Adjacency,
    ) -> Self:
        """Asks for all steps from the start on; all processes of a run must call it."""

        def ask() -> Run | None:
            return None if ledger is None else ledger.begin(request)

        is_resumed = start.step > 0
        if ledger is not None and is_resumed and start.run_id is None:
            warnings.warn(
                f"the {start.step} steps before this checkpoint were made without a ledger, and it"
                " is not charged for them now. Charge them by ledger.charge(checkpoint.cost).",
                PrivacyWarning,
                stacklevel=4,
            )
        request = RunRequest(
            cost=Cost(course.cost_between(start.step, course.num_steps), is_secure=is_secure),
            purpose=f"fit {course.name}",
            num_steps=course.num_steps - start.step,
            parent=start.run_id if is_resumed else None,
            parent_step=start.step if is_resumed else None,
            records=records,
            adjacency=adjacency,
        )
        return cls(course=course, run=on_coordinator(ask))

    @property
    def run_id(self) -> str | None:
        """What the ledger calls the run."""
        return None if self.run is None else self.run.run_id

    def pay(self, start: int, stop: int) -> None:
        """Pays for the steps from ``start`` to ``stop``, or raises."""
        on_coordinator(lambda: self._pay(start, stop))

    def _pay(self, start: int, stop: int) -> None:
        if self.run is not None:
            self.run.charge(self.course.cost_between(start, stop), num_steps=stop - start)


@dataclass(frozen=True, kw_only=True)
class ChainRun:
    """A run within its budget, on a table that fits it. No record was read; it can be executed.

    Attributes:
      course: what is executed.
      compiled: the kernel.
      state: the shapes of one chain's state.
      records: the table.
      start: where it begins.
      claim: what may be stated of the whole run.
      seed: of the key, for tests and examples; None draws a fresh one.
      feed: how it gets its table.
      chunk_steps: how many steps are dispatched at once.
    """

    course: Course
    compiled: Compiled
    state: Tree
    records: Tree
    start: Start
    claim: Claim
    seed: int | None
    feed: Feed
    chunk_steps: int

    @classmethod
    def within(
        cls,
        budget: Budget,
        course: Course,
        compiled: Compiled,
        records: Tree,
        *,
        start: Start,
        seed: int | None,
        chunk_steps: int | None = None,
    ) -> Self:
        """Returns a run that the budget allows, with all that led to its start, or raises."""
        num_steps, kernel = course.num_steps, compiled.kernel
        _require_fitting_table(course, records)
        state = jax.eval_shape(kernel.init, seeded_key(0))
        _require_fitting_start(course, state, start)
        chunk_steps = math.ceil(num_steps / _NUM_CHUNKS) if chunk_steps is None else chunk_steps
        _check.positive_integer(chunk_steps=chunk_steps)
        feed = feed_of(records, kernel, state, num_chains=course.num_chains)
        made = course.cost_between(start.step, num_steps)
        cost = start.cost + Cost(made, is_secure=seed is None)
        declared = start.declared
        if start.step == 0 and declared is None:
            declared = Declared(num_steps, cost.event)
        claim = claim_of(cost.event, num_steps=num_steps, declared=declared, budget=budget)
        claim.budget.require(claim.cost)
        _warn_unless_bound(budget)
        return cls(
            course=course,
            compiled=compiled,
            state=state,
            records=records,
            start=start,
            claim=claim,
            seed=seed,
            feed=feed,
            chunk_steps=min(chunk_steps, feed.max_steps or chunk_steps, num_steps - start.step),
        )

    def cost_until(self, step: int) -> Cost:
        """Returns the cost of all that led to a step of this run."""
        made = self.course.cost_between(self.start.step, step)
        return self.start.cost + Cost(made, is_secure=self.seed is None)

    def execute(
        self,
        *,
        ledger: Ledger | None = None,
        progress: OnProgress | None = None,
        on_chunk: Callable[[Checkpoint], None] | None = None,
        recording: Recording | None = None,
    ) -> Checkpoint:
        """Makes all steps and returns where they end.

        Guarantee:
          A kernel that closes over the table is refused, and the ledger asked for all steps, before
          a record is read. Batches, masks and noise come from a key that is drawn for this call,
          shared by all processes, and neither stored nor given out. Each chunk of steps is paid
          for before it is dispatched.

        Args:
          ledger: is asked first, and charged for each chunk.
          progress: is told steps and epsilon after each chunk.
          on_chunk: receives a checkpoint after each chunk.
          recording: where retained states are kept; None for memory.
        """
        course, start = self.course, self.start
        self._require_no_table()
        self._require_agreement()
        charges = Charges.begin(
            ledger,
            course,
            self.records,
            start=start,
            is_secure=self.seed is None,
            adjacency=self.claim.budget.accountant.adjacency,
        )
        key = shared_fresh_key() if self.seed is None else seeded_key(self.seed)
        chains = Chains(
            self.compiled,
            key,
            num_chains=course.num_chains,
            kept_steps=course.kept_steps,
            states=start.states,
            retained=start.retained,
            recording=recording,
            mesh=mesh_of(self.records),
        )
        chunks = chunks_between(start.step, course.num_steps, self.chunk_steps, course.kept_steps)
        stops = [chunk[-1] for chunk in chunks]
        spent_at = None if progress is None else self._epsilon_curve(stops)

        def checkpoint_at(step: int) -> Checkpoint:
            return Checkpoint(
                step,
                chains.states,
                *chains.retained,
                self.cost_until(step),
                charges.run_id,
                self.claim.declared,
            )

        def tell(step: int) -> None:
            if on_chunk is not None:
                on_chunk(checkpoint_at(step))
            if progress is not None and spent_at is not None:
                progress(step=step, num_steps=course.num_steps, epsilon=spent_at(step))

        spans = list(zip([start.step, *stops], stops, strict=False))
        with contextlib.closing(self.feed.tables(chains.keys, spans, self.chunk_steps)) as tables:
            for chunk, (before, stop), table in zip(chunks, spans, tables, strict=True):
                charges.pay(before, stop)
                chains.take_on(table, [before, *chunk])
                on_coordinator(functools.partial(tell, stop))
        return checkpoint_at(course.num_steps)

    def _epsilon_curve(self, stops: list[int]) -> Callable[[int], float]:
        """Returns epsilon after a number of steps, from a few values computed once, rounded up."""
        every = math.ceil(len(stops) / _NUM_CURVE_POINTS)
        points = sorted({*stops[::-every]})
        values = [self.claim.budget.spent(self.cost_until(point)) for point in points]
        return lambda step: values[bisect.bisect_left(points, step)]

    def _require_no_table(self) -> None:
        key, kernel = seeded_key(0), self.compiled.kernel
        require_no_table(kernel.init, key, records=self.records)
        step = functools.partial(step_on_table, kernel)
        require_no_table(step, key, self.state, self.records, records=self.records)

    def _require_agreement(self) -> None:
        """Raises unless all processes of the run are about to do the same."""
        course = self.course
        whole = self.cost_until(course.num_steps).event
        require_same_everywhere(
            records=str((course.num_records, as_table(self.records).record)),
            mesh=describe_mesh(mesh_of(self.records)),
            plan=str((event_to_json(whole), tuple(course.kept_steps), self.chunk_steps)),
            states=str((course.num_chains, self.state)),
            seed=str(self.seed),
            resume=str(self.start.step),
        )


def _require_fitting_table(course: Course, records: Tree) -> None:
    found = as_table(records).num_records
    if found != course.num_records:
        raise InvalidArgumentError(
            f"records has {found} rows, but the method's sampling was configured for"
            f" num_records={course.num_records}. The sampling rate would be wrong."
        )
    require_shared_chains(course.num_chains, mesh_of(records))


def _require_fitting_start(course: Course, state: Tree, start: Start) -> None:
    wanted = jax.tree.map(lambda leaf: (course.num_chains, *leaf.shape), state)
    found = wanted if start.states is None else jax.tree.map(jnp.shape, start.states)
    if found != wanted:
        raise InvalidArgumentError(
            f"resume does not fit the plan and model: its states have shapes {found}, where"
            f" {wanted} is wanted. Resume with the plan and model of the run that made it."
        )
    if start.step >= course.num_steps:
        raise InvalidArgumentError(
            f"resume is at step {start.step}, but the plan ends at step {course.num_steps}."
            " Nothing is left."
        )


def _warn_unless_bound(budget: Budget) -> None:
    if math.isfinite(budget.epsilon) and not budget.accountant.is_bound:
        warnings.warn(
            f"the accountant {budget.accountant.name} gives no upper bound, so the statement is NOT"
            " A GUARANTEE. Use PLD or RDP for results that are published.",
            PrivacyWarning,
            stacklevel=4,
        )
