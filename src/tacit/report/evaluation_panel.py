"""The panels of a report on how good predictions are: calibration, uncertainty, robustness."""

from collections.abc import Mapping, Sequence
from typing import Any

from tacit.report.charts import Axis, Chart, draw
from tacit.report.marks import Area, Bars, Dots, Line

__all__ = [
    "certificate_chart",
    "reliability_chart",
    "selective_chart",
    "uncertainty_charts",
]


def reliability_chart(bins: Sequence[Mapping[str, Any]]) -> Chart | None:
    """Returns accuracy against confidence, with intervals; None without a filled bin."""
    filled = [row for row in bins if row.get("count") and row.get("accuracy") is not None]
    if not filled:
        return None
    confidence = [float(row["confidence"]) for row in filled]
    low = [float(row["low"]) for row in filled]
    high = [float(row["high"]) for row in filled]
    largest = max(int(row["count"]) for row in filled)
    start = 0.0 if min([*confidence, *low]) < 0.45 else 0.4
    width = (1 - start) / 40
    counts = [
        Bars(
            edges=[max(start, at - width), min(1.0, at + width)],
            heights=[start + 0.22 * (1 - start) * int(row["count"]) / largest],
            style="count",
            name="records (relative)" if at == confidence[0] else "",
        )
        for at, row in zip(confidence, filled, strict=True)
    ]
    return draw(
        title="Reliability: is the model as right as it is sure?",
        caption=(
            "Each dot is a group of records on which the model was about as sure, with the 95 %"
            " interval of how often it was right. On the dashed line it is calibrated; below, it"
            " is overconfident."
        ),
        x=Axis(label="confidence", low=start, high=1, is_share=True),
        y=Axis(label="accuracy", low=start, high=1, is_share=True),
        marks=[
            *counts,
            Line(x=[start, 1.0], y=[start, 1.0], name="calibrated", style="guess"),
            Dots(
                x=confidence,
                y=[float(row["accuracy"]) for row in filled],
                low=[max(start, value) for value in low],
                high=high,
                name="this model",
            ),
        ],
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
        "one",
    ),
    "epistemic": (
        "Epistemic: what the model does not know",
        "The draws of the posterior disagree here. More records, or less privacy noise, would"
        " make it smaller.",
        "two",
    ),
}


def uncertainty_charts(uncertainty: Mapping[str, Mapping[str, Any]]) -> list[Chart]:
    """Returns a histogram for each kind of uncertainty."""
    charts = []
    for kind, (title, caption, style) in _UNCERTAINTY.items():
        if kind not in uncertainty:
            continue
        edges = [float(edge) for edge in uncertainty[kind]["edges"]]
        counts = [int(count) for count in uncertainty[kind]["counts"]]
        charts.append(
            draw(
                title=title,
                caption=caption,
                x=Axis(label=f"{kind} uncertainty", low=edges[0], high=edges[-1]),
                y=Axis(label="records", low=0, high=1.08 * max(1, *counts)),
                marks=[Bars(edges=edges, heights=counts, style=style)],
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
    return draw(
        title="Selective accuracy: let the model abstain",
        caption=(
            "How often it is right if it answers only the share of records of which it is surest,"
            " and passes the others to a person."
        ),
        x=Axis(label="share of records answered", low=0, high=1, is_share=True),
        y=Axis(label="accuracy on them", low=low, high=1, is_share=True),
        marks=[Line(x=coverage, y=accuracy)],
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
    marks: list[Any] = [
        Area(
            x=radius,
            low=[float(row["low"]) for row in points],
            high=[float(row["high"]) for row in points],
            name="95 % interval",
        ),
        Line(x=radius, y=certified, name="certified: right whatever the change"),
    ]
    accuracy = [row.get("accuracy") for row in points]
    if all(value is not None for value in accuracy):
        values = [float(value) for value in accuracy if value is not None]
        marks.append(Line(x=radius, y=values, name="without any change", style="two"))
    return draw(
        title="Certified robustness",
        caption=(
            "The share of records that are predicted right, provably, however an input is changed"
            f" within a radius ({certificate.get('norm', 'norm not stated')})."
        ),
        x=Axis(label="radius", low=0, high=max(radius[-1], 1e-9)),
        y=Axis(label="accuracy", low=0, high=1, is_share=True),
        marks=marks,
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
