"""The handle of one data set: a run asks it first, and is then charged by it."""

import secrets
import warnings
from dataclasses import dataclass

from dp_accounting import DpEvent

from tacit.errors import PrivacyWarning
from tacit.privacy.budget import Budget, RunRequest
from tacit.privacy.cost import Cost, event_of
from tacit.privacy.events import event_to_json
from tacit.privacy.filters import Filter
from tacit.privacy.ledger.book import Book
from tacit.privacy.ledger.fingerprint import fingerprint_of
from tacit.privacy.ledger.state import DataSetRecord, LedgerState
from tacit.privacy.spending import FilterAccountant, Spending

__all__ = ["DataSetLedger", "LedgerRun"]


@dataclass(frozen=True)
class LedgerRun:
    """A run that the ledger has let begin.

    Attributes:
      data_set: whose budget it draws on.
      run_id: its name.
      purpose: what for.
    """

    data_set: "DataSetLedger"
    run_id: str
    purpose: str

    def charge(self, cost: DpEvent, *, num_steps: int | None = None) -> None:
        """Pays for a piece, durably, or raises ``BudgetExceededError`` and pays nothing."""
        owner = self.data_set
        with owner.book.writing() as (state, append):
            # All runs of all processes are in this state, and none can be added now.
            owner.require(state, cost)
            append(
                "charge",
                {
                    "data_set": owner.name,
                    "run_id": self.run_id,
                    "purpose": self.purpose,
                    "num_steps": num_steps,
                    "cost": event_to_json(cost),
                },
            )


@dataclass(frozen=True)
class DataSetLedger:
    """One data set of a `LedgerFile`; ``fit(..., ledger=...)`` takes it.

    Guarantee:
      `begin` looks at the budget before it looks at a record, and reserves nothing: a run that was
      let begin can still be refused a piece if others were charged in between.

    Attributes:
      book: the file it is in.
      name: what its owner calls it.
    """

    book: Book
    name: str

    @property
    def rule(self) -> Filter:
        """The filter, which holds the budget."""
        return self._record().rule

    @property
    def spending(self) -> Spending:
        """What was paid so far."""
        return self._record().spending

    @property
    def spent(self) -> float:
        """The part of epsilon that is used up."""
        return self.spending.epsilon

    def budget(self) -> Budget:
        """What may still be spent, for `calibrate`: it counts what was spent before as spent.

        Use it to find the noise or the number of steps. The statement of a run is about that run,
        so give `fit` a budget of its own.
        """
        spending = self.spending
        rule = spending.rule
        return Budget(rule.epsilon, rule.delta, FilterAccountant(spending))

    def ask(self, cost: Cost | DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a cost could be paid now; records nothing."""
        self.require(self.book.state(), event_of(cost))

    def begin(self, request: RunRequest) -> LedgerRun:
        """Notes that a run begins, or raises ``BudgetExceededError`` if not all of it can be paid.

        Warns with `PrivacyWarning` when the records look unlike those of earlier runs, or like
        those of another data set, and when the checkpoint it goes on from was not paid for here.
        """
        state = self.book.state()
        request.require_adjacency(self.record_in(state).rule.adjacency)
        self.require(state, request.cost.event)
        own_print = (
            None if request.records is None else fingerprint_of(request.records, salt=state.salt)
        )
        run_id = secrets.token_hex(8)
        with self.book.writing() as (state, append):
            self.require(state, request.cost.event)
            doubts = _doubts(state, self.name, request, own_print)
            append(
                "run",
                {
                    "data_set": self.name,
                    "run_id": run_id,
                    "purpose": request.purpose,
                    "num_steps": request.num_steps,
                    "parent": request.parent,
                    "parent_step": request.parent_step,
                    "is_secure": request.cost.is_secure,
                    "fingerprint": own_print,
                },
            )
        for doubt in doubts:
            warnings.warn(doubt, PrivacyWarning, stacklevel=2)
        return LedgerRun(self, run_id, request.purpose)

    def charge(self, cost: Cost | DpEvent, *, purpose: str = "release") -> None:
        """Pays for something made outside `fit`, as a run of its own."""
        cost = cost if isinstance(cost, Cost) else Cost(cost)
        run = self.begin(RunRequest(cost=cost, purpose=purpose, adjacency=self.rule.adjacency))
        run.charge(cost.event)

    def require(self, state: LedgerState, cost: DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a state lets a cost pass."""
        self.record_in(state).spending.require(
            cost,
            where=f"the ledger {self.book.path} of {self.name!r}",
            remedy=(
                "Use more noise or fewer steps; calibrate(plan, ledger.budget()) finds what still"
                " fits."
            ),
        )

    def record_in(self, state: LedgerState) -> DataSetRecord:
        """What a state says of this data set."""
        return state.data_sets[self.name]

    def _record(self) -> DataSetRecord:
        return self.record_in(self.book.state())


def _doubts(state: LedgerState, name: str, request: RunRequest, own_print: str | None) -> list[str]:
    record, doubts = state.data_sets[name], []
    if request.parent is not None and request.parent not in record.runs:
        doubts.append(
            f"the checkpoint is of run {request.parent}, which the ledger does not know under"
            f" {name!r}: what led to it was not charged here. Charge it by"
            " ledger.charge(checkpoint.cost)."
        )
    if own_print is None:
        return doubts
    if record.fingerprints and own_print not in record.fingerprints:
        doubts.append(
            f"the records do not look like those of earlier runs on {name!r}. One name stands for"
            " one set of people: if these are others, register them under a name of their own; if"
            " they are the same in another form, go on."
        )
    twins = [
        other.name
        for other in state.data_sets.values()
        if other.name != name and own_print in other.fingerprints
    ]
    if twins:
        doubts.append(
            f"the records look the same as those of {', '.join(map(repr, twins))}. Budgets of two"
            " names on the same people add up; use one name."
        )
    return doubts
