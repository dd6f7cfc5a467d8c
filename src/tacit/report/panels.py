"""The panels of a report that are mostly words: what the page is filled with."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tacit.privacy.accounting import round_up
from tacit.report.charts import Chart
from tacit.report.evaluation_panel import (
    certificate_chart,
    reliability_chart,
    selective_chart,
    uncertainty_charts,
)
from tacit.report.metric_tables import metric_rows, subgroup_table
from tacit.report.run import Run

__all__ = [
    "LedgerPanel",
    "audit_panel",
    "banners",
    "certificate_panel",
    "evaluation_panel",
    "results",
    "tiles",
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


def banners(statement: Mapping[str, Any], run: Run) -> Iterator[tuple[str, str, str]]:
    """Yields what nobody may overlook: its kind, a loud word and a sentence."""
    if math.isinf(float(statement["epsilon"])):
        yield "bad", "NOT PRIVATE.", "Nothing is promised. Publish nothing of this run."
        return
    if not statement["is_secure"]:
        yield (
            "bad",
            "INSECURE.",
            "The noise came from a known seed: whoever has it can take it off. For trials only.",
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
            f" {', '.join(unpaid)}. Measure on public records, or pay, before it leaves the house.",
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
            "An attack was really made. It can show that a promise is broken; that it found nothing"
            " proves nothing."
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


def verified(run: Run) -> str:
    """Returns what the second accountant says, in a line."""
    found = run.verification
    if not found.holds or found.claimed is None or found.recomputed is None:
        return found.verdict
    return (
        f"Verified when this page was made: epsilon {round_up(found.claimed)} is claimed, a second"
        f" accountant finds {found.recomputed:.4f}. {found.note}"
    ).rstrip()


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
        return f"Measured on {count:,} public records ({name}), which cost nothing."
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
