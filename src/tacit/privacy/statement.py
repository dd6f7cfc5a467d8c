"""The privacy statement of a run, made from what was executed."""

import datetime
import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import dp_accounting
from dp_accounting import DpEvent

from tacit.privacy.accounting import Accountant, round_up
from tacit.privacy.budget import Budget
from tacit.privacy.events import count_releases, event_to_json
from tacit.privacy.noise import MAX_MAGNITUDE, tail_delta

__all__ = ["Statement", "make_statement"]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is promised about a run, and what it rests on.

    Attributes:
      epsilon: of everything executed, at `delta`, rounded up; infinite when nothing is promised.
      epsilon_text: the same for people, with INSECURE where the noise was not secret.
      delta: the failure probability.
      adjacency: which two data sets the promise compares.
      accountant: who computed epsilon, and whether it is a bound.
      unit: what one unit of privacy is.
      num_units: how many there are; public.
      not_protected: what the promise takes as public.
      releases: how many noisy sums left the engine.
      cost: the executed mechanisms, from which epsilon can be computed again.
      randomness: where noise, batches and masks came from.
      noise: what the noise is and what its cut tail adds to delta.
      is_secure: whether the randomness is secret; a seed is not.
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
    releases: int
    cost: dict[str, Any]
    randomness: str
    noise: str
    is_secure: bool
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
        return "\n".join(
            [
                promise,
                f"  adjacency    {self.adjacency}",
                f"  unit         {self.unit}; {self.num_units} of them",
                f"  accountant   {self.accountant}",
                f"  releases     {self.releases}",
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
      ``epsilon`` is computed from ``cost``, not copied from the budget, and rounded up.
    """
    accountant: Accountant = budget.accountant
    epsilon = accountant.epsilon(cost, delta=budget.delta)
    text = round_up(epsilon)
    return Statement(
        epsilon=epsilon if math.isinf(epsilon) else float(text),
        epsilon_text=text if is_secure or math.isinf(epsilon) else f"{text} INSECURE",
        delta=budget.delta,
        adjacency=f"{accountant.adjacency}: {accountant.adjacency.sentence}",
        accountant=accountant.describe(),
        unit=unit,
        num_units=num_units,
        not_protected="the number of units, the schema, the list of classes, the plan",
        releases=sum(count_releases(cost).values()),
        cost=json.loads(json.dumps(event_to_json(cost))),
        randomness=(
            "ChaCha20, 256-bit key from the operating system"
            if is_secure
            else "ChaCha20 from a known seed: INSECURE, anyone who has it can take the noise off"
        ),
        noise=_noise(cost, num_values),
        is_secure=is_secure,
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    )


def _noise(cost: DpEvent, num_values: int) -> str:
    releases = count_releases(cost)
    multipliers = [
        getattr(event, "noise_multiplier", None) or getattr(event, "event", event).noise_multiplier
        for event in releases
        if not isinstance(event, dp_accounting.NonPrivateDpEvent)
    ]
    if not multipliers:
        return "none"
    tail = tail_delta(num_values, sum(releases.values()), min(multipliers))
    return (
        f"Gaussian, float32, cut at {MAX_MAGNITUDE:.2f} standard deviations; the cut adds at most"
        f" {tail:.1g} to delta"
    )
