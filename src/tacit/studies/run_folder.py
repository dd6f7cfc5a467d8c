"""The folder of a run: written so that old files stay until new ones are paid for, and read."""

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
from tacit.data import Schema, _toml
from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference import Checkpoint, save_checkpoint
from tacit.privacy.statement import Verification, read_sealed_statement, read_statement
from tacit.privacy.statement import verify_statement as verify
from tacit.studies.files import write_json, write_text
from tacit.studies.table_fit import TableFit

__all__ = [
    "Reservation",
    "Run",
    "RunDirectory",
    "read_progress",
    "read_run",
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
