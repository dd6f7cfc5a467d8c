"""Certificates as a document: what no change of the inputs can do to predictions."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from tacit.certify import Certificate
from tacit.privacy.budget import Budget
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.private_sums import mean_interval, noisy_sums
from tacit.privacy.statement import Statement

__all__ = ["METHOD", "certificate_points", "private_certificate_points"]

METHOD = (
    "Linear bounds of the posterior predictive over all draws (CROWN). The radius is in units of"
    " the encoded features, which lie in [-1, 1]: for a numeric column, half of its range is 1."
    " Every feature may change, those of categories too, so that more is allowed than a real change"
    " of one value."
)


def certificate_points(certificates: Sequence[Certificate]) -> list[dict[str, Any]]:
    """Returns one row for each radius, with exact intervals; free on public records."""
    return [
        {
            "radius": own.radius,
            "accuracy": own.accuracy.estimate,
            "certified": own.certified_accuracy.estimate,
            "low": own.certified_accuracy.low,
            "high": own.certified_accuracy.high,
        }
        for own in certificates
    ]


def private_certificate_points(
    certificates: Sequence[Certificate],
    *,
    budget: Budget,
    people: Any = None,
    ledger: DataSetLedger | None = None,
    seed: int | None = None,
) -> tuple[list[dict[str, Any]], Statement]:
    """Returns the same for private records, and what is promised about it.

    Guarantee:
      One Gaussian release within the budget, charged to the ledger before it is made: for each
      record whether it is right, and whether it is right and certified at each radius.

    Args:
      certificates: for the same records at several radii.
      budget: what may be spent.
      people: numbers from zero that say whose each row is.
      ledger: is charged.
      seed: for tests only; INSECURE.
    """
    right = np.asarray(certificates[0].is_right)
    safe = [right & np.asarray(own.is_certified) for own in certificates]
    released = noisy_sums(
        np.stack([right, *safe], axis=1).astype(np.float64),
        max_norm=math.sqrt(1 + len(safe)),
        budget=budget,
        purpose="certificate",
        groups=people,
        ledger=ledger,
        seed=seed,
    )
    accuracy, *shares = (mean_interval(float(total), released) for total in released.sums)
    rows = []
    for own, share in zip(certificates, shares, strict=True):
        value = share.pop("value")
        rows.append(
            {"radius": own.radius, "accuracy": accuracy["value"], "certified": value, **share}
        )
    return rows, released.statement
