"""What to cite: the papers behind exactly what was run."""

import functools
import importlib.resources
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Citation", "citations_of"]


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


_METHODS = {
    "SGD": ("abadi2016deep",),
    "SGLD": ("welling2011bayesian", "wang2015privacy"),
    "SGHMC": ("chen2014stochastic",),
    "HMC": ("raisa2021differentially",),
    "VI": ("jalko2017differentially",),
    "ProgramSVI": ("jalko2017differentially",),
    "IVON": ("shen2024variational",),
    "SWAG": ("maddox2019simple",),
    "Ensemble": ("lakshminarayanan2017simple",),
}
_ACCOUNTANTS = {
    "PLD": "doroshenko2022connect",
    "RDP": "mironov2017renyi",
    "GDP": "dong2022gaussian",
    "CLT": "bu2020deep",
}
_BATCHES = {
    "Poisson batch": "zhu2019poisson",
    "truncated Poisson batch": "zhu2019poisson",
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
            found[key] = replace(_references()[key], why=why)
    return list(found.values())


def _used(
    statement: Mapping[str, Any],
    evaluation: Mapping[str, Any],
    certificate: Mapping[str, Any],
    audit: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    for name in str(statement["method"]).split(" of "):
        yield from (("the method", key) for key in _METHODS.get(name, ()))
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


@functools.cache
def _references() -> dict[str, Citation]:
    """All sources by key; the file holds one plain field a line."""
    file = importlib.resources.files("tacit.report") / "page" / "references.bib"
    entries = re.findall(r"^@\w+\{(\w+),\n(.*?)^\}$", text := file.read_text("utf-8"), re.M | re.S)
    bodies = [body.strip() for body in text.split("\n\n")]
    return {
        key: Citation(
            why="", bibtex=body, fields=dict(re.findall(r"^  (\w+) = \{(.*)\},$", lines, re.M))
        )
        for (key, lines), body in zip(entries, bodies, strict=True)
    }
