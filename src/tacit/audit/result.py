"""What an audit found: a lower bound on epsilon with its confidence, and a verdict."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["OWNER_SIDE", "SYNTHETIC", "AuditResult", "AuditedData"]


@dataclass(frozen=True, kw_only=True)
class AuditedData:
    """Which records an audit was computed from, and what that means for its result.

    Attributes:
      name: what they are.
      num_records: how many.
      public: whether the result may be published as far as they are concerned.
      statement: the same in a sentence.
    """

    name: str
    num_records: int
    public: bool
    statement: str


SYNTHETIC = (
    "Computed from synthetic canaries alone: no private record was read, nothing was charged, and"
    " the result may be published."
)
OWNER_SIDE = (
    "Computed from private records, with models trained for the audit only: work on the owner's"
    " side that is NOT covered by any guarantee and was not charged. Do not publish the result."
)


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon, and whether it contradicts what was claimed.

    Guarantee:
      If what was audited keeps its claim, then ``violation`` is set, or ``lower_bound`` is above
      the true epsilon at ``claimed_delta``, with probability at most ``1 - confidence`` over the
      run's noise and the canaries' coins. An audit that finds nothing proves nothing: it is a test
      of the code and not a guarantee.

    Attributes:
      attack: how it was attacked.
      data: which records were used.
      claimed_epsilon: the claim.
      claimed_delta: the delta of the claim and of the lower bound.
      lower_bound: epsilon is at least this, with ``confidence``.
      confidence: of the lower bound and the verdict together.
      violation: what contradicts the claim; None where nothing does.
      details: what the bound was computed from, as JSON-able data.
    """

    attack: str
    data: AuditedData
    claimed_epsilon: float
    claimed_delta: float
    lower_bound: float
    confidence: float
    violation: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        return "no violation found" if self.violation is None else f"VIOLATION: {self.violation}"

    def to_json(self) -> dict[str, Any]:
        """Returns what ``audit.json`` holds; an infinite claim is the text 'infinity'."""
        claimed = "infinity" if math.isinf(self.claimed_epsilon) else self.claimed_epsilon
        return {
            "attack": self.attack,
            "data": {
                "name": self.data.name,
                "num_records": self.data.num_records,
                "public": self.data.public,
                "statement": self.data.statement,
            },
            "claimed": {"epsilon": claimed, "delta": self.claimed_delta},
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "verdict": self.verdict,
            "details": dict(self.details),
        }

    def __str__(self) -> str:
        return "\n".join(
            [
                self.verdict,
                f"  claimed      epsilon {self.claimed_epsilon:.4g} at delta"
                f" {self.claimed_delta:g}",
                f"  found        epsilon at least {_round_down(self.lower_bound)}, with"
                f" {100 * self.confidence:g} % confidence",
                f"  attack       {self.attack}",
                f"  records      {self.data.name}, {self.data.num_records} of them",
                f"  mind         {self.data.statement}",
            ]
        )


def _round_down(bound: float) -> str:
    """A lower bound as people should see it: never larger than it is."""
    return f"{math.floor(1000 * bound) / 1000:.3f}"
