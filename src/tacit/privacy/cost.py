"""Cost: what releases cost, and what else of them must be told wherever they are counted."""

from dataclasses import dataclass
from typing import Self

import dp_accounting
from dp_accounting import DpEvent

from tacit.privacy.events import composed

__all__ = ["Cost", "event_of"]


@dataclass(frozen=True)
class Cost:
    """What was released on some records, or will be. Costs add up.

    Attributes:
      event: what an accountant turns into epsilon.
      is_secure: whether all of the noise comes from secret keys; a seed is not secret.

    Example:
      >>> first = Cost(dp_accounting.GaussianDpEvent(4.0))
      >>> second = Cost(dp_accounting.GaussianDpEvent(4.0), is_secure=False)
      >>> (first + second).is_secure
      False
      >>> first + Cost.nothing() == first
      True
    """

    event: DpEvent
    is_secure: bool = True

    @classmethod
    def nothing(cls) -> Self:
        """The cost of no release."""
        return cls(dp_accounting.NoOpDpEvent())

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(composed(self.event, other.event), self.is_secure and other.is_secure)


def event_of(cost: Cost | DpEvent) -> DpEvent:
    """Returns what an accountant takes; whether noise is secret does not change epsilon."""
    return cost.event if isinstance(cost, Cost) else cost
