"""A folder that appears when it is complete, and never in place of something else."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tacit.data.stored.manifest import MANIFEST
from tacit.errors import InvalidArgumentError, TacitError

__all__ = ["new_folder", "require_room", "writes_to"]


def require_room(folder: Path, *, overwrite: bool) -> None:
    """Raises unless a folder of records may be made there."""
    if not os.path.lexists(folder):
        return
    if not (folder / MANIFEST).is_file():
        raise InvalidArgumentError(
            f"{str(folder)!r} exists and holds no records, so it is never replaced. Choose another"
            " folder."
        )
    if not overwrite:
        raise InvalidArgumentError(
            f"{str(folder)!r} holds records already. Choose another folder, or say overwrite."
        )


@contextlib.contextmanager
def new_folder(folder: Path, *, overwrite: bool) -> Iterator[Path]:
    """Gives a temporary folder beside the wanted one, and renames it at the end.

    If the block raises, or is interrupted, the temporary folder is removed. Only its owner may
    read it.

    Raises:
      InvalidArgumentError: where something is there that may not be replaced.
      TacitError: where the file system refuses; the message names the folder.
    """
    require_room(folder, overwrite=overwrite)
    target = Path(os.path.abspath(folder))
    with writes_to(folder):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(
            tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".partial", dir=target.parent)
        )
    try:
        yield temporary
        with writes_to(folder):
            _replace(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def writes_to(folder: Path) -> Iterator[None]:
    """Turns an error of the file system into one that names the folder and the remedy."""
    try:
        yield
    except OSError as error:
        raise TacitError(
            f"{folder} cannot be written ({error.strerror}), and nothing was. Choose a place that"
            " can be written and has space left."
        ) from None


def _replace(temporary: Path, target: Path) -> None:
    if not target.exists():
        temporary.rename(target)
        return
    old = temporary.with_suffix(".old")
    target.rename(old)
    try:
        temporary.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old)
