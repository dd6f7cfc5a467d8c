"""The tables of a report: metrics with their intervals, for all records and by group."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["metric_rows", "subgroup_table"]

_NAMES = {
    "accuracy": "accuracy",
    "balanced_accuracy": "balanced accuracy",
    "ece": "expected calibration error",
    "smooth_ece": "smooth calibration error",
    "nll": "negative log likelihood",
    "brier": "Brier score",
    "brier_score": "Brier score",
    "auroc": "area under the ROC curve",
    "auc": "area under the ROC curve",
    "aurc": "area under the risk-coverage curve",
    "rmse": "root mean squared error",
    "mae": "mean absolute error",
    "crps": "CRPS",
    "coverage_90": "coverage of 90 % intervals",
}
_SHARES = {"accuracy", "balanced_accuracy", "ece", "smooth_ece", "coverage_90"}


def metric_rows(metrics: Mapping[str, Mapping[str, Any]]) -> list[dict[str, str]]:
    """Returns each metric with its value and interval as text."""
    rows = []
    for name, numbers in metrics.items():
        value, low, high = (numbers.get(key) for key in ("value", "low", "high"))
        interval = "" if low is None or high is None else f"{_n(name, low)} to {_n(name, high)}"
        rows.append(
            {"name": _label(name), "key": name, "value": _n(name, value), "interval": interval}
        )
    return rows


def _label(name: str) -> str:
    """A metric's name for people."""
    return _NAMES.get(name, name.replace("_", " "))


def _n(name: str, value: Any) -> str:
    if value is None:
        return "–"
    return f"{100 * float(value):.1f} %" if name in _SHARES else f"{float(value):.3g}"


def subgroup_table(subgroups: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Returns rows of a table of metrics by group, and the names of its columns."""
    if not subgroups:
        return None
    names = list(dict.fromkeys(name for row in subgroups for name in row["metrics"]))
    return {
        "columns": [_label(name) for name in names],
        "rows": [
            {
                "column": str(row["column"]),
                "value": str(row["value"]),
                "num_records": f"{int(row['num_records']):,}",
                "is_small": int(row["num_records"]) < 100,
                "cells": _cells(row["metrics"], names),
            }
            for row in subgroups
        ],
    }


def _cells(metrics: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, str]]:
    known = {row["key"]: row for row in metric_rows(metrics)}
    nothing = {"value": "–", "interval": ""}
    return [known.get(name, nothing) for name in names]
