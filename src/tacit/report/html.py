"""The report of a run: one HTML file that loads nothing from anywhere."""

import functools
import importlib.metadata
import importlib.resources
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jinja2
import markupsafe

import tacit.numpyro.method  # noqa: F401 (it declares what DPSVI runs)
from tacit.errors import TacitError
from tacit.inference.method import declarations
from tacit.privacy.interpretation import explain_statement
from tacit.privacy.statement.fields import statement_from_json
from tacit.privacy.statement.text import promise, sections
from tacit.report.interval_panel import interval_panel
from tacit.report.panels import (
    LedgerPanel,
    audit_panel,
    banners,
    certificate_panel,
    epsilon_chart,
    evaluation_panel,
    pictogram,
    results,
    tiles,
    trade_off_chart,
    units,
    verified,
)
from tacit.studies.run_folder import FinishedRun, read_run

__all__ = ["Citation", "citations_of", "render_report", "write_report"]


@dataclass(frozen=True, kw_only=True)
class Citation:
    """One source.

    Attributes:
      why: what of the run rests on it.
      bibtex: the entry for BibTeX.
      fields: of the entry.
    """

    why: str
    bibtex: str
    fields: Mapping[str, str]

    @property
    def text(self) -> str:
        """The entry for people."""
        venue = self.fields.get("booktitle") or self.fields.get("journal", "")
        names = [author.split(",")[0] for author in self.fields["author"].split(" and ")]
        authors = f"{names[0]} et al." if len(names) > 3 else ", ".join(names)
        return f"{authors} ({self.fields['year']}). {self.fields['title']}. {venue}."


_ACCOUNTANTS = {
    "PLD": "doroshenko2022connect",
    "RDP": "mironov2017renyi",
    "GDP": "dong2022gaussian",
    "CLT": "bu2020deep",
}
_BATCHES = {
    "Poisson batch": "zhu2019poisson",
    "Poisson batch of bounded size": "zhu2019poisson",
    "fixed-size batch": "balle2018privacy",
}
_CERTIFICATES = {
    "interval": "gowal2018effectiveness",
    "crown": "zhang2018efficient",
    "linear": "zhang2018efficient",
    "smoothing": "cohen2019certified",
}
_AUDITS = {
    "one run": "steinke2023privacy",
    "likelihood ratio": "carlini2022membership",
    "how well each record is predicted": "yeom2018privacy",
}


def citations_of(
    statement: Mapping[str, Any],
    *,
    evaluation: Mapping[str, Any] | None = None,
    certificate: Mapping[str, Any] | None = None,
    audit: Mapping[str, Any] | None = None,
) -> list[Citation]:
    """Returns the sources of what was run, each once, the method first.

    Args:
      statement: the privacy statement, which names method, accountant, batches and clipping.
      evaluation: cited for its calibration, where it has any.
      certificate: cited for its method.
      audit: cited for its attack.
    """
    found: dict[str, Citation] = {}
    for why, key in _used(statement, evaluation or {}, certificate or {}, audit or {}):
        if key not in found:
            found[key] = replace(_reference(key), why=why)
    return list(found.values())


def _used(
    statement: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    certificate: Mapping[str, Any],
    audit: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    cited = {found.method.__name__: found.citations for found in declarations().values()}
    for name in str(statement["method"]).split(" of "):
        yield from (("the method", key) for key in cited.get(name, ()))
    yield "noise scaled to sensitivity", "dwork2006calibrating"
    if len(statement["releases_made"]) > 0:
        yield "clipped, noisy gradient sums", "abadi2016deep"
    for row in statement["releases_made"]:
        if row["sampling"] in _BATCHES:
            yield "privacy amplified by sampling", _BATCHES[row["sampling"]]
    if any(engine["clipping"] == "Normalised" for engine in statement["engines"]):
        yield "normalised clipping", "bu2023automatic"
    if str(statement["composition"]).startswith("parallel"):
        yield "disjoint shards", "mcsherry2009privacy"
    for name, key in _ACCOUNTANTS.items():
        if str(statement["accountant"]).startswith(name):
            yield "the accountant", key
    if statement["cross_check"] is not None:
        yield "the cross-check", "mironov2017renyi"
    yield "the verification", "doroshenko2022connect"
    if evaluation.get("reliability"):
        yield "calibration error", "guo2017calibration"
    yield from _named(_CERTIFICATES, certificate.get("method"), "the certificate")
    yield from _named(_AUDITS, audit.get("attack"), "the audit")


def _named(table: Mapping[str, str], text: Any, why: str) -> Iterator[tuple[str, str]]:
    words = str(text or "").lower().replace("-", " ")
    yield from ((why, key) for word, key in table.items() if word in words)


def _reference(key: str) -> Citation:
    """The source of a key, or of an entry that a method brings along."""
    return next(iter(_entries(key).values())) if key.startswith("@") else _references()[key]


@functools.cache
def _references() -> dict[str, Citation]:
    """All sources by key."""
    file = importlib.resources.files("tacit.report") / "page" / "references.bib"
    return _entries(file.read_text("utf-8"))


def _entries(text: str) -> dict[str, Citation]:
    """Entries of BibTeX by key; each has one plain field a line."""
    found = re.findall(r"^(@\w+\{(\w+),\n(.*?)^\})$", text, re.M | re.S)
    if not found:
        raise TacitError(f"a citation must be a BibTeX entry with one field a line; got {text!r}.")
    return {
        key: Citation(
            why="", bibtex=body, fields=dict(re.findall(r"^  (\w+) = \{(.*)\},$", lines, re.M))
        )
        for body, key, lines in found
    }


_SECTIONS = (
    ("summary", "In plain words"),
    ("privacy", "Privacy"),
    ("accuracy", "Accuracy"),
    ("intervals", "Intervals"),
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


def render_report(run: FinishedRun, *, ledger: LedgerPanel | None = None) -> str:
    """Returns the page of a run."""
    statement_from_json(run.statement)  # all fields are there
    return str(_part("statement.json", functools.partial(_rendered, ledger=ledger), run))


def _rendered(run: FinishedRun, *, ledger: LedgerPanel | None) -> str:
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
        intervals=interval_panel(run),
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
