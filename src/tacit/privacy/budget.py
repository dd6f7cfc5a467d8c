"""Budget: what may be spent on a data set, and the ledger that is told what is."""

import math
import secrets
import threading
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol, Self

from dp_accounting import ComposedDpEvent, DpEvent

from tacit import _check, _display
from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning
from tacit.privacy.accounting import GDP, RDP, Accountant
from tacit.privacy.accounting.accountants import DEFAULT_ACCOUNTANT, round_up
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.cost import Cost, event_of
from tacit.privacy.filters import GDPFilter, RDPFilter, Spending

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["Budget", "InMemoryLedger", "Ledger", "Run", "RunRequest"]


@dataclass(frozen=True)
class Budget:
    """The most that may be learnt about one record.

    Guarantee:
      ``allows`` compares an upper bound with the budget, so that what it allows is within the
      budget whenever the accountant is a bound. It looks at costs only, never at records.

    Args:
      epsilon: the largest epsilon; infinity promises nothing.
      delta: the chance that the promise of epsilon fails; well below 1 / (number of records).
      accountant: what turns costs into epsilon, and under which adjacency.

    Example:
      >>> import dp_accounting as dpa
      >>> budget = Budget(epsilon=1.0, delta=1e-5)
      >>> budget.allows(dpa.GaussianDpEvent(4.0)), budget.allows(dpa.GaussianDpEvent(3.0))
      (True, False)
    """

    epsilon: float
    delta: float
    accountant: Accountant = DEFAULT_ACCOUNTANT

    def __post_init__(self) -> None:
        _check.positive(infinite=True, epsilon=self.epsilon)
        _check.fraction(one=False, delta=self.delta)

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        is_private = math.isfinite(self.epsilon)
        return _display.Sheet(
            title="Budget",
            rows=[
                ("epsilon", f"{self.epsilon:g}" if is_private else "infinity"),
                ("delta", f"{self.delta:g}"),
                ("accountant", self.accountant.describe()),
            ],
            warning=_display.warning_of(
                epsilon=self.epsilon, is_secure=True, is_bound=self.accountant.is_bound
            ),
        )

    @classmethod
    def non_private(cls) -> Self:
        """The budget of a run that promises nothing, for debugging and for public data."""
        return cls(epsilon=math.inf, delta=0.5)

    def spent(self, cost: Cost | DpEvent) -> float:
        """The epsilon of a cost at this budget's delta."""
        return self.accountant.epsilon(event_of(cost), delta=self.delta)

    def allows(self, cost: Cost | DpEvent) -> bool:
        """Whether a cost is within the budget."""
        return math.isinf(self.epsilon) or self.spent(cost) <= self.epsilon

    def require(self, cost: Cost | DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless the cost is within the budget."""
        if math.isinf(self.epsilon):
            return
        if not self.allows(cost):
            spent = round_up(self.spent(cost))
            raise BudgetExceededError(
                f"this would cost epsilon {spent} at delta {self.delta:g} "
                f"({self.accountant.name}, adjacency {self.accountant.adjacency}), but the budget "
                f"is {self.epsilon:g}. Use more noise, fewer steps or smaller batches, or a larger "
                "budget."
            )

    def warn_if_delta_is_large(self, num_units: int) -> None:
        """Warns when delta would permit to publish one unit of ``num_units`` outright."""
        _check.positive_integer(num_units=num_units)
        if math.isfinite(self.epsilon) and self.delta >= 1 / num_units:
            warnings.warn(
                f"delta={self.delta:g} is not below 1/{num_units}: a mechanism that publishes one "
                f"random record would pass. Use a delta well below {1 / num_units:.1g}.",
                PrivacyWarning,
                stacklevel=2,
            )


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What a run asks of a ledger before it reads a record.

    Attributes:
      cost: of the whole run; it will be charged in pieces.
      purpose: what it is for, in a few words; public.
      num_steps: how many steps it will make, if it makes steps.
      parent: the run whose checkpoint it goes on from; None for a run from the start.
      parent_step: how many steps that checkpoint had made.
      records: the private table, of which a ledger may keep a salted fingerprint; a ledger looks
        at it only after it has found the cost within budget.
      adjacency: for which its batches are drawn.
    """

    cost: Cost
    purpose: str = "release"
    num_steps: int | None = None
    parent: str | None = None
    parent_step: int | None = None
    records: Any = None
    adjacency: Adjacency = Adjacency.ZERO_OUT

    def __post_init__(self) -> None:
        if not isinstance(self.cost, Cost):
            raise InvalidArgumentError(
                f"cost must be a Cost, which says whether its noise is secret; got {self.cost!r}."
                " Give Cost(event, is_secure=...)."
            )

    def require_adjacency(self, adjacency: Adjacency) -> None:
        """Raises unless a ledger of this adjacency may count the run.

        What add-remove promises holds for batches of a declared number of records, and for these
        nothing else is promised.
        """
        if (self.adjacency is Adjacency.ADD_REMOVE) != (adjacency is Adjacency.ADD_REMOVE):
            raise InvalidArgumentError(
                f"budget.accountant must have the adjacency of the ledger, {adjacency}; got"
                f" {self.adjacency}. Give both the same: of add-remove and another adjacency,"
                " one takes the number of records as private, the other as public."
            )


class Run(Protocol):
    """A run that a ledger has let begin; nothing is paid yet."""

    @property
    def run_id(self) -> str:
        """Names the run; goes into its checkpoints."""

    def charge(self, cost: DpEvent, *, num_steps: int | None = None) -> None:
        """Records a piece of the cost, or raises ``BudgetExceededError`` and records nothing.

        When it returns, the piece is paid for, whatever happens to the process.
        """


class Ledger(Protocol):
    """Is asked for the whole of a run first, and told every cost before the work it pays for."""

    def ask(self, cost: Cost | DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a cost could be paid now; records nothing.

        For work of several runs, such as private bounds and a fit: all of it is asked for before
        the first is paid.
        """

    def begin(self, request: RunRequest) -> Run:
        """Returns the run, or raises ``BudgetExceededError`` if not all of it can be paid."""


class _InMemoryRun(NamedTuple):
    ledger: "InMemoryLedger"
    run_id: str

    def charge(self, cost: DpEvent, *, num_steps: int | None = None) -> None:
        del num_steps
        self.ledger.charge(cost)


@dataclass
class InMemoryLedger:
    """A ledger that lasts as long as the process; `tacit.LedgerFile` is one that stays.

    Guarantee:
      With a budget, the costs recorded are together always within it. With the accountant RDP or
      GDP that holds also for costs chosen after seeing earlier results: they are added up by
      `tacit.privacy.filters`. Any other accountant warns with `PrivacyWarning`.

    Example:
      >>> import dp_accounting as dpa
      >>> ledger = InMemoryLedger(budget=Budget(epsilon=1.0, delta=1e-5, accountant=GDP()))
      >>> ledger.charge(dpa.GaussianDpEvent(5.0))
      >>> ledger.charge(dpa.GaussianDpEvent(5.0))
      Traceback (most recent call last):
      tacit.errors.BudgetExceededError: the ledger refuses: this would bring the epsilon spent ...
      >>> len(ledger.costs)
      1
    """

    budget: Budget | None = None
    costs: list[DpEvent] = field(default_factory=list)
    _lock: threading.Lock = field(
        default_factory=threading.Lock, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget.accountant, RDP | GDP):
            warnings.warn(
                f"the ledger's accountant is {self.budget.accountant.name}, whose bound holds for"
                " costs that were all fixed beforehand. Use RDP or GDP where a run is chosen after"
                " seeing the result of another.",
                PrivacyWarning,
                stacklevel=3,
            )

    def __copy__(self) -> Self:
        # Were a copy charged instead, as scikit-learn's clones would, the cost would be lost.
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        raise InvalidArgumentError(
            "ledger must be a file where other processes charge it, as with n_jobs; got an"
            " InMemoryLedger, which they would charge in vain. Use tacit.LedgerFile."
        )

    def ask(self, cost: Cost | DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a cost could be paid now; records nothing."""
        self._require(cost)

    def begin(self, request: RunRequest) -> Run:
        """Returns the run, or raises ``BudgetExceededError`` if not all of it can be paid."""
        if self.budget is not None:
            request.require_adjacency(self.budget.accountant.adjacency)
        self._require(request.cost)
        return _InMemoryRun(self, secrets.token_hex(8))

    def charge(self, cost: Cost | DpEvent) -> None:
        """Records a cost, or raises ``BudgetExceededError`` and records nothing."""
        with self._lock:
            self._require(cost)
            self.costs.append(event_of(cost))

    def _require(self, cost: Cost | DpEvent) -> None:
        cost = event_of(cost)
        if self.budget is None or math.isinf(self.budget.epsilon):
            return
        accountant = self.budget.accountant
        if not isinstance(accountant, RDP | GDP):
            self.budget.require(ComposedDpEvent([*self.costs, cost]))
            return
        rule = (RDPFilter.of_budget if isinstance(accountant, RDP) else GDPFilter)(
            epsilon=self.budget.epsilon,
            delta=self.budget.delta,
            adjacency=accountant.adjacency,
        )
        spending = Spending.none(rule)
        if self.costs:
            spending = spending.plus(ComposedDpEvent(self.costs))
        spending.require(cost)
