"""The fields of a privacy statement, and the statement as a file."""

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from tacit import _display
from tacit.errors import InvalidArgumentError, TacitError
from tacit.privacy.statement import text

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = [
    "Statement",
    "Tuning",
    "checksum",
    "missing_fields",
    "read_sealed_statement",
    "read_statement",
    "statement_from_json",
]

_VERSION = 1

Tuning: TypeAlias = Literal["none", "public", "simulated", "counted", "not counted"]
"""How settings were chosen: not at all, on public records, on simulated ones, on these and paid
for, or on these and not paid."""


@dataclass(frozen=True, kw_only=True)
class Statement:
    """What is promised about a run, and what it rests on.

    ``str`` gives the promise in a few lines, `text` all of it.

    Attributes:
      epsilon: of everything executed, at `delta`, rounded up; infinite when nothing is promised,
        as under an infinite budget, whatever the noise was.
      epsilon_text: the same for people, with INSECURE where the noise was not secret and "about"
        where the accountant is no bound.
      delta: the failure probability.
      adjacency: which two data sets the promise compares.
      accountant: who computed epsilon, and whether it is a bound.
      unit: what one unit of privacy is.
      num_units: how many there are; public. Under add-remove, how many were declared at most.
      not_protected: what the promise takes as public.
      composition: how the costs of releases add up.
      releases: how many noisy sums left the engine.
      cost: the executed mechanisms, from which epsilon can be computed again.
      randomness: where noise, batches and masks came from.
      noise: what the noise is.
      sensitivity: how far one record moves a sum, and in which arithmetic that is bounded.
      arithmetic: of sums and noise, for which the promise is proven.
      is_secure: whether the randomness is secret; a seed is not.
      is_bound: whether epsilon is an upper bound or an approximation.
      date: when the run ended, in coordinated universal time.
      version: of this list of fields.
      intended_use: what the artefacts are for, in the owner's words.
      summary: the promise in plain language.
      mechanism: what was done to the records, with its sources.
      threat_model: whom the promise holds against.
      rows_per_unit: how many rows of one unit count at most.
      num_units_is_public: whether the promise takes the number of units as known.
      curve: epsilon at other deltas, as ``{"delta", "epsilon"}``; all hold at once.
      best_attack: no test for one unit's presence does better than ``true_positive_rate`` at
        ``false_positive_rate``; None where nothing is promised.
      cross_check: epsilon by another accountant, as ``{"accountant", "epsilon"}``, or None.
      method: the class of what was run; with the one that it runs, where it runs another.
      num_steps: updates of each chain that were made; None where the caller has no steps.
      length: how their number was fixed. Where fewer were made than were declared, `epsilon`,
        `cost` and the releases are those of all that were declared: only that holds for a run that
        somebody stopped by looking at it.
      num_chains: how many chains.
      releases_made: each kind of release as executed: sampling, rate, noise, times.
      engines: each configured sum: clip norm and rule, batch, and what it is divided by.
      artefacts_covered: what may be published under this promise.
      artefacts_not_covered: what may not.
      tuning: how settings were chosen.
      other_releases: what else is known to have been released about the same records.
      norms: how many records the clip shortened, in the second half of the run, from
        `tacit.privacy.clipping.slack.NormHistogram`; None where nobody counted.
      audit: what an empirical audit found; never a guarantee.
      metrics_data: which records published metrics come from.
      recompute: how to check epsilon with nothing but this file.
      software: names and versions, and what computed the noise: the native kernel or JAX.
    """

    epsilon: float
    epsilon_text: str
    delta: float
    adjacency: str
    accountant: str
    unit: str
    num_units: int
    not_protected: str
    composition: str
    releases: int
    cost: dict[str, Any]
    randomness: str
    noise: str
    is_secure: bool
    is_bound: bool
    date: str
    summary: str
    mechanism: str
    curve: list[dict[str, float]]
    best_attack: dict[str, float] | None
    cross_check: dict[str, Any] | None
    releases_made: list[dict[str, Any]]
    engines: list[dict[str, Any]]
    software: dict[str, str]
    method: str = "not stated"
    num_steps: int | None = None
    length: str = text.FIXED
    num_chains: int = 1
    rows_per_unit: int = 1
    num_units_is_public: bool = True
    version: int = _VERSION
    sensitivity: str = text.SENSITIVITY
    arithmetic: str = text.ARITHMETIC
    intended_use: str = "not stated"
    threat_model: str = text.THREAT_MODEL
    artefacts_covered: list[str] = field(default_factory=lambda: list(text.COVERED))
    artefacts_not_covered: list[str] = field(default_factory=lambda: list(text.NOT_COVERED))
    tuning: Tuning = "not counted"
    other_releases: str = text.OTHER_RELEASES
    norms: dict[str, Any] | None = None
    audit: str = "none is part of this statement"
    metrics_data: str = "no metric is part of this statement"
    recompute: str = text.RECOMPUTE

    def __post_init__(self) -> None:
        if self.tuning not in get_args(Tuning):
            raise InvalidArgumentError(
                f"tuning must be one of {', '.join(get_args(Tuning))}; got {self.tuning!r}."
            )

    def to_json(self) -> dict[str, Any]:
        """Returns the statement as JSON-able data; an infinite epsilon is the text 'infinity'."""
        document = dataclasses.asdict(self)
        if math.isinf(self.epsilon):
            document["epsilon"] = "infinity"
        return document

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes ``statement.json``, with a checksum, and ``statement.txt``."""
        folder = Path(directory)
        folder.mkdir(parents=True, exist_ok=True)
        document = self.to_json()
        sealed = document | {"sha256": checksum(document)}
        content = json.dumps(sealed, indent=2, allow_nan=False) + "\n"
        (folder / "statement.json").write_text(content, encoding="utf-8")
        (folder / "statement.txt").write_text(self.text() + "\n", encoding="utf-8")

    def text(self) -> str:
        """Returns all of the statement for people."""
        return text.full(self.to_json())

    def __str__(self) -> str:
        return text.short(self.to_json())

    def __repr__(self) -> str:
        return f"Statement(epsilon {self.epsilon_text}, delta {self.delta:g}, {self.unit})"

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        warning = _display.warning_of(
            epsilon=self.epsilon, is_secure=self.is_secure, is_bound=self.is_bound
        )
        rows = [
            row
            for _, section in text.sections(self.to_json())
            for row in section
            if row[0] in text.SHOWN
        ]
        return _display.Sheet(
            title="Privacy statement",
            rows=[("promise", text.promise(self.to_json())), ("it means", self.summary), *rows],
            warning=warning,
        )


def checksum(document: Mapping[str, Any]) -> str:
    """Returns the checksum of a statement, without the one in it; guards against accidents."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def missing_fields(document: Mapping[str, Any]) -> list[str]:
    """Returns the fields that a statement has and this one lacks."""
    fields = {item.name for item in dataclasses.fields(Statement)}
    return sorted(fields - document.keys())


def statement_from_json(document: Mapping[str, Any]) -> Statement:
    """Returns the statement that `Statement.to_json` described.

    Raises:
      TacitError: where a field is missing.
    """
    missing = missing_fields(document)
    if missing:
        raise TacitError(
            f"the statement has no {', '.join(missing)}. It was made by an older tacit, or is not a"
            " privacy statement."
        )
    values = {item.name: document[item.name] for item in dataclasses.fields(Statement)}
    try:
        values["epsilon"] = float(document["epsilon"])
    except (TypeError, ValueError):
        raise TacitError(
            f"the statement's epsilon is no number: {document['epsilon']!r}. Restore a copy."
        ) from None
    return Statement(**values)


def read_statement(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Returns the statement in ``path``, as JSON-able data.

    Args:
      path: a file such as ``statement.json``, or a directory with that file or a posterior.

    Raises:
      TacitError: where there is none that can be read.
    """
    place = Path(path)
    if not place.exists():
        raise TacitError(f"{place} does not exist. Give a run's directory, or its statement.json.")
    if place.is_dir() and not (place / "statement.json").exists():
        sealed = read_sealed_statement(place)
        if sealed is None:
            raise TacitError(
                f"{place} has no statement: neither statement.json nor posterior.json is there."
            )
        return sealed
    return _read(place / "statement.json" if place.is_dir() else place)


def read_sealed_statement(path: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Returns the copy of the statement in a directory's ``posterior.json``, if there is one."""
    file = Path(path) / "posterior.json"
    if not file.exists():
        return None
    statement = _read(file).get("statement")
    if not isinstance(statement, dict):
        raise TacitError(f"{file} has no statement.")
    return statement


def _read(file: Path) -> dict[str, Any]:
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise TacitError(f"{file} cannot be read ({error.strerror}).") from None
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise TacitError(f"{file} is no JSON ({error}). Restore a copy.") from None
    if not isinstance(document, dict):
        raise TacitError(f"{file} is no statement: it must hold a JSON object.")
    return document
