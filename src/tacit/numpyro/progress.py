"""Progress: many steps at once, and what one DPSVI has done so far, told to its ledger."""

import warnings
from dataclasses import replace
from typing import cast

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning
from tacit.inference.checkpoint import Checkpoint, OnProgress
from tacit.inference.fit import fit
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.numpyro.method import PrivateLoss, StepState
from tacit.numpyro.prepared import Prepared, is_traced
from tacit.numpyro.state import DPSVIState
from tacit.privacy.budget import Ledger, Run, RunRequest
from tacit.privacy.cost import Cost
from tacit.typing import Array, Record

__all__ = ["Counter", "run_steps"]


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

    def count_evaluation(self, prepared: Prepared, state: DPSVIState, records: Record) -> int:
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

    def charge(self, prepared: Prepared, cost: DpEvent, state: DPSVIState) -> None:
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

    def note_steps(self, prepared: Prepared, start: int, num_steps: int) -> None:
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


def run_steps(
    prepared: Prepared,
    state: DPSVIState,
    num_steps: int,
    records: Record,
    *,
    skip_non_finite: bool,
    seed: int | None,
    ledger: Ledger | None,
    run_id: str | None,
    progress: OnProgress | None,
) -> tuple[DPSVIState, Array, str | None]:
    """Returns the state after so many steps more, the loss of each, and what the ledger calls it.

    Guarantee:
      As `tacit.fit`: budget and ledger are asked before any record is read, the key is fresh, and
      the ledger is charged before each chunk.
    """
    method = replace(
        prepared.resolved.method,
        skip_non_finite=skip_non_finite,
        # `fit` makes a state to see its shapes: it must be one of the same kind of keys.
        key_impl=jax.random.key_impl(state.rng_key),
    )
    start = int(state.step)
    plan = Plan(
        method=method,
        num_steps=start + num_steps,
        burn_in=start,
        thinning=1 if method.has_losses else None,
    )
    made = fit(
        plan,
        # `fit` hands it on to the method's `build` and looks at nothing of it.
        cast(Model, prepared.program),
        records,
        budget=prepared.resolved.budget,
        seed=seed,
        ledger=ledger,
        progress=progress,
        resume=Checkpoint(
            step=start,
            states=jax.tree.map(lambda leaf: leaf[None], state.public),
            kept=None,
            info=None,
            cost=Cost.nothing() if start == 0 else Cost(method.cost(start), is_secure=seed is None),
            run_id=run_id,
            declared=prepared.declared_of(state),
        ),
    ).checkpoint
    last = StepState(*jax.tree.map(lambda leaf: leaf[0], made.states))
    losses = made.info.loss[0] if method.has_losses else jnp.full(num_steps, jnp.nan)
    return state.moved_to(last), losses, made.run_id
