"""Reading a run's directory: what is there, and what is not."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.privacy.statement import Verification, read_sealed_statement, read_statement
from tacit.privacy.statement import verify_statement as verify

__all__ = ["Run", "read_run"]


@dataclass(frozen=True, kw_only=True)
class Run:
    """The documents of a run; None where a verb was not run.

    Attributes:
      name: of the directory.
      statement: the privacy statement.
      verification: what the second accountant says of it, now.
      progress: epsilon after each chunk of steps.
      evaluation: metrics, calibration, uncertainty and subgroups.
      certificate: certified accuracy by radius.
      audit: what an empirical attack found.
      study: the text of ``study.toml``.
      schema: the text of ``schema.toml``.
    """

    name: str
    statement: dict[str, Any]
    verification: Verification
    progress: list[dict[str, Any]] | None
    evaluation: dict[str, Any] | None
    certificate: dict[str, Any] | None
    audit: dict[str, Any] | None
    study: str | None
    schema: str | None


def read_run(directory: str | os.PathLike[str]) -> Run:
    """Returns the documents of a run's directory.

    Raises:
      TacitError: where there is no statement, or a document cannot be read.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise TacitError(f"{folder} is no directory. Give the one that tacit fit wrote.")
    statement = read_statement(folder)
    return Run(
        name=folder.resolve().name,
        statement=statement,
        verification=verify(statement, sealed=read_sealed_statement(folder)),
        progress=_json(folder / "progress.json", list),
        evaluation=_json(folder / "evaluation.json", dict),
        certificate=_json(folder / "certificate.json", dict),
        audit=_json(folder / "audit.json", dict),
        study=_text(folder / "study.toml"),
        schema=_text(folder / "schema.toml"),
    )


def _text(file: Path) -> str | None:
    if not file.exists():
        return None
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TacitError(f"{file} cannot be read ({error}). Restore a copy.") from None


def _json(file: Path, kind: type) -> Any:
    text = _text(file)
    if text is None:
        return None
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise TacitError(f"{file} is no JSON ({error}). Restore a copy.") from None
    if not isinstance(document, kind):
        raise TacitError(f"{file} must hold a JSON {'list' if kind is list else 'object'}.")
    return document
