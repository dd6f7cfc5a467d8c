"""Artefacts on disk: arrays as safetensors, the rest as readable JSON that seals them.

The JSON is written last and holds the checksum of the arrays, so a torn or altered artefact is
found out, never half read. Nothing is pickled.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy

from tacit.errors import TacitError
from tacit.typing import Tree

__all__ = ["flatten", "read", "unflatten", "write"]

FORMAT_VERSION = 1


def flatten(tree: Tree, *, prefix: str) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the leaves of a tree by their path; bfloat16, which NumPy lacks, as float32."""

    def widened(leaf: jax.Array) -> np.ndarray[Any, Any]:
        return np.asarray(leaf.astype(jnp.float32) if leaf.dtype == jnp.bfloat16 else leaf)

    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {f"{prefix}{jax.tree_util.keystr(path)}": widened(leaf) for path, leaf in leaves}


def unflatten(arrays: dict[str, np.ndarray[Any, Any]], template: Tree, *, prefix: str) -> Tree:
    """Returns a tree of the template's structure and dtypes from leaves by path."""
    paths, treedef = jax.tree_util.tree_flatten_with_path(template)
    names = [f"{prefix}{jax.tree_util.keystr(path)}" for path, _ in paths]
    missing = [name for name in names if name not in arrays]
    if missing:
        raise TacitError(
            f"the artefact does not fit the model: it has no array {missing[0]!r}. Load it with"
            " the model and method that made it."
        )
    leaves = [
        jnp.asarray(arrays[name], leaf.dtype) for name, (_, leaf) in zip(names, paths, strict=True)
    ]
    return jax.tree.unflatten(treedef, leaves)


def write(
    directory: str | os.PathLike[str],
    name: str,
    arrays: dict[str, np.ndarray[Any, Any]],
    document: dict[str, Any],
) -> None:
    """Writes ``name.safetensors`` and ``name.json`` into a directory, each in one piece."""
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = safetensors.numpy.save(
        {key: np.ascontiguousarray(value) for key, value in arrays.items()}
    )
    sealed = {
        "format_version": FORMAT_VERSION,
        "arrays_sha256": hashlib.sha256(tensors).hexdigest(),
    } | document
    text = json.dumps(sealed, indent=2, sort_keys=True, allow_nan=False) + "\n"
    _write_bytes(folder / f"{name}.safetensors", tensors)
    _write_bytes(folder / f"{name}.json", text.encode())


def read(
    directory: str | os.PathLike[str], name: str
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any]]:
    """Reads what `write` wrote; raises `TacitError` where it is missing, torn or altered."""
    folder = Path(directory)
    try:
        document = json.loads((folder / f"{name}.json").read_text())
        tensors = (folder / f"{name}.safetensors").read_bytes()
    except FileNotFoundError as error:
        raise TacitError(
            f"{folder} holds no {name}: {Path(error.filename).name} is missing."
        ) from None
    except json.JSONDecodeError as error:
        raise TacitError(f"{folder / name}.json is damaged ({error}). Restore a copy.") from None
    if document.get("format_version") != FORMAT_VERSION:
        raise TacitError(
            f"{folder / name}.json has format {document.get('format_version')!r}; this version of"
            f" tacit reads format {FORMAT_VERSION}."
        )
    if hashlib.sha256(tensors).hexdigest() != document.get("arrays_sha256"):
        raise TacitError(
            f"{folder / name}.safetensors does not match its checksum: it was altered or cut"
            " short. Restore a copy."
        )
    return safetensors.numpy.load(tensors), document


def _write_bytes(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
