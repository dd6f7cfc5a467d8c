"""The folder of a run while it is made: old files stay until new ones are paid for."""

import contextlib
import errno
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit import _check
from tacit.cli._files import write_json, write_text
from tacit.data import Schema, _toml
from tacit.errors import InvalidArgumentError, TacitError
from tacit.estimators import TableFit
from tacit.inference import Checkpoint, save_checkpoint

__all__ = [
    "Reservation",
    "RunDirectory",
    "read_progress",
    "require_no_run",
    "reserved",
    "writes",
]

_FILES = (
    "study.toml", "schema.toml", "posterior.safetensors", "posterior.json", "statement.json",
    "statement.txt", "progress.json", "checkpoint.safetensors", "checkpoint.json",
    "evaluation.json", "certificate.json", "audit.json", "report.html",
)  # fmt: skip


@dataclass
class RunDirectory:
    """Where a run is written to, chunk by chunk.

    Attributes:
      folder: the run's.
      study: as executed, for TOML.
      schema: the public description of the table.
      is_resumed: whether the folder is that of this run already.
      earlier: how epsilon grew before it was resumed.
    """

    folder: Path
    study: dict[str, Any]
    schema: Schema
    is_resumed: bool = False
    earlier: list[dict[str, Any]] = field(default_factory=list)
    _has_begun: bool = False

    def keep(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint; with the first of them the folder becomes that of this run."""
        if not self._has_begun:
            self._begin()
        save_checkpoint(checkpoint, self.folder)

    def note_progress(self, moments: list[dict[str, Any]]) -> None:
        """Writes how epsilon grew so far."""
        write_json(self.folder / "progress.json", [*self.earlier, *moments])

    def finish(self, table: TableFit, moments: list[dict[str, Any]]) -> None:
        """Writes what may be published."""
        with writes(self.folder):
            table.save(self.folder)
        self._write_study()
        self.note_progress(moments)

    def _begin(self) -> None:
        if not self.is_resumed:
            with writes(self.folder):
                for name in _FILES:
                    (self.folder / name).unlink(missing_ok=True)
        self._write_study()
        write_text(self.folder / "schema.toml", self.schema.to_toml())
        self._has_begun = True

    def _write_study(self) -> None:
        write_text(self.folder / "study.toml", _toml.dumps(self.study))


def require_no_run(folder: Path, *, overwrite: bool) -> None:
    """Raises where a folder holds a run that was not meant to be replaced."""
    found = [name for name in _FILES if (folder / name).exists()]
    if found and not overwrite:
        raise InvalidArgumentError(
            f"{str(folder)!r} holds a run already ({found[0]}). Choose another --output, go on with"
            " it by --resume, or replace it by --overwrite. Nothing was spent."
        )


def read_progress(folder: Path, *, before: int) -> list[dict[str, Any]]:
    """Returns how epsilon grew up to a step, as far as it is known."""
    try:
        found = json.loads((folder / "progress.json").read_text(encoding="utf-8"))
        return [moment for moment in found if moment["step"] <= before]
    except (OSError, ValueError, TypeError, KeyError):
        return []  # it is for a picture only


@contextlib.contextmanager
def writes(folder: Path) -> Iterator[None]:
    """Turns an error of the file system into one line."""
    try:
        yield
    except OSError as error:
        raise TacitError(
            f"{folder} cannot be written ({error.strerror}). Its checkpoint is as it was; make room"
            " or correct the rights."
        ) from None


@contextlib.contextmanager
def reserved(folder: Path, num_bytes: int) -> Iterator["Reservation"]:
    """Holds disk space for what a run will write at its end, or raises before it begins.

    The space is returned when the reservation is released or the process ends, in whatever way.
    """
    _check.writable_directory(**{"--output": folder})
    with contextlib.ExitStack() as stack:
        try:
            if num_bytes > shutil.disk_usage(folder).free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
            remaining = num_bytes
            while remaining > 0:
                remaining -= file.write(b"\0" * min(remaining, 2**20))
            file.flush()
            os.fsync(file.fileno())
        except OSError as error:
            raise TacitError(
                f"--output {str(folder)!r} cannot take the {num_bytes / 2**20:.1f} MB that the run"
                f" needs ({error.strerror}). Nothing was spent. Make room, or choose another"
                " folder."
            ) from None
        yield Reservation(file)


class Reservation:
    """Disk space that is held."""

    def __init__(self, file: Any) -> None:
        """Use `reserved`."""
        self._file = file

    def release(self) -> None:
        """Gives the space back."""
        self._file.truncate(0)
