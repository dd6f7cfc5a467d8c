"""A study: all that a fit of a table needs, as one value or one TOML file."""

import dataclasses
import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit._artefact import read_text
from tacit.data import Schema, Target, encode_table, open_records
from tacit.data.csv import odd_values, read_csv, remarks, to_numbers, typed
from tacit.data.draft import is_draft
from tacit.data.record_files import digest_of
from tacit.data.record_source import StoredRecords
from tacit.data.schema import parse_toml, toml_of
from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError
from tacit.privacy.budget import Budget
from tacit.privacy.statement.fields import Tuning
from tacit.studies.preparation import LARGEST, Recipe
from tacit.tables import OnHost
from tacit.tables.base import as_table
from tacit.typing import Record

__all__ = [
    "KEYS",
    "Study",
    "make_study",
    "read_records",
    "read_schema",
    "read_study",
    "read_table",
]

KEYS: dict[str, dict[str, type]] = {
    "data": {
        "table": str,
        "target": str,
        "schema": str,
        "groups": str,
        "max_rows": int,
        "weight": str,
        "max_weight": float,
    },
    "budget": {
        "epsilon": float,
        "delta": float,
        "accountant": str,
        "ledger": str,
        "data_set": str,
    },
    "recipe": {
        "method": str,
        "hidden": list,
        "num_steps": int,
        "batch_size": int,
        "clip_norm": float,
        "learning_rate": float,
        "prior_std": float,
    },
    "run": {
        "output": str,
        "seed": int,
        "noise_scale": float,
        "tuning": str,
        "half_precision": bool,
    },
}
"""The tables of a study file, their keys and what each holds."""

_PATHS = ("table", "schema", "output", "ledger")
_BLOCK = 2**13


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is to be fitted; public, and copied into the run as it was executed.

    Args:
      table: the CSV file with the private records, or a folder of encoded ones.
      schema: the file with their public description.
      output: the run's folder.
      target: the column to predict; where it is given it must be that of the schema.
      groups: the column that says whose each row is.
      max_rows: how many rows of one person count.
      weight: the column of weights.
      max_weight: the largest of them, as public knowledge.
      epsilon: what may be spent; infinite promises nothing, None is what a ledger has left.
      delta: the chance that the promise fails; 1e-5 by default, or that of the ledger.
      ledger: the file that is charged.
      data_set: what it calls the records.
      recipe: how to fit.
      seed: makes the noise repeatable, and INSECURE.
      noise_scale: by how much noise exceeds what the budget alone needs, on account of a ledger.
      num_records: for how many units it was executed, if it was.
      tuning: how the recipe was chosen: "simulated" by `tacit rehearse`, or "not counted".
      half_precision: whether retained states are written to the folder in half precision while the
        run goes on, and not held in memory.

    Example:
      >>> study = Study(
      ...     table=Path("data.csv"), schema=Path("schema.toml"), output=Path("run"), epsilon=1.0
      ... )
      >>> study.is_private
      True
    """

    table: Path
    schema: Path
    output: Path
    target: str | None = None
    groups: str | None = None
    max_rows: int | None = None
    weight: str | None = None
    max_weight: float = 1.0
    epsilon: float | None = None
    delta: float | None = None
    ledger: Path | None = None
    data_set: str | None = None
    recipe: Recipe = field(default_factory=Recipe)
    seed: int | None = None
    noise_scale: float = 1.0
    num_records: int | None = None
    tuning: Tuning = "not counted"
    half_precision: bool = False

    def __post_init__(self) -> None:
        _check.positive(max_weight=self.max_weight, noise_scale=self.noise_scale)
        if self.max_weight > LARGEST:
            raise InvalidArgumentError(
                f"max_weight must be at most {LARGEST:g}; got {self.max_weight:g}."
            )
        if self.epsilon is not None:
            _check.positive(infinite=True, epsilon=self.epsilon)
        if self.delta is not None:
            _check.fraction(one=False, delta=self.delta)
        if self.seed is not None:
            _check.non_negative_integer(seed=self.seed)
        if self.max_rows is not None:
            _check.positive_integer(max_rows=self.max_rows)
        if self.num_records is not None:
            _check.positive_integer(num_records=self.num_records)
        if self.tuning not in ("simulated", "not counted"):
            raise InvalidArgumentError(
                "tuning must be simulated, where a rehearsal chose the recipe, or not counted; got"
                f" {self.tuning!r}."
            )
        if (self.groups is None) != (self.max_rows is None):
            raise InvalidArgumentError(
                "`groups` and `max_rows` go together: whose each row is, and how many rows of one"
                " person count at most, from public knowledge."
            )
        if (self.ledger is None) != (self.data_set is None):
            raise InvalidArgumentError(
                "`ledger` and `data_set` go together: the file, and what it calls these records."
            )
        if self.epsilon is None and self.ledger is None:
            raise InvalidArgumentError(
                "give `epsilon`, or a `ledger` whose rest is then spent. An infinite epsilon"
                " promises nothing."
            )
        if not self.is_private and self.ledger is not None:
            raise InvalidArgumentError(
                "an infinite epsilon promises nothing, which no budget can pay; leave out `ledger`."
            )

    @property
    def is_private(self) -> bool:
        """Whether anything is promised."""
        return self.epsilon is None or math.isfinite(self.epsilon)

    @property
    def budget(self) -> Budget | None:
        """What may be spent; None where that is what a ledger has left, or its delta is."""
        if self.epsilon is None or self.delta is None:
            return None
        return Budget(self.epsilon, self.delta) if self.is_private else Budget.non_private()

    def to_toml(self) -> str:
        """Returns the text that `read_study` reads.

        Example:
          >>> print(make_study({"table": "a.csv", "schema": "s.toml", "output": "run",
          ...                   "epsilon": 1.0}).to_toml())
          [data]
          table = "a.csv"
          ...
        """
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        values |= {**dataclasses.asdict(self.recipe), "accountant": "PLD"}
        document: dict[str, Any] = {
            table: {key: _plain(values[key]) for key in keys if values[key] is not None}
            for table, keys in KEYS.items()
        }
        if self.num_records is not None:
            document = {"num_records": self.num_records, **document}
        return toml_of(document)


def make_study(settings: Mapping[str, Any]) -> Study:
    """Returns the study that settings describe, by the names that a study file has for them.

    Args:
      settings: fields of `Study` and of `Recipe`, side by side; None leaves one open.

    Raises:
      InvalidArgumentError: for what is missing or wrong.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    needed = {
        "table": "the CSV file with the records",
        "output": "a folder for the run",
        "schema": "the public description of the table, of which `tacit schema` makes a draft",
    }
    for name, what in needed.items():
        if name not in given:
            raise InvalidArgumentError(f"give {what}: `{name}`.")
    accountant = given.pop("accountant", "PLD")
    if accountant != "PLD":
        raise InvalidArgumentError(f"budget.accountant must be PLD here; got {accountant!r}.")
    recipe = {name: given.pop(name) for name in KEYS["recipe"] if name in given}
    if "hidden" in recipe:
        recipe["hidden"] = tuple(recipe["hidden"])
    given |= {name: Path(given[name]) for name in _PATHS if name in given}
    return Study(**given, recipe=Recipe(**recipe))


def read_study(path: str | os.PathLike[str], *, changes: Mapping[str, Any] | None = None) -> Study:
    """Returns the study in a TOML file; unknown keys and wrong types are named.

    Args:
      path: the file, such as ``study.toml`` of a run.
      changes: settings that override those of the file, as in `make_study`.

    Raises:
      InvalidArgumentError: for whatever is wrong in it.
    """
    file = Path(path)
    text = read_text(file, what="a study")
    try:
        document = parse_toml(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{file}: {error}") from None
    settings: dict[str, Any] = {}
    if "num_records" in document:
        settings["num_records"] = document.pop("num_records")
        _check.positive_integer(**{f"{file}: num_records": settings["num_records"]})
    unknown = [name for name in document if name not in KEYS]
    for name in document.keys() - unknown:
        if not isinstance(document[name], dict):
            raise InvalidArgumentError(f"{file}: {name} must be a table, [{name}].")
        unknown += [f"{name}.{key}" for key in document[name] if key not in KEYS[name]]
        settings |= document[name]
    if unknown:
        known = ", ".join(f"{name}.{key}" for name, keys in KEYS.items() for key in keys)
        raise InvalidArgumentError(
            f"{file} has unknown keys: {', '.join(unknown)}. Known are {known}."
        )
    for name, keys in KEYS.items():
        for key in keys.keys() & settings.keys():
            _require_kind(f"{file}: {name}.{key}", settings[key], keys[key])
    changed = {name: value for name, value in (changes or {}).items() if value is not None}
    if changed.keys() & KEYS["recipe"].keys():
        # It is no longer the recipe of which the file says how it was chosen.
        settings.pop("tuning", None)
    return make_study(settings | changed)


def read_records(study: Study, schema: Schema) -> Record | OnHost:
    """Returns the records of a study, encoded; raises unless they fit it.

    Warns the owner of odd values, as `tacit.studies.study.read_table`.
    """
    target = schema.target
    if study.target is not None and study.target != target.name:
        raise InvalidArgumentError(
            f"`target` is {study.target!r}, but the schema's target is {target.name!r}. Correct one"
            " of them."
        )
    found = _open_stored(study, schema) if study.table.is_dir() else _encode(study, schema)
    num_records = as_table(found).num_records
    if study.num_records is not None and num_records != study.num_records:
        raise TacitError(
            f"the study was executed on {study.num_records} records, and the table has"
            f" {num_records}. Is it the same table? If so, take num_records out of the study."
        )
    return found


def _encode(study: Study, schema: Schema) -> Record:
    frame = read_table(study.table, schema)
    if study.weight is not None and study.weight in frame:
        frame[study.weight] = to_numbers(frame[study.weight])
    records = encode_table(
        frame,
        schema,
        weight=study.weight,
        max_weight=study.max_weight,
        groups=study.groups,
        max_rows=study.max_rows,
    )
    labels = np.asarray(records.y)
    _require_classes(labels if records.mask is None else labels[np.asarray(records.mask)], schema)
    return records


def _open_stored(study: Study, schema: Schema) -> OnHost:
    """Returns the records of a folder, or raises unless they were encoded for this study."""
    folder = study.table
    records = open_records(folder)
    settled = {"weight": study.weight, "groups": study.groups, "max_rows": study.max_rows}
    extra = [f"`{name}`" for name, value in settled.items() if value is not None]
    if extra:
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded already, with or without {', '.join(extra)}; leave it out"
            " here, and give it to tacit encode."
        )
    if study.output.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgumentError(
            f"`output` {str(study.output)!r} is in the folder of the private records, and a run is"
            " made to be published. Choose another folder."
        )
    if records.schema_digest != digest_of(schema):
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded with another schema. Give the `schema` that it was"
            " encoded with, or encode the table again with this one."
        )
    _require_classes(_some_labels(records), schema)
    return OnHost(records)


def _some_labels(records: StoredRecords) -> NDArray[Any]:
    """Returns the classes of the first records, up to where a second one occurs."""
    found: NDArray[Any] = np.zeros(0)
    for start in range(0, records.num_records, _BLOCK):
        block = records.read(np.arange(start, min(start + _BLOCK, records.num_records)))
        labels = np.asarray(block.y if block.mask is None else block.y[block.mask])
        found = np.unique(np.concatenate([found, labels]))
        if len(found) > 1:
            break
    return found


def _require_classes(labels: NDArray[Any], schema: Schema) -> None:
    """Raises where all labels are the same."""
    if isinstance(schema.target, Target) and len(np.unique(labels)) < 2:
        raise InvalidArgumentError(
            f"column {schema.target.name!r}: all rows are of one class, so nothing can be learnt."
            " Add rows of the others. (Not for publication: it depends on the records.)"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Path) else value


def _require_kind(name: str, value: object, kind: type) -> None:
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or isinstance(value, bool) != (kind is bool):
        words = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
        raise InvalidArgumentError(f"{name} must be {words.get(kind, 'a list')}; got {value!r}.")


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
