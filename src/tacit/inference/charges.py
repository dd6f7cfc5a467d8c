"""Charges: asks a ledger for a whole plan, then pays for it chunk by chunk."""

import warnings
from dataclasses import dataclass
from typing import Self

from tacit.errors import PrivacyWarning
from tacit.inference.checkpoint import Checkpoint
from tacit.inference.plan import Plan
from tacit.privacy.adjacency import Adjacency
from tacit.privacy.budget import Ledger, Run, RunRequest
from tacit.privacy.cost import Cost
from tacit.processes import on_coordinator
from tacit.typing import Tree

__all__ = ["Charges"]


@dataclass(frozen=True, kw_only=True)
class Charges:
    """What a run of a plan owes to a ledger; nothing where there is none.

    Guarantee:
      `begin` raises `BudgetExceededError` before a record is read if the ledger cannot pay for all
      of it. When `pay` returns, the steps are paid for.

    Attributes:
      plan: what is run.
      run: what the ledger has let begin; None where there is none, and on other processes than the
        coordinator, which alone pays.
    """

    plan: Plan
    run: Run | None

    @classmethod
    def begin(
        cls,
        ledger: Ledger | None,
        plan: Plan,
        records: Tree,
        *,
        start: int,
        stop: int,
        resume: Checkpoint | None,
        is_secure: bool,
        adjacency: Adjacency,
    ) -> Self:
        """Asks for the steps from ``start`` to ``stop``; all processes of a run must call it."""

        def ask() -> Run | None:
            return None if ledger is None else ledger.begin(request)

        parent = resume if start > 0 else None
        if ledger is not None and parent is not None and parent.run_id is None:
            warnings.warn(
                f"the {start} steps before this checkpoint were made without a ledger, and it is"
                " not charged for them now. Charge them by ledger.charge(checkpoint.cost).",
                PrivacyWarning,
                stacklevel=3,
            )
        request = RunRequest(
            cost=Cost(plan.cost_between(start, stop), is_secure=is_secure),
            purpose=f"fit {type(plan.method).__name__}",
            num_steps=stop - start,
            parent=None if parent is None else parent.run_id,
            parent_step=None if parent is None else parent.step,
            records=records,
            adjacency=adjacency,
        )
        return cls(plan=plan, run=on_coordinator(ask))

    @property
    def run_id(self) -> str | None:
        """What the ledger calls the run."""
        return None if self.run is None else self.run.run_id

    def pay(self, start: int, stop: int) -> None:
        """Pays for the steps from ``start`` to ``stop``, or raises."""
        on_coordinator(lambda: self._pay(start, stop))

    def _pay(self, start: int, stop: int) -> None:
        if self.run is not None:
            self.run.charge(self.plan.cost_between(start, stop), num_steps=stop - start)
