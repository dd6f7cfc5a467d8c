"""Spending: what was paid on one data set, and whether a filter lets more be paid."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check
from tacit.errors import BudgetExceededError
from tacit.privacy.accounting import round_up
from tacit.privacy.adjacency import Adjacency
from tacit.privacy.filters import Filter

__all__ = ["FilterAccountant", "Spending"]


@dataclass(frozen=True)
class Spending:
    """What was paid so far under a filter; immutable, so that asking costs nothing.

    Guarantee:
      Only what `require` lets pass may be paid; then all of it together keeps the filter's promise.

    Attributes:
      rule: the filter.
      total: what the costs add up to.
      num_charges: how many costs there were.
      delta: the part of the filter's delta that costs may use: all of it, except in a ledger file
        that set some aside (`tacit.privacy.ledger.state`).

    Example:
      >>> import dp_accounting as dpa
      >>> from tacit.privacy.filters import GDPFilter
      >>> spending = Spending.none(GDPFilter(epsilon=1.0, delta=1e-5))
      >>> round(spending.plus(dpa.GaussianDpEvent(5.0)).epsilon, 2)
      0.73
    """

    rule: Filter
    total: NDArray[np.float64]
    num_charges: int
    delta: float

    @classmethod
    def none(cls, rule: Filter) -> Self:
        """Nothing paid yet."""
        return cls(rule, rule.nothing(), 0, rule.delta)

    def plus(self, cost: DpEvent) -> Self:
        """What it would be with one more cost."""
        return self.plus_weight(self.rule.weigh(cost))

    def plus_weight(self, weight: NDArray[np.float64]) -> Self:
        """The same for a cost that the filter has weighed."""
        return replace(self, total=self.total + weight, num_charges=self.num_charges + 1)

    @property
    def epsilon(self) -> float:
        """The part of the budget's epsilon that is used up."""
        return self.rule.spent(self.total, delta=self.delta) if self.total.any() else 0.0

    @property
    def is_within_budget(self) -> bool:
        """Whether the filter's promise holds for it."""
        return self.epsilon <= self.rule.epsilon

    def require(
        self,
        cost: DpEvent,
        *,
        where: str = "the ledger",
        remedy: str = "Use more noise or fewer steps.",
    ) -> Self:
        """Returns the spending with a cost, or raises `BudgetExceededError` if it is too much.

        Args:
          cost: what would be made.
          where: what refuses, for the message.
          remedy: what to do, for the message.
        """
        after = self.plus(cost)
        if after.is_within_budget:
            return after
        rule = self.rule
        raise BudgetExceededError(
            f"{where} refuses: this would bring the epsilon spent from {round_up(self.epsilon)} to"
            f" {round_up(after.epsilon)}, and the budget is {rule.epsilon:g} at delta"
            f" {rule.delta:g} ({rule.name}, adjacency {rule.adjacency}). Nothing was charged."
            f" {remedy}"
        )


@dataclass(frozen=True)
class FilterAccountant:
    """Accounts for a cost on top of what was paid before, so that `calibrate` finds what fits.

    Guarantee:
      A cost whose epsilon is within the filter's budget is one that the ledger will pay, unless
      something else is paid in between.
    """

    name: ClassVar[str] = "filter over all runs"
    is_bound: ClassVar[bool] = True

    before: Spending

    @property
    def adjacency(self) -> Adjacency:
        """Which data sets are neighbours."""
        return self.before.rule.adjacency

    def epsilon(self, cost: DpEvent, *, delta: float) -> float:
        """The epsilon of all that was paid and of this cost."""
        _check.fraction(one=False, delta=delta)
        after = self.before.plus(cost)
        return after.rule.spent(after.total, delta=min(delta, after.delta))

    def delta(self, cost: DpEvent, *, epsilon: float) -> float:
        """The delta of all that was paid and of this cost."""
        _check.non_negative(infinite=True, epsilon=epsilon)
        rule, total = self.before.rule, self.before.plus(cost).total
        low, high = -700.0, 0.0  # logarithms
        if rule.spent(total, delta=math.exp(-1e-12)) > epsilon:
            return 1.0
        for _ in range(60):
            middle = (low + high) / 2
            if rule.spent(total, delta=math.exp(middle)) <= epsilon:
                high = middle
            else:
                low = middle
        return math.exp(high)

    def describe(self) -> str:
        """One sentence for a report."""
        return (
            f"{self.before.rule.name} (an upper bound for all that was charged on this data set, in"
            f" runs chosen in any way); adjacency {self.adjacency}: {self.adjacency.sentence}"
        )
