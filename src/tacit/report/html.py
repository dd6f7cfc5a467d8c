"""The report of a run: one HTML file that loads nothing from anywhere."""

import functools
import importlib.metadata
import importlib.resources
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

from tacit.errors import TacitError
from tacit.privacy.explain import explain_statement
from tacit.privacy.statement import statement_from_json
from tacit.privacy.statement.text import promise, sections
from tacit.report.citations import citations_of
from tacit.report.panels import (
    LedgerPanel,
    audit_panel,
    banners,
    certificate_panel,
    evaluation_panel,
    results,
    tiles,
    verified,
)
from tacit.report.privacy_panel import epsilon_chart, pictogram, trade_off_chart, units
from tacit.report.run import Run, read_run

__all__ = ["render_report", "write_report"]

_SECTIONS = (
    ("summary", "In plain words"),
    ("privacy", "Privacy"),
    ("accuracy", "Accuracy"),
    ("uncertainty", "Uncertainty"),
    ("groups", "Groups"),
    ("robustness", "Robustness"),
    ("audit", "Audit"),
    ("verify", "Verify"),
    ("cite", "Cite"),
)


def write_report(
    directory: str | os.PathLike[str],
    file: str | os.PathLike[str] | None = None,
    *,
    ledger: LedgerPanel | None = None,
) -> Path:
    """Writes the report of a run's directory and returns where it is.

    Guarantee:
      Reads only what is in the directory, which is covered by the statement, or says what it is.
      No record is read.

    Args:
      directory: where ``tacit fit`` wrote.
      file: where the report goes; ``report.html`` in the directory by default.
      ledger: what was spent on the records, as `ledger_panel` gives it.
    """
    path = Path(directory) / "report.html" if file is None else Path(file)
    page = render_report(read_run(directory), ledger=ledger)
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise TacitError(f"{path} cannot be written ({error.strerror}).") from None
    return path


def render_report(run: Run, *, ledger: LedgerPanel | None = None) -> str:
    """Returns the page of a run."""
    statement_from_json(run.statement)  # all fields are there
    return str(_part("statement.json", functools.partial(_rendered, ledger=ledger), run))


def _rendered(run: Run, *, ledger: LedgerPanel | None) -> str:
    statement = run.statement
    claimed, explanation = float(statement["epsilon"]), explain_statement(statement)
    evaluation = _part("evaluation.json", evaluation_panel, run.evaluation)
    charts = [
        _part("progress.json", lambda rows: epsilon_chart(rows, claimed), run.progress),
        trade_off_chart(explanation, units=units(statement)),
    ]
    return _template().render(
        version=importlib.metadata.version("tacit"),
        style=_asset("style.css"),
        title=run.name,
        subtitle=f"{statement['method']} on {statement['num_units']:,} units of privacy",
        banners=list(banners(statement, run)),
        tiles=list(tiles(statement, evaluation)),
        sections=_SECTIONS,
        summary=[
            statement["summary"],
            *(_part("evaluation.json", results, run.evaluation) or ()),
        ],
        promise=promise(statement),
        statement=statement,
        pictogram=pictogram(explanation),
        units=units(statement),
        privacy_charts=[chart for chart in charts if chart is not None],
        has_progress=run.progress is not None,
        ledger=ledger,
        evaluation=evaluation,
        certificate=_part("certificate.json", certificate_panel, run.certificate),
        audit=_part("audit.json", audit_panel, run.audit),
        verification={"holds": run.verification.holds, "line": verified(run)},
        statement_sections=list(sections(statement_from_json(statement).to_json())),
        study=run.study,
        schema=run.schema,
        citations=citations_of(
            statement, evaluation=run.evaluation, certificate=run.certificate, audit=run.audit
        ),
    )


def _part(file: str, build: Callable[[Any], Any], document: Any) -> Any:
    """A panel from a file, or a sentence on why the file is not what it should be."""
    if document is None:
        return None
    try:
        return build(document)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise TacitError(
            f"{file} does not hold what it should ({type(error).__name__}: {error}). Write it again"
            f" with the verb that makes it."
        ) from None


@functools.cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, finalize=_unbroken
    )
    return environment.from_string(_asset("report.html"))


def _unbroken(value: Any) -> Any:
    """Keeps a percent sign on the line of its number."""
    is_text = isinstance(value, str) and not isinstance(value, markupsafe.Markup)
    return value.replace(" %", "\N{NO-BREAK SPACE}%") if is_text else value


@functools.cache
def _asset(name: str) -> str:
    file = importlib.resources.files("tacit.report") / "page" / name
    return file.read_text(encoding="utf-8")
