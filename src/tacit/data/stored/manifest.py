"""What ``records.json`` says of a folder of records: sizes and kinds, and no value."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tacit.data.schema import Schema
from tacit.data.stored.leaves import Leaf, leaf_of
from tacit.errors import InvalidArgumentError, TacitError

__all__ = ["MANIFEST", "Manifest", "digest_of", "part_name", "read_manifest"]

MANIFEST = "records.json"
_FORMAT = "tacit records"
_VERSION = 1
_PRIVATE = (
    "This folder holds the private records themselves. Nothing in it may be published; keep it as"
    " you keep the table that it was made from."
)


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The sizes of a folder of records.

    Attributes:
      leaves: shape and dtype of each array of one record, by name.
      parts: how many records each part has.
      schema_digest: of the schema that the records were encoded with, if any.
    """

    leaves: Mapping[str, Leaf]
    parts: tuple[int, ...]
    schema_digest: str | None = None

    def to_json(self) -> str:
        """Returns the text of ``records.json``."""
        sizes = {
            "version": _VERSION,
            "num_records": sum(self.parts),
            "leaves": {
                name: {"shape": list(leaf.shape), "dtype": np.dtype(leaf.dtype).str}
                for name, leaf in self.leaves.items()
            },
            "parts": [
                {"folder": part_name(number), "num_records": num_records}
                for number, num_records in enumerate(self.parts)
            ],
            "schema_digest": self.schema_digest,
        }
        document = {"format": _FORMAT, "private": _PRIVATE, **sizes, "digest": _digest(sizes)}
        return json.dumps(document, indent=2) + "\n"


def part_name(number: int) -> str:
    """Returns the folder of a part.

    Example:
      >>> part_name(7)
      'part-00007'
    """
    return f"part-{number:05d}"


def digest_of(schema: Schema) -> str:
    """Returns a digest that equal schemas share, and others do not."""
    document = tomllib.loads(schema.to_toml())
    return _digest(_with_plain_numbers(document))


def read_manifest(folder: Path) -> Manifest:
    """Returns what a folder says of itself, or raises with the file and the remedy."""
    path = folder / MANIFEST
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidArgumentError(
            f"{str(folder)!r} is not a folder of records: it has no {MANIFEST}. Make one with tacit"
            " encode, or with tacit.data.write_records."
        ) from None
    except OSError as error:
        raise TacitError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError:
        raise _damaged(path, "it is not JSON") from None
    if not isinstance(document, dict) or document.pop("format", None) != _FORMAT:
        raise _damaged(path, "it does not describe records of tacit")
    document.pop("private", None)
    if document.get("version") != _VERSION:
        raise TacitError(
            f"{path} is of version {document.get('version')!r}, and this tacit reads version"
            f" {_VERSION}. Encode the table again."
        )
    if document.pop("digest", None) != _digest(document):
        raise _damaged(path, "it was changed by hand or in transit")
    try:
        return Manifest(
            leaves={
                name: leaf_of(tuple(leaf["shape"]), leaf["dtype"])
                for name, leaf in document["leaves"].items()
            },
            parts=tuple(part["num_records"] for part in document["parts"]),
            schema_digest=document["schema_digest"],
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _damaged(path, "an entry is missing or of the wrong kind") from None


def _digest(document: Any) -> str:
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _with_plain_numbers(document: Any, *, are_levels: bool = False) -> Any:
    """Writes 0 and 0.0 alike, except among levels, which are compared as they are."""
    if isinstance(document, dict):
        # As a list of pairs, because columns become features in their order.
        return [
            [key, _with_plain_numbers(value, are_levels=key in ("categories", "classes"))]
            for key, value in document.items()
        ]
    if isinstance(document, list):
        return [_with_plain_numbers(value, are_levels=are_levels) for value in document]
    if isinstance(document, int) and not are_levels:
        return float(document)
    return document


def _damaged(path: Path, reason: str) -> TacitError:
    return TacitError(
        f"{path} is damaged: {reason}. Copy the folder again, or encode the table again."
    )
