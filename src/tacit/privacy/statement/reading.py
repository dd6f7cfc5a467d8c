"""Reading a privacy statement from a run's directory or from its own file."""

import json
import os
from pathlib import Path
from typing import Any

from tacit.errors import TacitError

__all__ = ["read_sealed_statement", "read_statement"]


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
