"""The privacy statement of a run, made from what was executed."""

import datetime
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

from dp_accounting import DpEvent

from tacit.privacy.accounting import Accountant, round_up
from tacit.privacy.budget import Budget
from tacit.privacy.events import (
    event_to_json,
    noise_multipliers,
    num_shards,
    of_one_record,
)
from tacit.privacy.noise import MAX_MAGNITUDE, tail_delta

__all__ = ["Statement", "make_statement", "tail_of"]


_SEQUENTIAL = "sequential: every record pays for every release"


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is promised about a run, and what it rests on.

    Attributes:
      epsilon: of everything executed, at `delta`, rounded up; infinite when nothing is promised,
        as under an infinite budget, whatever the noise was.
      epsilon_text: the same for people, with INSECURE where the noise was not secret and "about"
        where the accountant is no bound.
      delta: the failure probability, with what the noise's cut tail takes of it.
      adjacency: which two data sets the promise compares.
      accountant: who computed epsilon, and whether it is a bound.
      unit: what one unit of privacy is.
      num_units: how many there are; public.
      not_protected: what the promise takes as public.
      composition: how the costs of releases add up.
      releases: how many noisy sums left the engine.
      cost: the executed mechanisms, from which epsilon can be computed again.
      randomness: where noise, batches and masks came from.
      noise: what the noise is and what its cut tail adds to delta.
      is_secure: whether the randomness is secret; a seed is not.
      is_bound: whether epsilon is an upper bound or an approximation.
      date: when the run ended, in coordinated universal time.
    """

    epsilon: float
    epsilon_text: str
    delta: float
    adjacency: str
    accountant: str
    unit: str
    num_units: int
    not_protected: str
    composition: str
    releases: int
    cost: dict[str, Any]
    randomness: str
    noise: str
    is_secure: bool
    is_bound: bool
    date: str

    def to_json(self) -> dict[str, Any]:
        """Returns the statement as JSON-able data; an infinite epsilon is the text 'infinity'."""
        document = asdict(self)
        if math.isinf(self.epsilon):
            document["epsilon"] = "infinity"
        return document

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            promise = "NOT PRIVATE: epsilon is infinity; publish nothing of this run."
        else:
            promise = f"({self.epsilon_text}, {self.delta:g})-differentially private"
            if not self.is_bound:
                promise = f"approximately {promise}: NOT A GUARANTEE"
        return "\n".join(
            [
                promise,
                f"  adjacency    {self.adjacency}",
                f"  unit         {self.unit}; {self.num_units} of them",
                f"  accountant   {self.accountant}",
                f"  releases     {self.releases}",
                *(
                    []
                    if self.composition == _SEQUENTIAL
                    else [f"  composition  {self.composition}"]
                ),
                f"  randomness   {self.randomness}",
                f"  noise        {self.noise}",
                f"  not covered  {self.not_protected}",
                f"  date         {self.date}",
            ]
        )


def make_statement(
    *,
    cost: DpEvent,
    budget: Budget,
    unit: str,
    num_units: int,
    num_values: int,
    is_secure: bool,
) -> Statement:
    """Returns the statement for an executed cost.

    Args:
      cost: what was executed.
      budget: gives delta and the accountant.
      unit: what one unit of privacy is.
      num_units: how many there are.
      num_values: how many numbers the largest release has.
      is_secure: whether the noise came from a secret key.

    Guarantee:
      ``epsilon`` is computed from ``cost``, not copied from the budget, at the delta that the
      noise's cut tail leaves, and rounded up. An infinite budget promises nothing.
    """
    accountant: Accountant = budget.accountant
    tail = tail_of(cost, num_values=num_values)
    epsilon = math.inf if math.isinf(budget.epsilon) else budget.spent(cost, tail=tail)
    rounded = text = round_up(epsilon)
    if math.isfinite(epsilon):
        text = rounded if accountant.is_bound else f"about {rounded}"
        text = text if is_secure else f"{text} INSECURE"
    return Statement(
        epsilon=float(rounded),
        epsilon_text=text,
        delta=budget.delta,
        adjacency=f"{accountant.adjacency}: {accountant.adjacency.sentence}",
        accountant=accountant.describe(),
        unit=unit,
        num_units=num_units,
        not_protected="the number of units, the schema, the list of classes, the plan",
        composition=_composition(cost),
        releases=sum(count for _, count in noise_multipliers(cost)),
        cost=json.loads(json.dumps(event_to_json(cost))),
        randomness=(
            "ChaCha20, 256-bit key from the operating system"
            if is_secure
            else "ChaCha20 from a known seed: INSECURE, anyone who has it can take the noise off"
        ),
        noise=_noise(cost, tail),
        is_secure=is_secure,
        is_bound=accountant.is_bound,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def tail_of(cost: DpEvent, *, num_values: int) -> float:
    """Returns how much of delta the noise's cut tail takes, over all releases about one record.

    Releases without noise have no tail; they are not private at all.
    """
    return min(
        1.0,
        sum(
            tail_delta(num_values, count, multiplier)
            for multiplier, count in noise_multipliers(of_one_record(cost))
            if multiplier > 0 and count > 0
        ),
    )


def _composition(cost: DpEvent) -> str:
    largest = num_shards(cost)
    if largest == 1:
        return _SEQUENTIAL
    return (
        f"parallel over {largest} disjoint shards: a record pays for the releases of its own shard,"
        " which a public rule tells from its identity alone; the others never read it"
    )


def _noise(cost: DpEvent, tail: float) -> str:
    if not any(multiplier > 0 for multiplier, _ in noise_multipliers(cost)):
        return "none"
    return (
        f"Gaussian, float32, cut at {MAX_MAGNITUDE:.2f} standard deviations; the cut adds at most"
        f" {tail:.1g} (counted above) to delta"
    )
