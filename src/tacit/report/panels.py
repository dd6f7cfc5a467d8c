"""The panels of a report that are mostly words: what the page is filled with."""

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.errors import LedgerError
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.interpretation import Explanation
from tacit.privacy.ledger import LedgerFile
from tacit.privacy.ledger.state import DataSetRecord, RunRecord
from tacit.privacy.statement.text import percent_up
from tacit.report.evaluation_panel import (
    certificate_chart,
    metric_rows,
    reliability_chart,
    selective_chart,
    subgroup_table,
    uncertainty_charts,
)
from tacit.report.figures import DASHED, DOTTED, INK, ONE, SOFT, Chart, chart, chart_axes
from tacit.studies.run_folder import FinishedRun

__all__ = [
    "LedgerPanel",
    "audit_panel",
    "banners",
    "certificate_panel",
    "epsilon_chart",
    "evaluation_panel",
    "ledger_panel",
    "pictogram",
    "results",
    "tiles",
    "trade_off_chart",
    "units",
    "verified",
]

_FIRST = ("accuracy", "ece", "rmse", "coverage_90")
_MEASURED = ("evaluation", "certificate", "audit")


@dataclass(frozen=True, kw_only=True)
class LedgerPanel:
    """What all runs together spent.

    Attributes:
      words: one sentence.
      share: the part of the budget that is spent.
      rows: time, purpose, steps and noise of each run.
    """

    words: str
    share: float
    rows: Sequence[tuple[str, str, str, str]]


def banners(statement: Mapping[str, Any], run: FinishedRun) -> Iterator[tuple[str, str, str]]:
    """Yields what nobody may overlook: its kind, a loud word and a sentence."""
    if math.isinf(float(statement["epsilon"])):
        yield "bad", "NOT PRIVATE.", "Nothing is promised. Publish nothing of this run."
        return
    if not statement["is_secure"]:
        yield (
            "bad",
            "INSECURE.",
            "The noise came from a known seed; anyone who has it can subtract it. For tests only.",
        )
    if not statement["is_bound"]:
        yield "bad", "NOT A GUARANTEE.", "Epsilon is an approximation, not a bound."
    others = [p for p in run.verification.problems if not p.startswith("INSECURE")]
    unpaid = [name for name in _MEASURED if _is_unpaid(getattr(run, name))]
    if unpaid:
        yield (
            "bad",
            "NOT FOR PUBLICATION.",
            "This page, unlike the run, shows unpaid results from private records:"
            f" {', '.join(unpaid)}. Measure on public records, or pay, before you publish it.",
        )
    if others:
        yield "bad", "THE CLAIM DOES NOT HOLD.", "; ".join(others)
    elif statement["is_secure"] and statement["is_bound"]:
        yield "good", "May be published:", "; ".join(statement["artefacts_covered"]) + "."


def tiles(
    statement: Mapping[str, Any], evaluation: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    """Yields the numbers at the top, each with what it is."""
    epsilon = float(statement["epsilon"])
    yield "∞" if math.isinf(epsilon) else f"{epsilon:g}", "epsilon: the promise"
    yield f"{statement['delta']:g}".replace("e-0", "e-"), "delta: the chance that it fails"
    if evaluation is not None:
        shown = [row for row in evaluation["metrics"] if row["key"] in _FIRST]
        yield from ((row["value"], row["name"]) for row in shown[:2])
    most = "" if statement.get("num_units_is_public", True) else ", at most"
    yield f"{statement['num_units']:,}", f"units of privacy{most}"
    yield f"{statement['releases']:,}", "noisy releases"


def results(document: Mapping[str, Any]) -> list[str]:
    """Returns an evaluation in a sentence, or nothing."""
    rows = metric_rows(document["metrics"])
    words = [f"{row['name']} {row['value']}" for row in rows if row["key"] in _FIRST]
    name = document["data"].get("name", "the records of its evaluation")
    return [f"Measured on {name}: {' and '.join(words)}."] if words else []


def evaluation_panel(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns how good predictions are."""
    return {
        "data": _data(document["data"]),
        "metrics": metric_rows(document["metrics"]),
        "reliability": reliability_chart(document.get("reliability") or ()),
        "uncertainty": uncertainty_charts(document.get("uncertainty") or {}),
        "selective": selective_chart(document.get("selective") or ()),
        "subgroups": subgroup_table(document.get("subgroups") or ()),
    }


def certificate_panel(document: Mapping[str, Any]) -> dict[str, str | Chart | None]:
    """Returns what is certified against changed inputs."""
    return {
        "data": _data(document["data"]),
        "method": str(document.get("method", "")),
        "chart": certificate_chart(document),
    }


def audit_panel(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what an attack found."""
    verdict, claimed = str(document["verdict"]), document["claimed"]
    details = (document.get("details") or {}).items()
    return {
        "kind": "good" if verdict.startswith("no violation") else "bad",
        "verdict": verdict,
        "text": (
            "This attack was carried out. It can show that the guarantee is broken; finding nothing"
            " does not prove that it holds."
        ),
        "rows": [
            ("attack", str(document["attack"])),
            ("records", _audited(document["data"])),
            ("promise", f"epsilon {_epsilon(claimed['epsilon'])} at delta {claimed['delta']:g}"),
            (
                "proven by the attack",
                f"epsilon is at least {_round_down(float(document['lower_bound']))}, with"
                f" {100 * float(document['confidence']):g} % confidence",
            ),
            *(
                (str(key).replace("_", " "), f"{value:g}" if type(value) is float else str(value))
                for key, value in details
                if isinstance(value, str | int | float)
            ),
        ],
    }


def verified(run: FinishedRun) -> str:
    """Returns what the second accountant says, in a line."""
    found = run.verification
    if not found.holds or found.claimed is None or found.recomputed is None:
        return found.verdict
    return (
        f"Verified when this page was made: epsilon {round_up(found.claimed)} is claimed, a second"
        f" accountant finds {found.recomputed:.4f}."
    )


def _is_unpaid(document: Mapping[str, Any] | None) -> bool:
    """Whether results are of private records, and no statement says what they cost."""
    if document is None:
        return False
    data = document.get("data")
    if not isinstance(data, Mapping):
        return True
    return not data.get("public") and not isinstance(data.get("statement"), Mapping)


def _data(data: Mapping[str, Any]) -> str:
    name, count = str(data.get("name", "")), int(data["num_records"])
    if data["public"]:
        return f"Measured on {count:,} public records ({name}); no privacy cost."
    charged = data.get("statement")
    if isinstance(charged, str):
        return f"Measured on {count:,} private records ({name}). {charged}"
    if isinstance(charged, Mapping):
        charged = f"epsilon {charged.get('epsilon_text')} at delta {charged.get('delta')}"
    price = f" They are charged: {charged}." if charged else " What they cost is not stated."
    return f"Measured on {count:,} private records ({name}).{price}"


def _audited(data: Mapping[str, Any]) -> str:
    words = f"{data.get('name', 'not named')}, {int(data['num_records']):,} of them"
    return f"{words}; {data['statement']}" if isinstance(data.get("statement"), str) else words


def _epsilon(value: Any) -> str:
    return "infinity" if math.isinf(float(value)) else f"{float(value):.4g}"


def _round_down(bound: float) -> str:
    """A lower bound as people should see it: never larger than it is."""
    return f"{math.floor(1000 * bound) / 1000:.3f}"


def ledger_panel(path: str | os.PathLike[str], *, data_set: str | None = None) -> LedgerPanel:
    """Returns what a ledger says of one data set; fingerprints stay in the ledger.

    Args:
      path: the ledger's file.
      data_set: as its owner calls it; may be left out where there is only one.
    """
    ledger = LedgerFile.open(path)
    known = ledger.state.data_sets
    if data_set is None:
        if len(known) != 1:
            raise LedgerError(
                f"the ledger {path} has {len(known)} data sets; name one as data_set."
            )
        data_set = next(iter(known))
    record = ledger.data_set(data_set).record_in(ledger.state)
    spent, budget = record.spending.epsilon, record.rule.epsilon
    return LedgerPanel(
        words=(
            f"Of the budget that the owner of {data_set!r} set once, epsilon {budget:g} at delta"
            f" {record.rule.delta:g}, all {len(record.runs)} runs together have spent"
            f" {round_up(spent)}."
        ),
        share=min(1.0, spent / budget),
        rows=list(_rows(record)),
    )


def _rows(record: DataSetRecord) -> Iterator[tuple[str, str, str, str]]:
    for run in record.runs.values():
        yield run.time, run.purpose, _steps(run), "secret" if run.is_secure else "INSECURE"


def _steps(run: RunRecord) -> str:
    if run.num_steps is None:
        return "–"
    return f"{run.steps_charged:,} of {run.num_steps:,}"


_SHOWN_RATES = (0.001, 0.01, 0.05, 0.1, 0.25, 0.5)


def epsilon_chart(progress: Sequence[Mapping[str, Any]], claimed: float) -> Chart | None:
    """Returns epsilon over steps; None where nothing is promised or nothing was noted."""
    # A run computes few values and rounds up between them: the last step of each is exact.
    last = {float(row["epsilon"]): int(row["step"]) for row in progress}
    points = sorted((step, value) for value, step in last.items() if math.isfinite(value))
    if not points or math.isinf(claimed):
        return None
    steps, values = [0, *(p[0] for p in points)], [0.0, *(p[1] for p in points)]
    axes = chart_axes(
        "steps",
        "epsilon",
        x_limits=(0, max(steps[-1], 1)),
        y_limits=(0, 1.18 * max(claimed, *values)),
    )
    axes.fill_between(steps, values, color=ONE, alpha=0.14, linewidth=0)
    axes.plot(steps, values, color=ONE, linewidth=2.4)
    axes.axhline(claimed, color=INK, linewidth=1.3, linestyle=DOTTED)
    axes.annotate(
        f"stated: {claimed:g}",
        (0, claimed),
        xytext=(6, 6),
        textcoords="offset points",
        color=INK,
        fontsize=12,
        fontweight="bold",
    )
    return chart(
        axes,
        title="Epsilon over the steps of the run",
        caption="What the run had spent after each step. The first steps cost the most.",
        legend=[("one", "spent so far")],
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
    found = curve.true_positive_rate(rates)
    shown = curve.true_positive_rate(np.array(_SHOWN_RATES))
    axes = chart_axes(
        f"outside {units} wrongly accused",
        f"{units} found, at most",
        x_limits=(0, 1),
        y_limits=(0, 1),
        x_is_share=True,
        y_is_share=True,
    )
    axes.fill_between(rates, rates, found, color=ONE, alpha=0.14, linewidth=0)
    axes.plot([0, 1], [0, 1], color=SOFT, linewidth=1.3, linestyle=DASHED)
    axes.plot(rates, found, color=ONE, linewidth=2.4)
    return chart(
        axes,
        title="What the best possible attack can do",
        caption=(
            f"For every share of outside {units} that an attack wrongly takes for inside, the"
            f" largest share of {units} in the data that it can find. On the dashed line it only"
            " guesses."
        ),
        legend=[("guess", "guessing"), ("one", "no attack is above this")],
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
