"""Progress: steps of one DPSVI, alone or many at once, charged, counted and stated."""

import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent

from tacit.compiling import compiled_once
from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning
from tacit.inference.chains import OnProgress
from tacit.inference.evidence import histogram_in
from tacit.inference.run import ChainRun, Course, Start
from tacit.numpyro.method import DPSVIState, PrivateLoss, StepState
from tacit.numpyro.program import PreparedProgram
from tacit.numpyro.settings import is_traced
from tacit.privacy.budget import Ledger, Run, RunRequest
from tacit.privacy.clipping.slack import NormHistogram
from tacit.privacy.cost import Cost
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import Sampling, UnstatedBatch
from tacit.privacy.statement import Statement
from tacit.privacy.statement.construction import make_statement
from tacit.privacy.stopping import claim_of
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Array, Scalar

__all__ = ["Counter", "evaluated_loss", "run_steps", "statement_of", "take_step"]


class Counter:
    """Counts steps and evaluations, charges them, and warns of what a statement cannot see.

    Args:
      ledger: is charged, if there is one.
      loss: which losses were asked for.
      is_seeded: whether keys are known, so that nothing is promised.
    """

    def __init__(self, *, ledger: Ledger | None, loss: PrivateLoss | None, is_seeded: bool) -> None:
        self._ledger, self._loss, self._is_seeded = ledger, loss, is_seeded
        self.run_id: str | None = None
        self._run: Run | None = None
        self._num_evaluations = 0
        self._has_paid_evaluations = False
        self._furthest = 0
        self._has_warned = False

    @property
    def has_ledger(self) -> bool:
        """Whether steps are charged."""
        return self._ledger is not None

    def count_evaluation(
        self, prepared: PreparedProgram, state: DPSVIState, records: list[Array]
    ) -> int:
        """Counts an evaluation about to be made, and pays for all with the first; its number."""
        if is_traced((state, records)):
            raise InvalidArgumentError(
                "evaluate must be called outside jit, so that evaluations can be counted."
            )
        paid = 0 if self._loss is None else self._loss.num_evaluations
        if self._num_evaluations >= paid:
            raise BudgetExceededError(
                f"all {paid} evaluations that were paid for are made. Give PrivateLoss a larger"
                " num_evaluations."
            )
        if not self._has_paid_evaluations:
            # They are charged with a first step. This state has none, or another object made it.
            self.charge(prepared, prepared.resolved.method.cost_of_evaluations, state)
            self._has_paid_evaluations = True
        self._num_evaluations += 1
        return self._num_evaluations

    def charge(self, prepared: PreparedProgram, cost: DpEvent, state: DPSVIState) -> None:
        """Charges the ledger, which is asked first for all steps that the budget is for."""
        if self._ledger is None:
            return
        if self._run is None:
            step = int(state.step)
            method, last = prepared.resolved.method, prepared.resolved.max_steps
            left = 1 if last is None else max(1, last - step)
            self._run = self._ledger.begin(
                RunRequest(
                    cost=Cost(method.cost(left, start=step), is_secure=not self._is_seeded),
                    purpose="DPSVI, single steps",
                    num_steps=None if last is None else left,
                    adjacency=prepared.resolved.budget.accountant.adjacency,
                )
            )
            self.run_id = self._run.run_id
        self._run.charge(cost)

    def note_steps(self, prepared: PreparedProgram, start: int, num_steps: int) -> None:
        """Notes steps about to be made; warns where they do not go on from the last ones."""
        is_private = prepared.resolved.method.release.is_private
        # With a seed nothing is promised anyway.
        if start < self._furthest and is_private and not self._is_seeded:
            warnings.warn(
                f"{self._furthest} steps were made with this DPSVI, and these begin again after"
                f" {start}. A statement counts the steps that led to one state: of what begins"
                " again publish one, or add up the costs of all; a ledger does.",
                PrivacyWarning,
                stacklevel=4,
            )
        self._furthest = max(self._furthest, start + num_steps)
        self._has_paid_evaluations |= start == 0

    def warn_unless(self, has_loss: bool) -> None:
        """Warns the caller of a public method, once, that there is no loss."""
        if has_loss or self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            "the loss is NaN: a loss of private records is a release of its own. Ask for one, and"
            " pay for it, by DPSVI(..., loss_release=PrivateLoss(clip=...)).",
            PrivacyWarning,
            stacklevel=3,
        )


def take_step(
    prepared: PreparedProgram,
    counter: Counter,
    state: DPSVIState,
    records: list[Array],
    mask: Array | None,
    *,
    skip_non_finite: bool,
) -> tuple[DPSVIState, Scalar]:
    """Takes one step within the budget, paid for where there is a ledger."""
    if is_traced((state, records, mask)):
        if counter.has_ledger:
            raise InvalidArgumentError(
                "update must be called outside jit where there is a ledger, which is charged"
                " before each step. Use run, which charges each chunk of steps."
            )
        return prepared.step_within_budget(state, records, mask, skip_non_finite=skip_non_finite)
    step = int(state.step)
    prepared.require_own(state)
    prepared.require_steps(step, 1)
    counter.note_steps(prepared, step, 1)
    counter.charge(prepared, prepared.resolved.method.cost(1, start=step), state)
    # A key of its own for each call, so that no state can be used twice with one noise.
    key = fresh_key() if prepared.seed is None else jax.random.fold_in(state.private_key, step)
    return prepared.compiled_step(key, state, records, mask, skip_non_finite=skip_non_finite)


def evaluated_loss(
    prepared: PreparedProgram,
    counter: Counter,
    state: DPSVIState,
    records: list[Array],
    mask: Array | None,
) -> Scalar:
    """Returns the loss on the records: one of the evaluations that were asked for and paid for."""
    key = fresh_key()
    if prepared.resolved.method.release.is_private:
        number = counter.count_evaluation(prepared, state, records)
        if prepared.seed is not None:
            key = jax.random.fold_in(seeded_key(prepared.seed), number)
    return prepared.compiled_loss(key, state, records, mask)


def run_steps(
    prepared: PreparedProgram,
    state: DPSVIState,
    num_steps: int,
    records: list[Array],
    *,
    skip_non_finite: bool,
    ledger: Ledger | None,
    run_id: str | None,
    progress: OnProgress | None,
) -> tuple[DPSVIState, Array, str | None]:
    """Returns the state after so many steps more, the loss of each, and what the ledger calls it.

    Guarantee:
      As `tacit.fit`: budget and ledger are asked before any record is read, the key is fresh, and
      the ledger is charged before each chunk.
    """
    method = prepared.resolved.method
    start, is_secure, budget = int(state.step), prepared.seed is None, prepared.resolved.budget
    stop = start + num_steps
    course = Course(
        name=type(method).__name__,
        cost_between=lambda start, stop: method.cost(stop - start, start=start),
        # Of each step the loss is kept, where there is one.
        kept_steps=range(start + 1, stop + 1) if method.has_losses else (stop,),
        num_chains=1,
        num_records=method.num_records,
    )
    run = ChainRun.within(
        budget,
        course,
        prepared.compiled(state, skip_non_finite=skip_non_finite),
        records,
        start=Start(
            step=start,
            states=_as_chains(state.public),
            cost=Cost.nothing() if start == 0 else Cost(method.cost(start), is_secure=is_secure),
            run_id=run_id,
            declared=prepared.declared_of(state),
        ),
        seed=prepared.seed,
    )
    made = run.execute(ledger=ledger, progress=progress)
    losses = made.info.loss[0] if method.has_losses else _no_losses(num_steps)
    return state.moved_to(_of_first_chain(made.states)), losses, made.run_id


@compiled_once
def _as_chains(state: StepState) -> StepState:
    return StepState(*jax.tree.map(lambda leaf: leaf[None], state))


@compiled_once
def _of_first_chain(states: StepState) -> StepState:
    return StepState(*jax.tree.map(lambda leaf: leaf[0], states))


def _no_losses(num_steps: int) -> Array:
    return jax.device_put(np.full(num_steps, np.nan, jnp.result_type(float)))


def statement_of(prepared: PreparedProgram, state: DPSVIState, *, is_charged: bool) -> Statement:
    """Returns the privacy statement of the steps that led to a state, wherever they ended."""
    prepared.require_own(state)
    method, budget, step = prepared.resolved.method, prepared.resolved.budget, int(state.step)
    claim = claim_of(
        method.cost(step), num_steps=step, declared=prepared.declared_of(state), budget=budget
    )
    statement = make_statement(
        cost=Cost(claim.cost, is_secure=prepared.seed is None),
        budget=claim.budget,
        unit="one record (one row)",
        num_units=method.public_records,
        method=method,
        num_steps=step,
        length=claim.length,
        is_charged=is_charged,
    )
    norms = _norms_in(state, method.release)
    if norms is not None:
        statement = replace(statement, norms=norms.to_json())
    if prepared.resolved.is_table:
        return statement
    assumption = _assumption(method.release.sampling)
    return replace(statement, not_protected=f"{statement.not_protected}; {assumption}")


def _norms_in(state: DPSVIState, release: GaussianSum) -> NormHistogram | None:
    """Returns how large contributions were in the steps that led to a state."""
    if state.evidence is None:
        return None
    return histogram_in(jax.tree.map(lambda leaf: leaf[None], state.evidence), release)


def _assumption(sampling: Sampling) -> str:
    if isinstance(sampling, UnstatedBatch):
        return (
            "ASSUMED, not checked: the user's own batches hold each record at most once and do not"
            " depend on its values (no amplification is claimed)"
        )
    return f"ASSUMED, not checked: the user's own batches were drawn as {sampling!r}"
