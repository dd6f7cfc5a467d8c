"""Evaluation: how good predictions are on labelled records, by public figures and certificates."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import metrics
from tacit.certify import Certificate
from tacit.metrics.calibration import gaussian_interval
from tacit.metrics.confidence import Interval, calibration_interval, wilson_interval
from tacit.metrics.selection import risk_coverage
from tacit.metrics.uncertainty import ClassificationUncertainty, RegressionUncertainty
from tacit.privacy.budget import Budget
from tacit.privacy.cost import Cost
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.private_sums import NoisySums, mean_interval, noisy_sums
from tacit.privacy.statement import Statement
from tacit.privacy.statement.construction import make_statement

__all__ = [
    "METHOD",
    "NLL_FLOOR",
    "certificate_points",
    "evaluate_predictions",
    "histogram",
    "private_certificate_points",
    "statement_of_sums",
]

_Floats = NDArray[np.float64]

NLL_FLOOR = 1e-7
"""The least probability of a label: one that was thought impossible would make a mean infinite."""

_NUM_BINS = 20
_COVERAGES = tuple(round(0.05 * i, 2) for i in range(2, 21))
_FEWEST = 2


def evaluate_predictions(
    found: ClassificationUncertainty[_Floats] | RegressionUncertainty[_Floats],
    truth: NDArray[Any],
    *,
    by: Mapping[str, "pd.Series[Any]"] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Returns ``evaluation.json`` without its ``data``: metrics with intervals, and by group.

    Guarantee:
      None. All of it depends on the records: free on public ones, and not for publication on
      others. `tacit.studies.private_evaluation` charges for it.

    Args:
      found: what a posterior predicts for each record.
      truth: class numbers, or numbers in the user's units.
      by: columns whose values make groups, with one value for each record.
      seed: of the resampling behind intervals.

    Example:
      >>> from tacit.metrics import classification_uncertainty
      >>> draws = np.array([[[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]])
      >>> document = evaluate_predictions(classification_uncertainty(draws), np.array([0, 1, 1]))
      >>> round(document["metrics"]["accuracy"]["value"], 3)
      0.667
    """
    if isinstance(found, RegressionUncertainty):
        return _of_numbers(found, np.asarray(truth, np.float64), by or {}, seed)
    # In float32 probabilities add up to one to six digits only.
    total = found.probabilities.sum(axis=1, keepdims=True)
    probabilities = np.asarray(found.probabilities / total, np.float64)
    labels = np.asarray(truth)
    right = probabilities.argmax(axis=1) == labels
    curve = risk_coverage(-probabilities.max(axis=1), (~right).astype(np.float64))
    places = [max(1, round(share * len(labels))) - 1 for share in _COVERAGES]
    most = float(np.log(probabilities.shape[1]))
    return {
        "kind": "classification",
        "metrics": _class_metrics(probabilities, labels, seed),
        "reliability": _reliability(probabilities, labels),
        "uncertainty": {
            "aleatoric": histogram(found.aleatoric_entropy, most),
            "epistemic": histogram(found.mutual_information, None),
        },
        "selective": [
            {"coverage": float(curve.coverage[at]), "accuracy": float(1 - curve.risk[at])}
            for at in dict.fromkeys(places)
        ],
        "subgroups": _subgroups(
            by or {}, lambda rows: _class_metrics(probabilities[rows], labels[rows], seed)
        ),
    }


def histogram(values: _Floats, most: float | None) -> dict[str, Any]:
    """Returns counts in equal bins from zero to ``most``, or to the largest value."""
    top = max(float(values.max()), 1e-6) if most is None else most
    counts, edges = np.histogram(np.clip(values, 0, top), bins=_NUM_BINS, range=(0, top))
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _of_numbers(
    found: RegressionUncertainty[_Floats],
    truth: _Floats,
    by: Mapping[str, "pd.Series[Any]"],
    seed: int,
) -> dict[str, Any]:
    def measured(rows: Any) -> dict[str, Any]:
        return _number_metrics(found.mean[rows], found.total_variance[rows], truth[rows], seed)

    return {
        "kind": "regression",
        "metrics": measured(slice(None)),
        "reliability": [],
        "uncertainty": {
            "aleatoric": histogram(np.sqrt(found.aleatoric_variance), None),
            "epistemic": histogram(np.sqrt(found.epistemic_variance), None),
        },
        "selective": [],
        "subgroups": _subgroups(by, measured),
    }


def _class_metrics(probabilities: _Floats, labels: NDArray[Any], seed: int) -> dict[str, Any]:
    def floored_nll(p: _Floats, y: NDArray[Any]) -> float:
        return metrics.nll(p, y, floor=NLL_FLOOR)

    return {
        "accuracy": _interval(
            metrics.bootstrap(metrics.accuracy, probabilities, labels, seed=seed)
        ),
        "nll": _interval(metrics.bootstrap(floored_nll, probabilities, labels, seed=seed)),
        "brier": _interval(metrics.bootstrap(metrics.brier, probabilities, labels, seed=seed)),
        "ece": _interval(calibration_interval(metrics.ece, probabilities, labels, seed=seed)),
    }


def _number_metrics(mean: _Floats, variance: _Floats, truth: _Floats, seed: int) -> dict[str, Any]:
    low, high = gaussian_interval(mean, variance, level=0.9)
    measures: dict[str, tuple[Callable[..., float], tuple[_Floats, ...]]] = {
        "rmse": (metrics.rmse, (mean, truth)),
        "nll": (metrics.gaussian_nll, (mean, variance, truth)),
        "coverage_90": (metrics.interval_coverage, (low, high, truth)),
    }
    return {
        name: _interval(metrics.bootstrap(metric, *arrays, seed=seed))
        for name, (metric, arrays) in measures.items()
    }


def _reliability(probabilities: _Floats, labels: NDArray[Any]) -> list[dict[str, Any]]:
    table = metrics.reliability(probabilities, labels)
    filled = table.counts > 0
    counts, accuracy = table.counts[filled], table.accuracy[filled]
    low, high = wilson_interval(np.rint(accuracy * counts), counts)
    columns = (table.confidence[filled], accuracy, low, high)
    return [
        dict(zip(("confidence", "accuracy", "low", "high"), map(float, row), strict=True))
        | {"count": int(count)}
        for *row, count in zip(*columns, counts, strict=True)
    ]


def _subgroups(
    by: Mapping[str, "pd.Series[Any]"], measured: Callable[[NDArray[Any]], dict[str, Any]]
) -> list[dict[str, Any]]:
    rows = []
    for column, values in by.items():
        text = values.astype(object).where(values.notna(), "(missing)").astype(str)
        for value in sorted(set(text)):
            places = np.flatnonzero(text == value)
            if len(places) >= _FEWEST:
                group = {"column": column, "value": value, "num_records": len(places)}
                rows.append({**group, "metrics": measured(places)})
    return rows


def _interval(interval: Interval) -> dict[str, float]:
    return {"value": interval.estimate, "low": interval.low, "high": interval.high}


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
    released, cost = noisy_sums(
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
    statement = statement_of_sums(
        released,
        cost,
        budget=budget,
        purpose="certificate",
        is_of_people=people is not None,
        is_charged=ledger is not None,
    )
    return rows, statement


def statement_of_sums(
    released: NoisySums,
    cost: Cost,
    *,
    budget: Budget,
    purpose: str,
    is_of_people: bool,
    is_charged: bool,
) -> Statement:
    """Returns what is promised about figures that were all computed from one release of sums.

    Args:
      released: the sums.
      cost: of the release.
      budget: within which it was made.
      purpose: what the figures are for.
      is_of_people: whether a unit of privacy is a person with all their rows.
      is_charged: whether a ledger was charged.
    """
    statement = make_statement(
        cost=cost,
        budget=budget,
        unit="one person, with all their rows" if is_of_people else "one record (one row)",
        num_units=released.num_units,
        method=released.release,
        tuning="none",
        intended_use=purpose,
        is_charged=is_charged,
    )
    return replace(
        statement,
        artefacts_covered=["the figures of this document, all of them computed from one release"],
        metrics_data="these records, as this statement says",
    )
