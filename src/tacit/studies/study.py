"""A study: one TOML file, or the options of one command, that say all that a fit needs."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tacit import _check
from tacit.cli._options import require_widths
from tacit.cli.accounting import check_delta
from tacit.data import _toml
from tacit.errors import InvalidArgumentError
from tacit.studies.files import read_text
from tacit.studies.recipe import Recipe

__all__ = ["KEYS", "Study", "merged", "read_study"]

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
    "run": {"output": str, "seed": int, "noise_scale": float},
}
"""The tables of a study, their keys and what each holds."""

_LARGEST = 1e6

Tables = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is to be fitted; public, and copied into the run as it was executed.

    Attributes:
      table: the CSV file with the private records.
      schema: the file with their public description; None for the one that the run has.
      target: the column to predict, if it was said; it must be that of the schema.
      groups: the column that says whose each row is.
      max_rows: how many rows of one person count.
      weight: the column of weights.
      max_weight: the largest of them, as public knowledge.
      epsilon: what may be spent; infinite promises nothing, None is what a ledger has left.
      delta: the chance that the promise fails.
      ledger: the file that is charged.
      data_set: what it calls the records.
      recipe: how to fit.
      output: the run's folder.
      seed: makes the noise repeatable, and INSECURE.
      noise_scale: by how much noise exceeds what the budget alone asks for, on account of a ledger.
      num_records: for how many units it was executed, if it was.
    """

    table: Path
    schema: Path | None
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
    output: Path
    seed: int | None = None
    noise_scale: float = 1.0
    num_records: int | None = None

    @classmethod
    def from_tables(cls, tables: Tables, *, num_records: int | None = None) -> "Study":
        """Returns the study that checked tables describe; raises for what is missing or wrong."""
        data, budget = tables.get("data", {}), tables.get("budget", {})
        recipe, run = dict(tables.get("recipe", {})), tables.get("run", {})
        if "table" not in data:
            raise InvalidArgumentError("give the CSV file with the records: tacit fit data.csv ...")
        if "output" not in run:
            raise InvalidArgumentError("give a folder for the run: --output run/.")
        if "hidden" in recipe:
            recipe["hidden"] = tuple(recipe["hidden"])
            require_widths(recipe["hidden"])
        if budget.get("accountant", "PLD") != "PLD":
            raise InvalidArgumentError(
                f"budget.accountant must be PLD here; got {budget['accountant']!r}."
            )
        study = cls(
            table=Path(data["table"]),
            schema=None if "schema" not in data else Path(data["schema"]),
            target=data.get("target"),
            groups=data.get("groups"),
            max_rows=data.get("max_rows"),
            weight=data.get("weight"),
            max_weight=data.get("max_weight", 1.0),
            epsilon=budget.get("epsilon"),
            delta=budget.get("delta"),
            ledger=None if "ledger" not in budget else Path(budget["ledger"]),
            data_set=budget.get("data_set"),
            recipe=Recipe(**recipe),
            output=Path(run["output"]),
            seed=run.get("seed"),
            noise_scale=run.get("noise_scale", 1.0),
            num_records=num_records,
        )
        study._check()
        return study

    @property
    def is_private(self) -> bool:
        """Whether anything is promised."""
        return self.epsilon is None or math.isfinite(self.epsilon)

    def _check(self) -> None:
        positive: dict[str, Any] = {
            "--max-weight": self.max_weight,
            "noise_scale": self.noise_scale,
        }
        _check.positive(**positive)
        sizes = {
            "--max-weight": self.max_weight,
            "recipe.clip_norm": self.recipe.clip_norm,
            "recipe.learning_rate": self.recipe.learning_rate,
            "recipe.prior_std": self.recipe.prior_std,
        }
        for name, value in sizes.items():
            if value is not None and value > _LARGEST:
                # Beyond, float32 would overflow once records were read and paid for.
                raise InvalidArgumentError(f"{name} must be at most {_LARGEST:g}; got {value:g}.")
        if self.epsilon is not None:
            _check.positive(infinite=True, **{"--epsilon": self.epsilon})
        if self.delta is not None:
            check_delta(self.delta)
        if self.seed is not None:
            _check.non_negative_integer(**{"--seed": self.seed})
        if self.max_rows is not None:
            _check.positive_integer(**{"--max-rows": self.max_rows})
        if (self.groups is None) != (self.max_rows is None):
            raise InvalidArgumentError(
                "--groups and --max-rows go together: whose each row is, and how many rows of one"
                " person count at most, from public knowledge."
            )
        if (self.ledger is None) != (self.data_set is None):
            raise InvalidArgumentError(
                "--ledger and --data-set go together: the file, and what it calls these records."
            )
        if self.epsilon is None and self.ledger is None:
            raise InvalidArgumentError(
                "give --epsilon, or a --ledger whose rest is then spent, or say --non-private."
            )
        if not self.is_private and self.ledger is not None:
            raise InvalidArgumentError(
                "--non-private promises nothing, which no budget can pay; leave out --ledger."
            )

    def executed(self, *, num_records: int, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the study for TOML, with everything that was open filled in."""
        tables: dict[str, dict[str, Any]] = {
            "data": {
                "table": str(self.table),
                "target": self.target,
                "schema": None if self.schema is None else str(self.schema),
                "groups": self.groups,
                "max_rows": self.max_rows,
                "weight": self.weight,
                "max_weight": None if self.weight is None else self.max_weight,
            },
            "budget": {
                "epsilon": self.epsilon,
                "delta": self.delta,
                "accountant": "PLD",
                "ledger": None if self.ledger is None else str(self.ledger),
                "data_set": self.data_set,
            },
            "recipe": dict(recipe),
            "run": {
                "output": str(self.output),
                "seed": self.seed,
                "noise_scale": self.noise_scale,
            },
        }
        kept = {
            name: {key: value for key, value in table.items() if value is not None}
            for name, table in tables.items()
        }
        return {"num_records": num_records, **kept}


def read_study(path: Path) -> tuple[dict[str, dict[str, Any]], int | None]:
    """Returns the tables of a study file, and for how many records it was executed, if it was."""
    text = read_text(path, what="--study")
    try:
        document = _toml.loads(text)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"{path}: {error}") from None
    num_records = document.pop("num_records", None)
    if num_records is not None:
        _check.positive_integer(**{f"{path}: num_records": num_records})
    unknown = [name for name in document if name not in KEYS]
    tables: dict[str, dict[str, Any]] = {}
    for name, table in document.items():
        if name in unknown:
            continue
        if not isinstance(table, dict):
            raise InvalidArgumentError(f"{path}: {name} must be a table, [{name}].")
        unknown += [f"{name}.{key}" for key in table if key not in KEYS[name]]
        tables[name] = table
    if unknown:
        known = ", ".join(f"{name}.{key}" for name, keys in KEYS.items() for key in keys)
        raise InvalidArgumentError(
            f"{path} has unknown keys: {', '.join(unknown)}. Known are {known}."
        )
    for name, table in tables.items():
        for key, value in table.items():
            _require_kind(f"{path}: {name}.{key}", value, KEYS[name][key])
    return tables, num_records


def merged(tables: Tables, given: Tables) -> dict[str, dict[str, Any]]:
    """Returns the tables of a file, overridden by what the command line says."""
    return {
        name: {
            **tables.get(name, {}),
            **{key: value for key, value in given.get(name, {}).items() if value is not None},
        }
        for name in KEYS
    }


def _require_kind(name: str, value: object, kind: type) -> None:
    kinds = (int, float) if kind is float else (kind,)
    if not isinstance(value, kinds) or isinstance(value, bool):
        words = {str: "text", int: "a whole number", float: "a number", list: "a list"}
        raise InvalidArgumentError(f"{name} must be {words[kind]}; got {value!r}.")
