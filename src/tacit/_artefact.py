"""Artefacts on disk: arrays as safetensors, the rest as readable JSON that seals them.

The JSON holds the checksums of the arrays and of itself, so a torn or altered artefact is found
out, never half read. Both files are written in full under other names and then put in place, arrays
first. A process that dies at any moment leaves the old artefact or the new one: where it died
between the two, the new JSON is still there under its other name and seals the new arrays. All that
guards against accidents, not against forgery. Nothing is pickled.
"""

import contextlib
import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError
from tacit.typing import Tree

__all__ = [
    "flatten",
    "read",
    "read_text",
    "unflatten",
    "warn_before_publishing",
    "write",
    "write_json",
    "write_text",
]

FORMAT_VERSION = 1


def flatten(tree: Tree, *, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the leaves of a tree by their path; bfloat16, which NumPy lacks, as float32."""

    def widened(leaf: jax.Array) -> np.ndarray[Any, Any]:
        return np.asarray(leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf)

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}": widened(leaf) for path, leaf in leaves}


def unflatten(
    arrays: dict[str, np.ndarray[Any, Any]],
    template: Tree,
    *,
    prefix: str,
    leading: tuple[int | None, ...],
) -> Tree:
    """Returns a tree of the template's structure, shapes and dtypes from leaves by path.

    Args:
      arrays: what `read` returned; those with other prefixes are left alone.
      template: the shapes and dtypes of one state.
      prefix: under which `flatten` put the leaves.
      leading: the axes before those of the template; None stands for any length, the same for
        all leaves.
    """
    paths, treedef = jax.tree_util.tree_flatten_with_path(template)
    names = [f"{prefix}{jax.tree_util.keystr(path)}" for path, _ in paths]
    for name in names:
        if name not in arrays:
            raise _unfit(f"it has no array {name!r}")
    for name in arrays:
        if name.startswith(prefix) and name not in names:
            raise _unfit(f"the model has no place for its array {name!r}")
    for name, (_, leaf) in zip(names, paths, strict=True):
        shape = arrays[name].shape
        if len(shape) >= len(leading):
            # The first leaf fixes the lengths that were left open.
            leading = tuple(
                own if wanted is None else wanted
                for own, wanted in zip(shape, leading, strict=False)
            )
        if shape != (*leading, *leaf.shape):
            wanted = ", ".join("any" if axis is None else str(axis) for axis in leading)
            raise _unfit(
                f"its array {name!r} has shape {shape}, where ({wanted}) and then {leaf.shape}"
                " is wanted"
            )
    leaves = [
        jnp.asarray(arrays[name], leaf.dtype) for name, (_, leaf) in zip(names, paths, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def _unfit(reason: str) -> TacitError:
    return TacitError(
        f"the artefact does not fit the model: {reason}. Load it with the model and the plan that"
        " made it."
    )


def write(
    directory: str | os.PathLike[str],
    name: str,
    arrays: dict[str, np.ndarray[Any, Any]],
    document: dict[str, Any],
) -> None:
    """Writes ``name.safetensors`` and ``name.json`` into a directory, both or neither."""
    folder = Path(directory)
    tensors, text = folder / f"{name}.safetensors", folder / f"{name}.json"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sealed = {
            "format_version": FORMAT_VERSION,
            "arrays_sha256": _write_arrays_beside(tensors, arrays),
        } | document
        sealed["document_sha256"] = _document_hash(sealed)
        content = json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False) + "\n"
        _write_beside(text, content.encode())
        for path in (tensors, text):
            _beside(path).replace(path)
        _sync(folder)
    except (OSError, safetensors.SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise TacitError(
            f"{folder / name} cannot be written ({reason}). Choose a folder that can be written and"
            " has space left; what was there before is still there."
        ) from None


def warn_before_publishing(statement: Mapping[str, Any]) -> None:
    """Warns the caller's caller where a statement promises nothing, or its noise was seeded."""
    if statement.get("epsilon") == "infinity":
        message = "NOT PRIVATE: its epsilon is infinity. Publish nothing of it."
    elif not statement.get("is_secure", True):
        message = (
            "INSECURE: its noise came from a known seed, and whoever has that can take the noise"
            " off. Fit without a seed before publishing."
        )
    else:
        return
    warnings.warn(f"this posterior is {message}", PrivacyWarning, stacklevel=3)


def read(
    directory: str | os.PathLike[str], name: str
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Reads what `write` wrote; raises `TacitError` where it is missing, torn or altered."""
    folder = Path(directory)
    path = folder / f"{name}.safetensors"
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        document = _sealing(folder / f"{name}.json", digest)
    except FileNotFoundError as error:
        raise TacitError(
            f"{folder} holds no {name}: {Path(error.filename).name} is missing."
        ) from None
    except OSError as error:
        raise TacitError(f"{folder / name} cannot be read ({error.strerror}).") from None
    try:
        # From the file, of which no copy is in memory then.
        return safetensors.numpy.load_file(path), document
    except safetensors.SafetensorError as error:
        raise _damaged(path, f"is damaged ({error})") from None


def _sealing(path: Path, digest: str) -> dict[str, Any]:
    """The document that seals the arrays: the one in place, or one that was about to be."""
    try:
        return _checked(path, path, digest)
    except (TacitError, FileNotFoundError) as error:
        try:
            return _checked(_beside(path), path, digest)
        except (TacitError, OSError):
            raise error from None


def _checked(source: Path, path: Path, digest: str) -> dict[str, Any]:
    try:
        document = json.loads(source.read_text())
        own_hash = _document_hash(document)
    except (ValueError, AttributeError, RecursionError) as error:
        raise _damaged(path, f"is damaged ({error})") from None
    if document.get("format_version") != FORMAT_VERSION:
        raise TacitError(
            f"{path} has format {document.get('format_version')!r}; this version of tacit reads"
            f" format {FORMAT_VERSION}."
        )
    # What has no checksum was not written by us.
    if own_hash != document.get("document_sha256"):
        raise _damaged(path, "does not match its checksum: it was altered")
    if digest != document.get("arrays_sha256"):
        raise _damaged(
            path.with_suffix(".safetensors"),
            "does not match its checksum: it was altered or cut short",
        )
    return dict(document)


def _damaged(path: Path, what: str) -> TacitError:
    return TacitError(f"{path} {what}. Restore a copy, or make it again.")


def _document_hash(document: dict[str, Any]) -> str:
    content = {key: value for key, value in document.items() if key != "document_sha256"}
    text = json.dumps(content, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _beside(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def _write_arrays_beside(path: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> str:
    """Writes arrays without a copy of them in memory, and returns the checksum of the file."""
    temporary = _beside(path)
    temporary.touch()  # what is wrong with the folder is said by the system
    # (ascontiguousarray would give an axis to arrays without one.)
    safetensors.numpy.save_file(
        {key: np.asarray(value, order="C") for key, value in arrays.items()}, temporary
    )
    with temporary.open("rb+") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return digest


def _write_beside(path: Path, content: bytes) -> None:
    with _beside(path).open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    """Makes the new names last through a power failure, where folders can be synced."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def read_text(path: Path, *, what: str) -> str:
    """Returns the text of a file, or raises with what it was to be."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        reason = error.strerror or "it cannot be opened"
    except UnicodeDecodeError:
        reason = "not UTF-8 text"
    raise InvalidArgumentError(f"{what} must be a file; {str(path)!r} cannot be read ({reason}).")


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
