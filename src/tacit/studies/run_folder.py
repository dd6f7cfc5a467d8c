"""The folder of a run: written so that old files stay until new ones are paid for, and read."""

import contextlib
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from tacit import _check, _tree
from tacit._artefact import write_json, write_text
from tacit.data import Schema
from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference import save_checkpoint
from tacit.inference.chains import Checkpoint
from tacit.intervals import IntervalFacts
from tacit.models import Model
from tacit.models.bayesian import model_from_spec
from tacit.posterior import load_posterior
from tacit.privacy.statement import read_statement, verify_statement
from tacit.privacy.statement.fields import read_sealed_statement
from tacit.privacy.statement.verification import Verification
from tacit.rng import seeded_key
from tacit.state_file import FILE_NAME
from tacit.studies.coefficients import coefficient_table, is_linear
from tacit.studies.study import Study
from tacit.studies.table_fit import TableFit

__all__ = [
    "FinishedRun",
    "Reservation",
    "RunFolder",
    "read_interval_facts",
    "read_run",
    "require_no_run",
    "reserved",
    "writes",
]

_MOST_COEFFICIENTS = 200
"""More of them would not be read."""

_FILES = (
    "study.toml", "schema.toml", "posterior.safetensors", "posterior.json", "statement.json",
    "statement.txt", "progress.json", "checkpoint.safetensors", "checkpoint.json",
    "coefficients.csv", "evaluation.json", "certificate.json", "audit.json", "report.html",
    FILE_NAME,
)  # fmt: skip


@dataclass
class RunFolder:
    """Where a run is written to, chunk by chunk.

    Attributes:
      path: the folder.
      study: as executed.
      schema: the public description of the table.
      last: where a run goes on from: the checkpoint that it was resumed from, and then its own.
      progress: how epsilon grew, with what came before it was resumed.
      has_begun: whether a step was made and kept since.
    """

    study: Study
    schema: Schema
    last: Checkpoint | None = None
    progress: list[dict[str, Any]] = field(default_factory=list)
    has_begun: bool = False

    def __post_init__(self) -> None:
        self.path, self._is_new = self.study.output, self.last is None
        if self.last is not None:
            self.progress += _read_progress(self.path, before=self.last.step)

    def keep(self, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint; with the first of them the folder becomes that of this run."""
        if not self.has_begun:
            self._begin()
        save_checkpoint(checkpoint, self.path)
        self.last = checkpoint

    def note_progress(self, step: int, epsilon: float) -> None:
        """Remembers how much was spent after some steps."""
        shown = epsilon if math.isfinite(epsilon) else "infinity"
        self.progress.append({"step": step, "epsilon": shown})

    def write_progress(self) -> None:
        """Writes how epsilon grew so far."""
        write_json(self.path / "progress.json", self.progress)

    def finish(self, table: TableFit) -> None:
        """Writes what may be published."""
        with writes(self.path):
            table.save(self.path)
        write_text(self.path / "study.toml", self.study.to_toml())
        self.write_progress()

    def _begin(self) -> None:
        if self._is_new:
            with writes(self.path):
                for name in _FILES:
                    # The run itself has put its own states in the place of old ones.
                    if name != FILE_NAME or not self.study.half_precision:
                        (self.path / name).unlink(missing_ok=True)
        write_text(self.path / "study.toml", self.study.to_toml())
        write_text(self.path / "schema.toml", self.schema.to_toml())
        self.has_begun = True


def require_no_run(folder: Path, *, overwrite: bool) -> None:
    """Raises where a folder holds a run that was not meant to be replaced."""
    found = [name for name in _FILES if (folder / name).exists()]
    if found and not overwrite:
        raise InvalidArgumentError(
            f"{str(folder)!r} holds a run already ({found[0]}). Choose another `output`, go on with"
            " the run by `resume`, or replace it by `overwrite`. Nothing was spent."
        )


def _read_progress(folder: Path, *, before: int) -> list[dict[str, Any]]:
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
    _check.writable_directory(output=folder)
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
                f"`output` {str(folder)!r} cannot take the {num_bytes / 2**20:.1f} MB that the run"
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
class FinishedRun:
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
      intervals: what is known about credible intervals.
      coefficients: those of a linear model of few parameters, with 90 % intervals.
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
    intervals: IntervalFacts
    coefficients: pd.DataFrame | None


def read_run(directory: str | os.PathLike[str]) -> FinishedRun:
    """Returns the documents of a run's directory.

    Raises:
      TacitError: where there is no statement, or a document cannot be read.
    """
    folder = Path(directory)
    if not folder.is_dir():
        raise TacitError(f"{folder} is not a directory. Give the folder of a run.")
    statement, schema = read_statement(folder), _text(folder / "schema.toml")
    intervals, coefficients = _coefficients(folder, schema)
    return FinishedRun(
        name=folder.resolve().name,
        statement=statement,
        verification=verify_statement(statement, sealed=read_sealed_statement(folder)),
        progress=_json(folder / "progress.json", list),
        evaluation=_json(folder / "evaluation.json", dict),
        certificate=_json(folder / "certificate.json", dict),
        audit=_json(folder / "audit.json", dict),
        study=_text(folder / "study.toml"),
        schema=schema,
        intervals=intervals,
        coefficients=coefficients,
    )


def read_interval_facts(directory: str | os.PathLike[str]) -> IntervalFacts:
    """Returns what a run says about its intervals, without the parts of their widths."""
    document = _json(Path(directory) / "posterior.json", dict) or {}
    facts = document.get("intervals") or {}
    return IntervalFacts(caveats=tuple(facts.get("caveats", ())))


def _coefficients(folder: Path, schema: str | None) -> tuple[IntervalFacts, pd.DataFrame | None]:
    facts = read_interval_facts(folder)
    spec = (_json(folder / "posterior.json", dict) or {}).get("model")
    try:
        # A large network is not read for what the report does not show of it.
        model = None if spec is None else model_from_spec(spec)
        is_shown = model is not None and is_linear(model) and _size(model) <= _MOST_COEFFICIENTS
        if not is_shown or not (folder / "posterior.safetensors").exists():
            return facts, None
        posterior = load_posterior(folder)
    except InvalidArgumentError:  # a part of somebody's own that was not imported
        return facts, None
    return posterior.intervals, coefficient_table(posterior, _schema(schema), level=0.9)


def _schema(text: str | None) -> Schema | None:
    """The schema of a run; None where it cannot be read, since the report shows its text anyway."""
    try:
        return None if text is None else Schema.from_toml(text)
    except InvalidArgumentError:
        return None


def _size(model: Model) -> int:
    return _tree.size(jax.eval_shape(model.init, seeded_key(0)))


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
        raise TacitError(f"{file} is not JSON ({error}). Restore a copy.") from None
    if not isinstance(document, kind):
        raise TacitError(f"{file} must hold a JSON {'list' if kind is list else 'object'}.")
    return document
