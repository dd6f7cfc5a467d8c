"""The public schema of a table: which values may occur, decided without looking at the records."""

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from numpy.typing import NDArray

from tacit import _check
from tacit.data.columns import (
    CategoricalColumn,
    Column,
    Features,
    NumericColumn,
    NumericTarget,
    Scale,
    Target,
)
from tacit.errors import InvalidArgumentError

__all__ = ["Schema", "parse_toml", "require_columns", "toml_of"]

_WIDTH = 96


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the document that the text describes; raises if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"text is not valid TOML: {error}.") from error
    except (ValueError, RecursionError) as error:  # a number too long, or too deep a nesting
        raise InvalidArgumentError(f"text is no TOML that can be read: {error}.") from None


def toml_of(document: Mapping[str, Any]) -> str:
    r"""Returns TOML text that ``parse_toml`` turns back into the document.

    Example:
      >>> print(toml_of({"limit": 1.0, "a b": {"of": ["x", "y"]}}), end="")
      limit = 1.0
      <BLANKLINE>
      ["a b"]
      of = ["x", "y"]
    """
    # Line breaks within strings are escaped, so each of these lines is an element of a list.
    return re.sub(
        r"^.+ = \[\n(?: {4}.+,\n)+\]$", _short, tomli_w.dumps(_plain(document)), flags=re.M
    )


def _short(lines: re.Match[str]) -> str:
    line = re.sub(r",\n\]$", "]", lines[0]).replace("[\n    ", "[", 1).replace(",\n    ", ", ")
    return line if len(line) <= _WIDTH else lines[0]


def _plain(value: Any) -> Any:
    """The value with Python's numbers for NumPy's, which tomli-w does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


@dataclass(frozen=True, kw_only=True)
class Schema:
    """The public description of a table: its columns, their ranges and categories, its target.

    Ranges, knots, categories and classes come from a code book or from common knowledge. Read
    off the records (a minimum, the set of values that occur) they would be an unpaid release.

    Guarantee:
      ``encode`` treats every row on its own and uses nothing but the row and the schema, so it
      costs no privacy. Every row's Euclidean norm is at most ``norm_bound``, and its features
      are finite, whatever the row holds.

    Args:
      columns: the columns that become features, in order; the table may have more.
      target: the column to predict: its classes, or the range of its numbers.
      max_norm: if given, all features are multiplied by the constant that makes it the
        ``norm_bound``. By default single features lie in [-1, 1].

    Example:
      >>> from tacit.data import CategoricalColumn, NumericColumn, Schema, Target
      >>> schema = Schema(
      ...     columns=(
      ...         NumericColumn(name="age", low=17, high=90),
      ...         CategoricalColumn(name="sex", categories=("Female", "Male")),
      ...     ),
      ...     target=Target(name="ill", classes=("no", "yes")),
      ... )
      >>> schema.feature_names
      ('age', 'age=(missing)', 'sex=Female', 'sex=Male', 'sex=(other)')
      >>> schema.encode(pd.DataFrame({"age": [90], "sex": ["Male"]})).tolist()
      [[1.0, 0.0, 0.0, 1.0, 0.0]]
      >>> Schema.from_toml(schema.to_toml()) == schema
      True
    """

    columns: tuple[Column, ...]
    target: Target | NumericTarget
    max_norm: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.columns, tuple) or not self.columns:
            raise InvalidArgumentError(
                f"columns must be a tuple of at least one column; got {self.columns!r}."
            )
        names = [column.name for column in self.columns] + [self.target.name]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InvalidArgumentError(
                f"every column must appear once, and the target only as target; "
                f"repeated: {', '.join(repeated)}."
            )
        if self.max_norm is not None:
            _check.positive(max_norm=self.max_norm)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """One name per feature, in the order of ``encode``."""
        return tuple(name for column in self.columns for name in column.feature_names)

    @property
    def norm_bound(self) -> float:
        """The public upper bound on the Euclidean norm of an encoded row."""
        return math.sqrt(len(self.columns)) if self.max_norm is None else self.max_norm

    @property
    def class_target(self) -> Target:
        """The target, for what needs classes; raises where it is numeric."""
        if not isinstance(self.target, Target):
            raise InvalidArgumentError(
                f"the target {self.target.name!r} must have classes here; the schema declares a"
                " range of numbers."
            )
        return self.target

    def encode(self, frame: pd.DataFrame) -> Features:
        """Returns the features of a table, one row per row; the target is not needed."""
        require_columns(frame, [column.name for column in self.columns])
        features = np.hstack([column.encode(frame[column.name]) for column in self.columns])
        return features * np.float32(self.norm_bound / math.sqrt(len(self.columns)))

    def encode_target(self, frame: pd.DataFrame) -> NDArray[np.int32] | NDArray[np.float32]:
        """Returns the class numbers of a table, or its scaled numeric targets.

        Raises if a label is not a class, or a number is missing.
        """
        require_columns(frame, [self.target.name])
        return self.target.encode(frame[self.target.name])

    def to_toml(self) -> str:
        """Returns the schema as TOML, the form in which to publish it."""
        document: dict[str, Any] = {"target": _fields(self.target)}
        if self.max_norm is not None:
            document = {"max_norm": self.max_norm, **document}
        document["columns"] = {column.name: _fields(column) for column in self.columns}
        return toml_of(document)

    @classmethod
    def from_toml(cls, text: str) -> "Schema":
        """Reads a schema: a ``[target]`` table and one ``[columns.NAME]`` table per column.

        A column with ``categories`` is categorical, one with ``low`` and ``high`` numeric; so is
        a target with ``low`` and ``high`` instead of ``classes``.

        Example:
          >>> Schema.from_toml('''
          ... [target]
          ... name = "ill"
          ... classes = ["no", "yes"]
          ... [columns.dose]
          ... low = 0
          ... high = 500
          ... scale = "log1p"
          ... ''').columns[0]
          NumericColumn(name='dose', low=0, high=500, scale=<Scale.LOG1P: 'log1p'>, knots=())
        """
        document = parse_toml(text)
        _require_keys("the schema", document, required={"target", "columns"}, optional={"max_norm"})
        target, columns = _target(document["target"]), document["columns"]
        if not isinstance(columns, Mapping):
            raise InvalidArgumentError("columns must be tables [columns.NAME].")
        return cls(
            columns=tuple(_column(name, table) for name, table in columns.items()),
            target=target,
            max_norm=document.get("max_norm"),
        )


def require_columns(frame: pd.DataFrame, names: list[str]) -> None:
    """Raises unless each named column occurs exactly once in the table."""
    if not isinstance(frame, pd.DataFrame):
        raise InvalidArgumentError(
            f"frame must be a pandas DataFrame; got {type(frame).__name__}. "
            "Arrays that are features already go to as_records."
        )
    for problem, found in (("lacks", 0), ("repeats", 2)):
        wrong = [name for name in names if min(int(np.sum(frame.columns == name)), 2) == found]
        if wrong:
            raise InvalidArgumentError(
                f"the table {problem} the columns {', '.join(map(repr, wrong))}. "
                "Rename them in the table, or correct the schema."
            )


def _require_keys(what: str, table: object, *, required: set[str], optional: set[str]) -> None:
    if not isinstance(table, Mapping):
        raise InvalidArgumentError(f"{what} must be a table; got {table!r}.")
    missing, unknown = required - set(table), set(table) - required - optional
    if missing or unknown:
        wrong = [f"missing {key}" for key in sorted(missing)]
        wrong += [f"unknown {key}" for key in sorted(unknown)]
        raise InvalidArgumentError(f"{what} has wrong keys: {', '.join(wrong)}.")


def _target(table: Mapping[str, Any]) -> Target | NumericTarget:
    if isinstance(table, Mapping) and ("low" in table or "high" in table):
        _require_keys("[target]", table, required={"name", "low", "high"}, optional=set())
        return NumericTarget(name=table["name"], low=table["low"], high=table["high"])
    _require_keys("[target]", table, required={"name", "classes"}, optional=set())
    return Target(name=table["name"], classes=_listed(table["classes"]))


def _column(name: str, table: Mapping[str, Any]) -> Column:
    what = f"[columns.{name}]"
    if isinstance(table, Mapping) and "categories" in table:
        _require_keys(what, table, required={"categories"}, optional=set())
        return CategoricalColumn(name=name, categories=_listed(table["categories"]))
    _require_keys(what, table, required={"low", "high"}, optional={"scale", "knots"})
    scale = table.get("scale", Scale.LINEAR.value)
    _check.one_of(tuple(option.value for option in Scale), **{f"{what} scale": scale})
    return NumericColumn(
        name=name,
        low=table["low"],
        high=table["high"],
        scale=Scale(scale),
        knots=_listed(table.get("knots", [])),
    )


def _listed(values: object) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise InvalidArgumentError(f"expected a list in brackets; got {values!r}.")
    return tuple(values)


def _fields(part: Column | Target | NumericTarget) -> dict[str, Any]:
    match part:
        case Target(name=name, classes=classes):
            return {"name": name, "classes": list(classes)}
        case NumericTarget(name=name, low=low, high=high):
            return {"name": name, "low": low, "high": high}
        case CategoricalColumn(categories=categories):
            return {"categories": list(categories)}
        case NumericColumn(low=low, high=high, scale=scale, knots=knots):
            return {"low": low, "high": high, "scale": scale.value, "knots": list(knots)}
