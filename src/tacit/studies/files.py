"""Files of a study: errors in one line, and nothing half written."""

import contextlib
import json
import os
import warnings
from pathlib import Path
from typing import Any

import pandas as pd

from tacit.data import Schema
from tacit.data.csv import odd_values, read_csv, remarks, typed
from tacit.data.draft import is_draft
from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError

__all__ = ["read_schema", "read_table", "read_text", "write_json", "write_text"]


def read_text(path: Path, *, what: str) -> str:
    """Returns the text of a file, or raises with what it was to be."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    raise InvalidArgumentError(f"{what} must be a file; {str(path)!r} cannot be read ({reason}).")


def read_schema(path: Path) -> Schema:
    """Returns the schema of a file; errors name the file.

    Warns with `PrivacyWarning` where it is still a draft.
    """
    text = read_text(path, what="schema")
    if is_draft(text):
        warnings.warn(
            f"{path} is still a draft that was read off the records: what it tells of them is not"
            " paid for, and is published with the run. Check it against a code book, and take the"
            " comment at its head away.",
            PrivacyWarning,
            stacklevel=2,
        )
    try:
        return Schema.from_toml(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None


def read_table(path: Path, schema: Schema, *, with_target: bool = True) -> pd.DataFrame:
    """Returns the rows of a CSV file, typed by a schema.

    Warns the owner of values beyond ranges and categories. That depends on the records, and is
    not for publication.
    """
    frame = typed(read_csv(path), schema, with_target=with_target)
    for line in remarks(odd_values(frame, schema), schema, num_rows=len(frame)):
        warnings.warn(
            f"{line} (not for publication: it depends on the records)",
            PrivacyWarning,
            stacklevel=2,
        )
    return frame


def write_text(path: Path, text: str) -> None:
    """Writes a file in full or not at all; what was there before stays until then."""
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise TacitError(
            f"{path} cannot be written ({error.strerror}). Choose a place that can be written and"
            " has space left."
        ) from None


def write_json(path: Path, document: Any) -> None:
    """Writes a document that any JSON reader takes."""
    write_text(path, json.dumps(document, indent=2, allow_nan=False) + "\n")
