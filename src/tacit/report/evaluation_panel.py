"""The panels of a report on predictions: metrics, calibration, uncertainty and robustness."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.report.figures import CARD, DASHED, ONE, SOFT, TWO, Chart, chart, chart_axes

__all__ = [
    "certificate_chart",
    "metric_rows",
    "reliability_chart",
    "selective_chart",
    "subgroup_table",
    "uncertainty_charts",
]

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


def reliability_chart(bins: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Returns accuracy against confidence, with intervals; None without a filled bin."""
    filled = [row for row in bins if row.get("count") and row.get("accuracy") is not None]
    if not filled:
        return None
    confidence = [float(row["confidence"]) for row in filled]
    low = [float(row["low"]) for row in filled]
    high = [float(row["high"]) for row in filled]
    accuracy = [float(row["accuracy"]) for row in filled]
    counts = np.array([int(row["count"]) for row in filled])
    start = 0.0 if min([*confidence, *low]) < 0.45 else 0.4
    axes = chart_axes(
        "confidence",
        "accuracy",
        x_limits=(start, 1),
        y_limits=(start, 1),
        x_is_share=True,
        y_is_share=True,
    )
    width = (1 - start) / 40
    left, right = np.maximum(np.subtract(confidence, width), start), np.add(confidence, width)
    axes.bar(
        left,
        0.22 * (1 - start) * counts / counts.max(),
        width=np.minimum(right, 1.0) - left,
        bottom=start,
        align="edge",
        color=SOFT,
        alpha=0.28,
    )
    axes.plot([start, 1], [start, 1], color=SOFT, linewidth=1.3, linestyle=DASHED)
    axes.vlines(confidence, np.maximum(low, start), high, color=ONE, linewidth=1.6)
    axes.scatter(confidence, accuracy, s=52, color=CARD, edgecolor=ONE, linewidth=2.2, zorder=3)
    return chart(
        axes,
        title="Reliability: is the model as right as it is sure?",
        caption=(
            "Each dot is a group of records on which the model was about as sure, with the 95 %"
            " interval of how often it was right. On the dashed line it is calibrated; below, it"
            " is overconfident."
        ),
        legend=[("count", "records (relative)"), ("guess", "calibrated"), ("dot", "this model")],
        columns=("confidence", "accuracy", "95 % interval", "records"),
        rows=[
            (
                f"{100 * float(row['confidence']):.1f} %",
                f"{100 * float(row['accuracy']):.1f} %",
                f"{100 * float(row['low']):.1f} to {100 * float(row['high']):.1f} %",
                f"{int(row['count']):,}",
            )
            for row in filled
        ],
    )


_UNCERTAINTY = {
    "aleatoric": (
        "Aleatoric: noise in the data",
        "More records would not make it smaller: the inputs do not say more.",
        ONE,
    ),
    "epistemic": (
        "Epistemic: what the model does not know",
        "The draws of the posterior disagree here. More records, or less privacy noise, would"
        " make it smaller.",
        TWO,
    ),
}


def uncertainty_charts(uncertainty: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Returns a histogram for each kind of uncertainty."""
    charts = []
    for kind, (title, caption, colour) in _UNCERTAINTY.items():
        if kind not in uncertainty:
            continue
        edges = [float(edge) for edge in uncertainty[kind]["edges"]]
        counts = [int(count) for count in uncertainty[kind]["counts"]]
        axes = chart_axes(
            f"{kind} uncertainty",
            "records",
            x_limits=(edges[0], edges[-1]),
            y_limits=(0, 1.08 * max(1, *counts)),
        )
        widths = np.diff(edges)
        axes.bar(edges[:-1], counts, widths, align="edge", color=colour, edgecolor=CARD)
        charts.append(
            chart(
                axes,
                title=title,
                caption=caption,
                columns=("from", "to", "records"),
                rows=[
                    (f"{a:.3g}", f"{b:.3g}", f"{n:,}")
                    for a, b, n in zip(edges, edges[1:], counts, strict=False)
                ],
            )
        )
    return charts


def selective_chart(points: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Returns accuracy where only the surest predictions are kept."""
    if not points:
        return None
    pairs = sorted((float(row["coverage"]), float(row["accuracy"])) for row in points)
    coverage, accuracy = [p[0] for p in pairs], [p[1] for p in pairs]
    low = max(0.0, min(accuracy) - 0.4 * (1.0 - min(accuracy)) - 0.01)
    axes = chart_axes(
        "share of records answered",
        "accuracy on them",
        x_limits=(0, 1),
        y_limits=(low, 1),
        x_is_share=True,
        y_is_share=True,
    )
    axes.plot(coverage, accuracy, color=ONE, linewidth=2.4)
    return chart(
        axes,
        title="Selective accuracy: let the model abstain",
        caption=(
            "How often it is right if it answers only the share of records of which it is surest,"
            " and passes the others to a person."
        ),
        columns=("answered", "accuracy"),
        rows=[(f"{100 * a:.0f} %", f"{100 * b:.1f} %") for a, b in pairs],
    )


def certificate_chart(certificate: Mapping[str, Any]) -> Chart | None:
    """Returns accuracy and certified accuracy by radius, the latter with its interval."""
    points = sorted(certificate["points"], key=lambda row: float(row["radius"]))
    if not points:
        return None
    radius = [float(row["radius"]) for row in points]
    certified = [float(row["certified"]) for row in points]
    low, high = ([float(row[end]) for row in points] for end in ("low", "high"))
    axes = chart_axes(
        "radius",
        "accuracy",
        x_limits=(0, max(radius[-1], 1e-9)),
        y_limits=(0, 1),
        y_is_share=True,
    )
    axes.fill_between(radius, low, high, color=ONE, alpha=0.14, linewidth=0)
    axes.plot(radius, certified, color=ONE, linewidth=2.4)
    legend = [("area", "95 % interval"), ("one", "certified: right whatever the change")]
    accuracy = [row.get("accuracy") for row in points]
    if all(value is not None for value in accuracy):
        axes.plot(radius, accuracy, color=TWO, linewidth=2.4, linestyle=DASHED)
        legend.append(("two", "without any change"))
    return chart(
        axes,
        title="Certified robustness",
        caption=(
            "The share of records that are predicted right, provably, however an input is changed"
            f" within a radius ({certificate.get('norm', 'norm not stated')})."
        ),
        legend=legend,
        columns=("radius", "certified", "95 % interval"),
        rows=[
            (
                f"{r:g}",
                f"{100 * c:.1f} %",
                f"{100 * float(row['low']):.1f} to {100 * float(row['high']):.1f} %",
            )
            for r, c, row in zip(radius, certified, points, strict=True)
        ],
    )
