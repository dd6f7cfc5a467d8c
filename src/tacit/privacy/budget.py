"""Budget: what may be spent on a data set, and the hook that is told what is."""

import math
import warnings
from dataclasses import dataclass, field
from typing import Protocol, Self

from dp_accounting import ComposedDpEvent, DpEvent

from tacit import _check
from tacit.errors import BudgetExceededError, PrivacyWarning
from tacit.privacy.accounting import DEFAULT_ACCOUNTANT, GDP, RDP, Accountant, round_up

__all__ = ["Budget", "InMemoryLedger", "Ledger"]


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

    @classmethod
    def non_private(cls) -> Self:
        """The budget of a run that promises nothing, for debugging and for public data."""
        return cls(epsilon=math.inf, delta=0.5)

    def spent(self, cost: DpEvent, *, tail: float = 0.0) -> float:
        """The epsilon of a cost at this budget's delta.

        Args:
          cost: what is made.
          tail: how much of delta the noise's cut tail takes; epsilon is that of the rest.
        """
        if tail >= self.delta:
            return math.inf
        return self.accountant.epsilon(cost, delta=self.delta - tail)

    def allows(self, cost: DpEvent, *, tail: float = 0.0) -> bool:
        """Whether a cost is within the budget."""
        return math.isinf(self.epsilon) or self.spent(cost, tail=tail) <= self.epsilon

    def require(self, cost: DpEvent, *, tail: float = 0.0) -> None:
        """Raises ``BudgetExceededError`` unless the cost is within the budget."""
        if math.isinf(self.epsilon):
            return
        if tail >= self.delta:
            raise BudgetExceededError(
                f"the noise multiplier is too small for a finite guarantee at delta {self.delta:g}:"
                f" the noise has a largest magnitude, and that alone may add {tail:.1g} to delta."
                " Use more noise or a larger delta."
            )
        if not self.allows(cost, tail=tail):
            spent = round_up(self.spent(cost, tail=tail))
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


class Ledger(Protocol):
    """Is told every cost before the work that it pays for begins."""

    def charge(self, cost: DpEvent) -> None:
        """Records a cost, or raises ``BudgetExceededError`` and records nothing."""


@dataclass
class InMemoryLedger:
    """A ledger that lasts as long as the process.

    Guarantee:
      With a budget, the costs recorded are together always within it. Costs that were chosen
      after seeing earlier results need an accountant that permits that, RDP or GDP; any other
      warns with `PrivacyWarning`.

    Example:
      >>> import dp_accounting as dpa
      >>> ledger = InMemoryLedger(budget=Budget(epsilon=1.0, delta=1e-5, accountant=GDP()))
      >>> ledger.charge(dpa.GaussianDpEvent(5.0))
      >>> ledger.charge(dpa.GaussianDpEvent(5.0))
      Traceback (most recent call last):
      tacit.errors.BudgetExceededError: this would cost epsilon 1.061 at delta 1e-05 ...
      >>> len(ledger.costs)
      1
    """

    budget: Budget | None = None
    costs: list[DpEvent] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget.accountant, RDP | GDP):
            warnings.warn(
                f"the ledger's accountant is {self.budget.accountant.name}, whose bound holds for"
                " costs that were all fixed beforehand. Use RDP or GDP where a run is chosen after"
                " seeing the result of another.",
                PrivacyWarning,
                stacklevel=3,
            )

    def charge(self, cost: DpEvent) -> None:
        """Records a cost, or raises ``BudgetExceededError`` and records nothing."""
        if self.budget is not None:
            self.budget.require(ComposedDpEvent([*self.costs, cost]))
        self.costs.append(cost)
