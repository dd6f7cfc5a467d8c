"""Charges: asks a ledger for a whole plan, then pays for it chunk by chunk."""

import warnings
from dataclasses import dataclass
from typing import Self

import jax

from tacit import _tree
from tacit.errors import PrivacyWarning
from tacit.inference.checkpoint import Checkpoint
from tacit.inference.compiled import compiled_kernel
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.privacy.budget import Ledger, Run, RunRequest
from tacit.privacy.statement import tail_of
from tacit.processes import on_coordinator
from tacit.rng import seeded_key
from tacit.typing import Tree

__all__ = ["Charges", "num_values_of", "tail_of_steps"]


@dataclass(frozen=True, kw_only=True)
class Charges:
    """What a run of a plan owes to a ledger; nothing where there is none.

    Guarantee:
      `begin` raises `BudgetExceededError` before a record is read if the ledger cannot pay for all
      of it. When `pay` returns, the steps are paid for.

    Attributes:
      plan: what is run.
      num_values: how many numbers the largest release has.
      run: what the ledger has let begin; None where there is none, and on other processes than the
        coordinator, which alone pays.
    """

    plan: Plan
    num_values: int
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
        num_values: int,
        resume: Checkpoint | None,
        is_secure: bool,
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
        cost = plan.cost_between(start, stop)
        request = RunRequest(
            cost=cost,
            tail=tail_of(cost, num_values=num_values),
            purpose=f"fit {type(plan.method).__name__}",
            num_steps=stop - start,
            parent=None if parent is None else parent.run_id,
            parent_step=None if parent is None else parent.step,
            is_secure=is_secure,
            records=records,
        )
        return cls(plan=plan, num_values=num_values, run=on_coordinator(ask))

    @property
    def run_id(self) -> str | None:
        """What the ledger calls the run."""
        return None if self.run is None else self.run.run_id

    def pay(self, start: int, stop: int) -> None:
        """Pays for the steps from ``start`` to ``stop``, or raises."""
        on_coordinator(lambda: self._pay(start, stop))

    def _pay(self, start: int, stop: int) -> None:
        if self.run is not None:
            cost = self.plan.cost_between(start, stop)
            tail = tail_of(cost, num_values=self.num_values)
            self.run.charge(cost, tail=tail, num_steps=stop - start)


def num_values_of(plan: Plan, model: Model) -> int:
    """Returns how many numbers the largest release of a plan's steps has."""
    kernel = compiled_kernel(plan.method, model).kernel
    if kernel.num_values is not None:
        return kernel.num_values
    return _tree.size(jax.eval_shape(kernel.init, seeded_key(0)))


def tail_of_steps(plan: Plan, model: Model) -> float:
    """Returns what the cut tail of the noise of a plan's own steps takes of delta.

    No record is needed: with this a ledger can be asked for a plan before anything is read.
    """
    cost = plan.cost_between(0, plan.kept_steps[-1])
    return tail_of(cost, num_values=num_values_of(plan, model))
