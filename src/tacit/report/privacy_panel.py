"""The privacy panel of a report: what epsilon was spent when, and what it means."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tacit.privacy.explain import Explanation
from tacit.privacy.statement.text import percent_up
from tacit.report.charts import Axis, Chart, draw
from tacit.report.marks import Area, Line, Rule

__all__ = ["epsilon_chart", "pictogram", "trade_off_chart", "units"]

_SHOWN_RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)


def epsilon_chart(progress: Sequence[Mapping[str, Any]], claimed: float) -> Chart | None:
    """Returns epsilon over steps; None where nothing is promised or nothing was noted."""
    # A run computes few values and rounds up between them: the last step of each is exact.
    last = {float(row["epsilon"]): int(row["step"]) for row in progress}
    points = sorted((step, value) for value, step in last.items() if math.isfinite(value))
    if not points or math.isinf(claimed):
        return None
    steps, values = [0, *(p[0] for p in points)], [0.0, *(p[1] for p in points)]
    return draw(
        title="Epsilon over the steps of the run",
        caption="What had been spent after so many steps. Most is spent early; every step counts.",
        x=Axis(label="steps", low=0, high=max(steps[-1], 1)),
        y=Axis(label="epsilon", low=0, high=1.18 * max(claimed, *values)),
        marks=[
            Area(x=steps, low=[0.0] * len(steps), high=values),
            Line(x=steps, y=values, name="spent so far"),
            Rule(at=claimed, words=f"stated: {claimed:g}"),
        ],
        columns=("steps", "epsilon"),
        rows=[(f"{step:,}", f"{value:.3f}") for step, value in points],
    )


def units(statement: Mapping[str, Any]) -> str:
    """Returns what is protected, in the plural; a person only where the statement says so."""
    return "people" if str(statement["unit"]).startswith("one person") else "records"


def trade_off_chart(explanation: Explanation, *, units: str) -> Chart | None:
    """Returns what the best attack can do; None where nothing is promised."""
    if math.isinf(explanation.epsilon):
        return None
    curve = explanation.trade_off
    rates = np.unique(np.concatenate([np.geomspace(1e-3, 1, 60), np.linspace(0, 1, 61)]))
    found = [float(value) for value in curve.true_positive_rate(rates)]
    x = [float(rate) for rate in rates]
    shown = curve.true_positive_rate(np.array(_SHOWN_RATES))
    return draw(
        title="What the best possible attack can do",
        caption=(
            f"For every share of outside {units} that an attack wrongly takes for inside, the"
            f" largest share of {units} in the data that it can find. On the dashed line it only"
            " guesses."
        ),
        x=Axis(label=f"outside {units} wrongly accused", low=0, high=1, is_share=True),
        y=Axis(label=f"{units} found, at most", low=0, high=1, is_share=True),
        marks=[
            Area(x=x, low=x, high=found),
            Line(x=[0.0, 1.0], y=[0.0, 1.0], name="guessing", style="guess"),
            Line(x=x, y=found, name="no attack is above this"),
        ],
        columns=("wrongly accused", "found at most"),
        rows=[
            (f"{100 * rate:g} %", percent_up(power, digits=2))
            for rate, power in zip(_SHOWN_RATES, shown, strict=True)
        ],
    )


def pictogram(explanation: Explanation) -> dict[str, Any] | None:
    """Returns of a hundred units in the data how many an attack finds at 1 % false alarms."""
    if math.isinf(explanation.epsilon):
        return None
    power = explanation.true_positive_rate(0.01)
    return {
        "found": min(100, math.ceil(100 * power - 1e-9)),
        "percent": f"{math.ceil(1000 * power - 1e-9) / 10:.1f}",
    }
