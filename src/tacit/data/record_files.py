"""The files of a folder of records: an array for each leaf, and a manifest without values."""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import jax
import numpy as np
from numpy.typing import NDArray

from tacit.data.schema import Schema
from tacit.errors import InvalidArgumentError, TacitError
from tacit.typing import Record, Tree

__all__ = [
    "MANIFEST",
    "GrowingArray",
    "LeafShape",
    "Leaves",
    "Manifest",
    "digest_of",
    "from_leaves",
    "leaf_of",
    "leaves_of",
    "part_name",
    "read_manifest",
    "record_of",
    "require_leaves",
]

Leaves: TypeAlias = dict[str, NDArray[Any]]
"""Arrays with one row for each record, by name."""

LeafShape: TypeAlias = jax.ShapeDtypeStruct
"""What one record has of one array."""

_NUMBERS = (np.dtype(np.float32), np.dtype(np.int32))
_KEY = re.compile(r"[A-Za-z0-9_-]+")


def leaves_of(records: Record) -> dict[str, Any]:
    """Returns the leaves of a table by name: ``x`` or ``x.KEY``, ``y``, ``weight``, ``mask``.

    Raises:
      InvalidArgumentError: where ``x`` is neither an array nor made of dictionaries of arrays, for
        which there are no names.

    Example:
      >>> one = np.zeros(1)
      >>> list(leaves_of(Record({"dose": one, "scan": one}, one, one)))
      ['x.dose', 'x.scan', 'y', 'weight']
    """
    found = dict(_named("x", records.x))
    if not found:
        raise InvalidArgumentError("x must hold at least one array; got an empty tree.")
    found |= {"y": records.y, "weight": records.weight}
    return found if records.mask is None else found | {"mask": records.mask}


def from_leaves(leaves: Mapping[str, Any]) -> Record:
    """Returns the table whose leaves have these names."""
    x: Tree = {}
    for name, leaf in leaves.items():
        first, *keys = name.split(".")
        if first != "x":
            continue
        if not keys:
            x = leaf
            continue
        inner = x
        for key in keys[:-1]:
            inner = inner.setdefault(key, {})
        inner[keys[-1]] = leaf
    return Record(x, leaves["y"], leaves["weight"], leaves.get("mask"))


def require_leaves(leaves: Mapping[str, NDArray[Any]]) -> int:
    """Returns how many records the arrays hold, or raises unless they are one table of 32 bits."""
    for name, leaf in leaves.items():
        wanted = _dtypes(name)
        if leaf.dtype not in wanted:
            raise InvalidArgumentError(
                f"{name} must be of dtype {' or '.join(map(str, wanted))}; got {leaf.dtype}."
                " Convert it when the file is written, for example with as_records."
            )
    y = leaves["y"]
    if y.ndim == 0 or not len(y):
        raise InvalidArgumentError(f"y must have at least one record; got shape {y.shape}.")
    # A weight counts one row of a unit, and so has the shape of the mask.
    rows = leaves["mask"].shape if "mask" in leaves else y.shape[:1]
    if "mask" in leaves and len(rows) != 2:
        raise InvalidArgumentError(
            f"mask must have one entry for each row of each unit; got shape {rows}."
        )
    for name, leaf in leaves.items():
        fits = leaf.shape == rows if name in ("weight", "mask") else leaf.shape[: len(rows)] == rows
        if not fits:
            raise InvalidArgumentError(
                f"{name} must have one entry for each of {rows} rows, as y and mask; got shape"
                f" {leaf.shape}."
            )
    return len(y)


def record_of(leaves: Mapping[str, NDArray[Any]]) -> dict[str, LeafShape]:
    """Returns the shapes and dtypes of one record."""
    return {name: leaf_of(leaf.shape[1:], leaf.dtype) for name, leaf in leaves.items()}


def leaf_of(shape: tuple[int, ...], dtype: Any) -> LeafShape:
    """Returns the description of an array."""
    return LeafShape(shape, np.dtype(dtype))


def _dtypes(name: str) -> tuple[np.dtype[Any], ...]:
    if name == "mask":
        return (np.dtype(np.bool_),)
    return _NUMBERS[:1] if name == "weight" else _NUMBERS


def _named(name: str, tree: Tree) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, dict):
        if not hasattr(tree, "shape"):
            raise InvalidArgumentError(
                f"{name} must be an array or a dictionary of arrays to be stored; got"
                f" {type(tree).__name__}. Give each array a name."
            )
        yield name, tree
        return
    for key in sorted(tree):
        if not isinstance(key, str) or not _KEY.fullmatch(key):
            raise InvalidArgumentError(
                f"the keys of {name} name files and so must be letters, digits, - and _; got"
                f" {key!r}."
            )
        yield from _named(f"{name}.{key}", tree[key])


class GrowingArray:
    """Writes an ``.npy`` file row by row in constant memory.

    Example:
      >>> import tempfile
      >>> path = Path(tempfile.mkdtemp()) / "y.npy"
      >>> y = GrowingArray(path, LeafShape((), np.int32))
      >>> y.append(np.array([1, 2], np.int32))
      >>> y.append(np.array([3], np.int32))
      >>> y.finish()
      >>> np.load(path)
      array([1, 2, 3], dtype=int32)
    """

    def __init__(self, path: Path, leaf: LeafShape) -> None:
        self._leaf = leaf
        self._num_rows = 0
        self._file = path.open("xb")
        self._write_header()

    def append(self, rows: NDArray[Any]) -> None:
        """Writes more rows."""
        values = np.ascontiguousarray(rows, self._leaf.dtype)
        self._file.write(values.reshape(-1).view(np.uint8).data)
        self._num_rows += len(rows)

    def finish(self) -> None:
        """Makes the file complete, and safe against loss of power."""
        self._file.seek(0)
        self._write_header()
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()

    def close(self) -> None:
        """Gives the file back as it is."""
        self._file.close()

    def _write_header(self) -> None:
        # NumPy leaves room in a header for any number of rows, so that it can be written again.
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(self._leaf.dtype)),
            "fortran_order": False,
            "shape": (self._num_rows, *self._leaf.shape),
        }
        np.lib.format.write_array_header_1_0(self._file, header)


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

    leaves: Mapping[str, LeafShape]
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
