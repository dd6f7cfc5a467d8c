"""Evaluation on private records: every figure from one charged release of noisy counts."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.data import NumericTarget
from tacit.metrics.calibration import gaussian_interval
from tacit.metrics.uncertainty import ClassificationUncertainty, RegressionUncertainty
from tacit.privacy.budget import Budget
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.private_sums import NoisySums, mean_interval, noisy_sums
from tacit.privacy.statement import Statement
from tacit.studies.evaluation import statement_of_sums

__all__ = ["Groups", "evaluate_privately"]

_Floats = NDArray[np.float64]

_NUM_BINS, _NUM_UNCERTAINTY_BINS = 15, 20
_NLL_CAP = -math.log(1e-3)
_SIGNIFICANT = 5.0
_NUM_SIMULATED = 400


class Groups(NamedTuple):
    """A column by which records are told apart.

    Attributes:
      values: all that may occur, as public knowledge.
      numbers: which of them each record has.
    """

    values: tuple[str, ...]
    numbers: NDArray[np.int64]


def evaluate_privately(
    found: ClassificationUncertainty[_Floats] | RegressionUncertainty[_Floats],
    truth: NDArray[Any],
    *,
    budget: Budget,
    target: NumericTarget | None = None,
    by: Mapping[str, Groups] | None = None,
    people: NDArray[np.int64] | None = None,
    ledger: DataSetLedger | None = None,
    seed: int | None = None,
) -> tuple[dict[str, Any], Statement]:
    """Returns ``evaluation.json`` without its ``data``, and what is promised about it.

    A record adds one vector: whether it is right, its scores, and marks in histograms, each part of
    norm at most one. Intervals are for noise and sampling together. A likelihood counts at most
    6.9 (a probability of 0.001). Bins and groups that noise would hide are left out.

    Guarantee:
      One Gaussian release within the budget, charged to the ledger before it is made; all figures
      follow from it. The number of units and the values of groups are taken as public.

    Args:
      found: what a posterior predicts for each record.
      truth: class numbers, or numbers in the user's units.
      budget: what may be spent.
      target: the range of numbers, where these are predicted.
      by: columns whose values make groups.
      people: numbers from zero that say whose each row is.
      ledger: is charged.
      seed: for tests only; INSECURE.
    """
    groups = by or {}
    parts = (
        _parts_of_numbers(found, np.asarray(truth, np.float64), target, groups)
        if isinstance(found, RegressionUncertainty)
        else _parts_of_classes(found, np.asarray(truth), groups)
    )
    released, cost = noisy_sums(
        np.hstack(list(parts.values())),
        max_norm=math.sqrt(len(parts)),
        budget=budget,
        purpose="evaluation",
        groups=people,
        ledger=ledger,
        seed=seed,
    )
    ends = np.cumsum([part.shape[1] for part in parts.values()])[:-1]
    sums = dict(zip(parts, np.split(released.sums, ends), strict=True))
    if isinstance(found, RegressionUncertainty):
        assert target is not None
        document = _document_of_numbers(sums, released, target)
    else:
        document = _document_of_classes(sums, released, found.probabilities.shape[1])
    document["subgroups"] = _subgroups(sums, released, groups)
    statement = statement_of_sums(
        released,
        cost,
        budget=budget,
        purpose="evaluation",
        is_of_people=people is not None,
        is_charged=ledger is not None,
    )
    return document, statement


def _parts_of_classes(
    found: ClassificationUncertainty[_Floats], labels: NDArray[Any], by: Mapping[str, Groups]
) -> dict[str, _Floats]:
    probabilities = found.probabilities / found.probabilities.sum(axis=1, keepdims=True)
    confidence = probabilities.max(axis=1)
    right = (probabilities.argmax(axis=1) == labels).astype(np.float64)
    of_label = probabilities[np.arange(len(labels)), labels]
    brier = np.sum((probabilities - np.eye(probabilities.shape[1])[labels]) ** 2, axis=1) / 2
    nll = np.minimum(-np.log(np.maximum(of_label, 1e-300)), _NLL_CAP) / _NLL_CAP
    bins = _one_hot(np.ceil(confidence * _NUM_BINS) - 1, _NUM_BINS)
    most = math.log(probabilities.shape[1])
    return {
        "accuracy": right[:, None],
        "brier": brier[:, None],
        "nll": nll[:, None],
        "bins": bins,
        "bins, right": bins * right[:, None],
        "bins, confidence": bins * confidence[:, None],
        "aleatoric": _marks(found.aleatoric_entropy / most),
        "epistemic": _marks(found.mutual_information / most),
        **_group_parts(by, right, confidence),
    }


def _parts_of_numbers(
    found: RegressionUncertainty[_Floats],
    truth: _Floats,
    target: NumericTarget | None,
    by: Mapping[str, Groups],
) -> dict[str, _Floats]:
    assert target is not None
    clipped = np.clip(truth, target.low, target.high)
    error = (np.clip(found.mean, target.low, target.high) - clipped) / (target.high - target.low)
    low, high = gaussian_interval(found.mean, found.total_variance, level=0.9)
    covered = ((low <= truth) & (truth <= high)).astype(np.float64)
    return {
        "squares": error[:, None] ** 2,
        "coverage_90": covered[:, None],
        **_group_parts(by, covered, error**2),
    }


def _group_parts(by: Mapping[str, Groups], *values: _Floats) -> dict[str, _Floats]:
    parts = {}
    for column, (names, numbers) in by.items():
        marks = _one_hot(numbers, len(names))
        parts[f"{column}, 0"] = marks
        for i, value in enumerate(values):
            parts[f"{column}, {i + 1}"] = marks * value[:, None]
    return parts


def _one_hot(numbers: NDArray[Any], count: int) -> _Floats:
    return np.eye(count)[np.clip(numbers, 0, count - 1).astype(np.int64)]


def _marks(shares: _Floats) -> _Floats:
    # Cubes: most epistemic uncertainty is small, and ends of bins must not look at it.
    return _one_hot(
        np.floor(np.cbrt(np.clip(shares, 0, 1)) * _NUM_UNCERTAINTY_BINS), _NUM_UNCERTAINTY_BINS
    )


def _document_of_classes(
    sums: Mapping[str, _Floats], released: NoisySums, num_classes: int
) -> dict[str, Any]:
    scales = {"accuracy": 1.0, "nll": _NLL_CAP, "brier": 2.0}
    measured = {
        name: _scaled(mean_interval(float(sums[name][0]), released), scale)
        for name, scale in scales.items()
    }
    edges = math.log(num_classes) * np.linspace(0, 1, _NUM_UNCERTAINTY_BINS + 1) ** 3
    return {
        "kind": "classification",
        "metrics": {**measured, "ece": _ece(sums, released)},
        "reliability": _reliability(sums, released),
        "uncertainty": {
            kind: {"edges": edges.tolist(), "counts": _counts(sums[kind])}
            for kind in ("aleatoric", "epistemic")
        },
        "selective": _selective(sums, released),
    }


def _document_of_numbers(
    sums: Mapping[str, _Floats], released: NoisySums, target: NumericTarget
) -> dict[str, Any]:
    squares = mean_interval(float(sums["squares"][0]), released)
    width = target.high - target.low
    return {
        "kind": "regression",
        "metrics": {
            "rmse": {name: width * math.sqrt(value) for name, value in squares.items()},
            "coverage_90": mean_interval(float(sums["coverage_90"][0]), released),
        },
        "reliability": [],
        "uncertainty": {},
        "selective": [],
    }


def _ece(sums: Mapping[str, _Floats], released: NoisySums) -> dict[str, float]:
    """Returns the calibration error; it is a norm, so it errs by at most the norm of the error."""
    n, std = released.num_units, released.noise_std
    gaps = sums["bins, right"] - sums["bins, confidence"]
    value = float(np.sum(np.abs(gaps)) / n)
    counts = np.maximum(sums["bins"], 0.0)
    errors = np.random.default_rng(0).normal(size=(_NUM_SIMULATED, len(gaps)))
    errors *= np.sqrt(2 * std**2 + counts / 4)
    slack = float(np.quantile(np.sum(np.abs(errors), axis=1), 0.975, method="higher") / n)
    return {
        "value": min(value, 1.0),
        "low": max(0.0, value - slack),
        "high": min(1.0, value + slack),
    }


def _reliability(sums: Mapping[str, _Floats], released: NoisySums) -> list[dict[str, Any]]:
    rows = []
    for count, right, confidence in zip(
        sums["bins"], sums["bins, right"], sums["bins, confidence"], strict=True
    ):
        if count > _SIGNIFICANT * released.noise_std:
            share = _share(right, count, released.noise_std)
            value = share.pop("value")
            mean = min(max(confidence / count, 0.0), 1.0)
            rows.append({"confidence": mean, "accuracy": value, **share, "count": round(count)})
    return rows


def _selective(sums: Mapping[str, _Floats], released: NoisySums) -> list[dict[str, float]]:
    """Returns accuracy above each bin of confidence, from the surest bin down."""
    rows: list[dict[str, float]] = []
    counts, right = np.cumsum(sums["bins"][::-1]), np.cumsum(sums["bins, right"][::-1])
    for number, (count, hits) in enumerate(zip(counts, right, strict=True)):
        noise = released.noise_std * math.sqrt(number + 1)
        if count > _SIGNIFICANT * noise and (not rows or count > rows[-1]["count"]):
            accuracy = min(max(hits / count, 0.0), 1.0)
            rows.append({"coverage": count, "accuracy": accuracy, "count": count})
    return [
        {"coverage": min(row["coverage"] / released.num_units, 1.0), "accuracy": row["accuracy"]}
        for row in rows
    ]


def _subgroups(
    sums: Mapping[str, _Floats], released: NoisySums, by: Mapping[str, Groups]
) -> list[dict[str, Any]]:
    is_of_classes, std = "accuracy" in sums, released.noise_std
    rows = []
    for column, (names, _) in by.items():
        first, second = sums[f"{column}, 1"], sums[f"{column}, 2"]
        for i, (name, count) in enumerate(zip(names, sums[f"{column}, 0"], strict=True)):
            if count <= _SIGNIFICANT * std:
                continue
            share = _share(first[i], count, std)
            measured = {"accuracy" if is_of_classes else "coverage_90": share}
            if is_of_classes:
                measured["calibration_gap"] = _gap(first[i], second[i], count, std)
            row = {"column": column, "value": name, "num_records": round(count)}
            rows.append({**row, "metrics": measured})
    return rows


def _share(hits: float, count: float, std: float) -> dict[str, float]:
    share = min(max(hits / count, 0.0), 1.0)
    spread = max(share * (1 - share), 1 / count) / count
    error = 1.96 * math.sqrt(spread + 2 * (std / count) ** 2)
    return {"value": share, "low": max(0.0, share - error), "high": min(1.0, share + error)}


def _gap(right: float, confidence: float, count: float, std: float) -> dict[str, float]:
    value = abs(right - confidence) / count
    error = 1.96 * math.sqrt(1 / (4 * count) + 2 * (std / count) ** 2)
    return {"value": value, "low": max(0.0, value - error), "high": value + error}


def _scaled(interval: dict[str, float], scale: float) -> dict[str, float]:
    return {name: scale * value for name, value in interval.items()}


def _counts(noisy: _Floats) -> list[int]:
    return [max(0, round(value)) for value in noisy]
