r"""Stopping: what may be claimed of a run whose length was chosen by looking at it.

An accountant's epsilon is that of a cost fixed beforehand. A run that stops when its results please
has no such cost: let L be the log of the ratio of densities of all that was seen, T the step at
which somebody, having seen it, stopped, and epsilon(t) what an accountant says of t steps. Then

    delta  >=  E[ max(0, 1 - exp(epsilon(T) - L_T)) ]                                         (1)

may fail, although it holds for each t that is fixed: by a factor of 4 to 7 for 400 full-batch steps
stopped as soon as L exceeds epsilon(t). There are two ways to a claim for which (1) holds.

*Declare a length.* Whoever says before the first step that there will be at most N may stop
anywhere: what was seen until then is computed from what N steps would show, so it costs at most
what N steps cost, by the accountant of N steps.

*Use a bound that holds at every T at once.* For a fixed order a and any stopping rule, the Rényi
divergences s_T(a) of the steps made satisfy E_Q[ Z_T^a exp(-(a - 1) s_T(a)) ] <= 1, where Z is the
ratio under the other data set (equation (1) of `tacit.privacy.filters`). So does a mixture of
orders with weights fixed for all runs, and the epsilon at which (2) holds there, computed from s_T,
satisfies (1) here: E_Q[ max(0, Z_T - exp(epsilon_T)) ] <= delta E_Q[ F_T(Z_T) ] <= delta. Choosing
the best order afterwards, as `RDP` does, is not covered; the mixture is what that costs.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from dp_accounting import DpEvent

from tacit.errors import UnprovenAccountingError
from tacit.privacy.accounting import divergences
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.budget import Budget
from tacit.privacy.cost import count_releases, event_from_json, event_to_json
from tacit.privacy.filters import FilterAccountant, RDPFilter, Spending
from tacit.privacy.statement.text import FIXED

__all__ = [
    "AnytimeRDP",
    "Claim",
    "Declared",
    "claim_of",
    "declared_from_json",
    "declared_to_json",
]


@dataclass(frozen=True)
class AnytimeRDP:
    """Rényi accounting that holds wherever a run is stopped, and however its steps were chosen.

    Guarantee:
      Statement (1) at the head of this file, for every stopping rule, with epsilon computed from
      the cost that was executed. About a fourth above PLD for most plans; up to 2.5 times where
      there are few steps at a small rate.

    Args:
      adjacency: which data sets are neighbours.

    Example:
      >>> import dp_accounting as dpa
      >>> cost = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 20)
      >>> round(AnytimeRDP().epsilon(cost, delta=1e-5), 2)
      2.2

    Reference:
      Feldman and Zrnic (2021), Individual privacy accounting via a Rényi filter; Lécuyer (2021),
      Practical privacy filters and odometers with Rényi differential privacy.
    """

    name: ClassVar[str] = "RDP at any time"
    is_bound: ClassVar[bool] = True

    adjacency: Adjacency = Adjacency.ZERO_OUT

    def epsilon(self, cost: DpEvent, *, delta: float) -> float:
        """The smallest epsilon that the mixture of orders gives at ``delta``."""
        self._require_proven(cost)
        return self._mixture.epsilon(cost, delta=delta) if count_releases(cost) else 0.0

    def delta(self, cost: DpEvent, *, epsilon: float) -> float:
        """The smallest delta that the mixture of orders gives at ``epsilon``."""
        self._require_proven(cost)
        return self._mixture.delta(cost, epsilon=epsilon) if count_releases(cost) else 0.0

    def describe(self) -> str:
        """One sentence for a report."""
        return (
            "RDP at any time (Rényi divergences of a fixed mixture of orders, an upper bound"
            f" wherever a run is stopped); adjacency {self.adjacency}: {self.adjacency.sentence}"
        )

    @cached_property
    def _mixture(self) -> FilterAccountant:
        # The weights know neither a budget nor a run: they must be the same wherever one stops.
        gaps = np.gradient(np.log(divergences.ORDERS - 1))
        rule = RDPFilter(
            epsilon=math.nextafter(math.inf, 0),
            delta=math.nextafter(1.0, 0),
            adjacency=self.adjacency,
            weights=tuple((gaps / gaps.sum()).tolist()),
        )
        return FilterAccountant(Spending.none(rule))

    def _require_proven(self, cost: DpEvent) -> None:
        try:
            self._mixture.before.rule.weigh(cost)
        except UnprovenAccountingError as error:
            raise UnprovenAccountingError(
                "the number of steps was not declared before the first, and what holds for every"
                f" number is not known here: {error} Or declare it: give num_steps to DPSVI, or fit"
                " a plan as long as the run will ever be."
            ) from None


class Declared(NamedTuple):
    """What was said of a run before its first step.

    Attributes:
      num_steps: how many steps of each chain it has at most.
      cost: of all of them, with what its plan had spent before.
    """

    num_steps: int
    cost: DpEvent


def declared_to_json(declared: Declared | None) -> dict[str, Any] | None:
    """Returns what was declared as JSON-able data."""
    if declared is None:
        return None
    return {"num_steps": declared.num_steps, "cost": event_to_json(declared.cost)}


def declared_from_json(document: dict[str, Any] | None) -> Declared | None:
    """Returns what was declared from what `declared_to_json` made of it."""
    if document is None:
        return None
    return Declared(document["num_steps"], event_from_json(document["cost"]))


class Claim(NamedTuple):
    """What is stated of a run.

    Attributes:
      cost: that of which epsilon is stated.
      budget: with the accountant that may state it.
      length: how the number of steps was fixed, in words.
      declared: what was said before the first step; None where nothing was.
    """

    cost: DpEvent
    budget: Budget
    length: str
    declared: Declared | None


def claim_of(cost: DpEvent, *, num_steps: int, declared: Declared | None, budget: Budget) -> Claim:
    """Returns what may be stated of a run that was stopped somewhere.

    Guarantee:
      The epsilon of the claim's cost by the claim's accountant satisfies (1) at the head of this
      file, whatever made the run stop: for all runs that stay within what they declared, and for
      all others. (A run that is declared, looked at, and then either published or taken beyond
      its length, may make claims of both kinds; together they satisfy it with twice the delta.)

    Args:
      cost: what was executed.
      num_steps: how many steps of each chain were made.
      declared: what was said before the first; None where nothing was.
      budget: gives delta, and the accountant of a cost fixed beforehand.
    """
    if declared is not None and count_releases(cost) <= count_releases(declared.cost):
        length = FIXED
        if num_steps < declared.num_steps:
            length = (
                f"stated for the {declared.num_steps} steps that were declared; {num_steps} were"
                " made"
            )
        return Claim(declared.cost, budget, length, declared)
    before = "none" if declared is None else f"{declared.num_steps}"
    length = (
        f"{num_steps} steps were made where {before} were declared; stated so that it holds"
        " wherever a run is stopped"
    )
    if math.isfinite(budget.epsilon):
        budget = replace(budget, accountant=AnytimeRDP(adjacency=budget.accountant.adjacency))
    return Claim(cost, budget, length, declared)
