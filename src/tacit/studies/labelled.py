"""Labelled records beside a fit: public, or private and charged, or for their owner alone."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit._artefact import write_json
from tacit.certify.predictive import certified_curve
from tacit.data import CategoricalColumn, NumericTarget, Schema, Target
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError, TacitError
from tacit.privacy.budget import Budget
from tacit.privacy.ledger import DataSetLedger, LedgerFile
from tacit.privacy.statement import Statement
from tacit.robust import L2, Linf
from tacit.robust.balls import Ball
from tacit.studies.evaluation import (
    METHOD,
    certificate_points,
    evaluate_predictions,
    private_certificate_points,
)
from tacit.studies.execution import DELTA
from tacit.studies.private_evaluation import Groups, evaluate_privately
from tacit.studies.study import read_table
from tacit.studies.table_fit import FittedTable, Predicted, load_fitted_table

__all__ = ["OWNERS_EYES", "Terms", "certify_run", "evaluate_run"]

OWNERS_EYES = "NOT covered by any guarantee, and not charged: for the owner's eyes only."
_MOST_GROUPS = 50


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms labelled records may be looked at; at most one of the first three.

    Without any of them the records are private and not paid for: a result is returned, and not
    written into the run, which may be published.

    Args:
      public: the records are public, or their people consented.
      owner_only: a result is exact, written, and marked as not for publication.
      epsilon: the records are private, and this is spent on a result that may be published.
      delta: with epsilon; 1e-5 by default, or that of the ledger.
      ledger: with epsilon, the file that is charged.
      data_set: what it calls these records.
      groups: with epsilon, the column that says whose each row is.
      seed: with epsilon, makes the noise repeatable, and INSECURE.

    Example:
      >>> Terms(public=True).is_written, Terms().is_written
      (True, False)
    """

    public: bool = False
    owner_only: bool = False
    epsilon: float | None = None
    delta: float | None = None
    ledger: Path | None = None
    data_set: str | None = None
    groups: str | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.public + self.owner_only + (self.epsilon is not None) > 1:
            raise InvalidArgumentError(
                "say one of `public`, `owner_only` and `epsilon`: the records are either public, or"
                " private and looked at by their owner alone, or private and paid for."
            )
        if self.epsilon is not None:
            _check.positive(epsilon=self.epsilon)
        if self.delta is not None:
            _check.fraction(one=False, delta=self.delta)
        if self.seed is not None:
            _check.non_negative_integer(seed=self.seed)
        if (self.ledger is None) != (self.data_set is None):
            raise InvalidArgumentError(
                "`ledger` and `data_set` go together: the file, and what it calls these records."
            )
        needy = ("delta", "ledger", "groups", "seed")
        given = [f"`{name}`" for name in needy if getattr(self, name) is not None]
        if self.epsilon is None and given:
            names = ", ".join(given)
            raise InvalidArgumentError(f"{names} needs `epsilon`, what may be spent.")

    @property
    def is_written(self) -> bool:
        """Whether a result goes into the run's folder, which may be published."""
        return self.public or self.owner_only or self.epsilon is not None


def evaluate_run(
    run: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    terms: Terms | None = None,
    by: Sequence[str] = (),
) -> dict[str, Any]:
    """Returns how good a run is on labelled records, and writes ``evaluation.json`` into it.

    Guarantee:
      With ``terms.epsilon`` all figures come from one Gaussian release, which is charged first.
      Otherwise they are exact, and are covered by none: ``data.statement`` says so.

    Args:
      run: the run's folder.
      table: a CSV file with the columns of its schema.
      terms: on what terms the records may be looked at; see `Terms`.
      by: columns whose values make groups with figures of their own. With ``terms.epsilon`` they
        must be categories of the schema, since which values occur is private.

    Raises:
      TacitError: for whatever is wrong, before anything is spent.
    """
    own = _Labelled.read(run, table, terms)
    columns = list(dict.fromkeys(by))
    require_columns(own.frame, columns)
    schema, charged = own.fitted.schema, None
    if own.terms.epsilon is None:
        exact = {name: _few(own.frame[name]) for name in columns}
        document = evaluate_predictions(own.predicted(), own.truth, by=exact)
    else:
        groups = {name: _public_groups(schema, own.frame, name) for name in columns}
        budget, ledger = own.account()
        document, charged = evaluate_privately(
            own.predicted(),
            own.truth,
            budget=budget,
            target=schema.target if isinstance(schema.target, NumericTarget) else None,
            by=groups,
            people=own.people,
            ledger=ledger,
            seed=own.terms.seed,
        )
    document = {"kind": document.pop("kind"), "data": own.described(charged), **document}
    return own.written("evaluation.json", document)


def certify_run(
    run: str | os.PathLike[str],
    table: str | os.PathLike[str],
    *,
    radii: Sequence[float],
    norm: Literal["linf", "l2"] = "linf",
    terms: Terms | None = None,
    first: int | None = None,
) -> dict[str, Any]:
    """Returns the share of records that a run predicts right whatever changes within a radius.

    Writes ``certificate.json`` into the run.

    Guarantee:
      As `evaluate_run`.

    Args:
      run: the folder of a run of classes.
      table: a CSV file with the columns of its schema.
      radii: how far encoded features, which lie in [-1, 1], may move.
      norm: how that is measured.
      terms: on what terms the records may be looked at; see `Terms`.
      first: takes only so many rows.

    Raises:
      TacitError: for whatever is wrong, before anything is spent.
    """
    for radius in radii:
        _check.positive(radius=radius)
    _check.one_of(("linf", "l2"), norm=norm)
    if first is not None:
        _check.positive_integer(first=first)
    own = _Labelled.read(run, table, terms, first=first)
    schema, charged = own.fitted.schema, None
    if not isinstance(schema.target, Target):
        raise InvalidArgumentError("a certificate is about classes; this run predicts numbers.")
    budget, ledger = (None, None) if own.terms.epsilon is None else own.account()
    certificates = certified_curve(
        own.fitted.posterior,
        jnp.asarray(schema.encode(own.frame)),
        jnp.asarray(own.truth),
        _ball(norm, schema),
        sorted({0.0, *radii}),
    )
    if budget is None:
        points = certificate_points(certificates)
    else:
        points, charged = private_certificate_points(
            certificates, budget=budget, people=own.people, ledger=ledger, seed=own.terms.seed
        )
    document = {
        "data": own.described(charged),
        "norm": "l-infinity" if norm == "linf" else "l2",
        "points": points,
        "method": METHOD,
    }
    return own.written("certificate.json", document)


@dataclass(frozen=True, kw_only=True)
class _Labelled:
    """A run and labelled rows; targets are class numbers, or numbers as they are."""

    run: Path
    name: str
    terms: Terms
    fitted: FittedTable
    frame: pd.DataFrame
    truth: NDArray[Any]
    people: NDArray[np.int64] | None

    @classmethod
    def read(
        cls,
        run: str | os.PathLike[str],
        table: str | os.PathLike[str],
        terms: Terms | None,
        *,
        first: int | None = None,
    ) -> "_Labelled":
        terms = terms or Terms()
        fitted = load_fitted_table(run)
        schema = fitted.schema
        frame = read_table(Path(table), schema)
        truth = schema.encode_target(frame)
        if isinstance(schema.target, NumericTarget):
            truth = frame[schema.target.name].to_numpy(np.float64)
        frame, truth = frame[:first], truth[:first]
        return cls(
            run=Path(run),
            name=Path(table).name,
            terms=terms,
            fitted=fitted,
            frame=frame,
            truth=truth,
            people=_people(terms, fitted, frame),
        )

    def predicted(self) -> Predicted:
        """Returns what the run predicts; raises where it predicts nothing."""
        found = self.fitted.predict(self.frame)
        if not all(np.isfinite(part).all() for part in found):
            raise TacitError(
                "the run predicts NaN: its fit diverged. Fit again, with a smaller learning rate"
                " (recipe.learning_rate in a study)."
            )
        return found

    def account(self) -> tuple[Budget, DataSetLedger | None]:
        """Returns what may be spent, and where it is charged."""
        terms, ledger = self.terms, None
        assert terms.epsilon is not None
        if terms.ledger is not None and terms.data_set is not None:
            ledger = LedgerFile.open(terms.ledger).data_set(terms.data_set)
        delta = DELTA if ledger is None else ledger.rule.delta
        return Budget(terms.epsilon, delta if terms.delta is None else terms.delta), ledger

    def described(self, charged: Statement | None) -> dict[str, Any]:
        """Returns the field ``data`` of a result."""
        num_rows, people = len(self.frame), self.people
        statement: Any = None if self.terms.public else OWNERS_EYES
        return {
            "name": self.name,
            "num_records": num_rows if people is None else int(people.max()) + 1,
            "public": self.terms.public,
            "statement": statement if charged is None else charged.to_json(),
        }

    def written(self, name: str, document: dict[str, Any]) -> dict[str, Any]:
        """Writes a result where the terms allow it, and returns it."""
        if self.terms.is_written:
            write_json(self.run / name, document)
        return document


def _people(terms: Terms, fitted: FittedTable, frame: pd.DataFrame) -> NDArray[np.int64] | None:
    """Returns whose each row is, where units of privacy are people."""
    if terms.groups is None:
        if terms.epsilon is not None and fitted.statement["unit"].startswith("one person"):
            raise InvalidArgumentError(
                "the run protects people with several rows; give `groups`, the column that says"
                " whose each row is, or a row would be protected instead of a person."
            )
        return None
    require_columns(frame, [terms.groups])
    numbers, _ = pd.factorize(frame[terms.groups])
    if (numbers < 0).any():
        raise InvalidArgumentError(
            f"`groups` {terms.groups}: {int((numbers < 0).sum())} of {len(numbers)} ids are"
            " missing. Leave these rows out, or give each an id of its own."
        )
    return np.asarray(numbers, np.int64)


def _few(values: "pd.Series[Any]") -> "pd.Series[Any]":
    if values.nunique() > _MOST_GROUPS:
        raise InvalidArgumentError(
            f"`by` {values.name} has {values.nunique()} values; groups need at most {_MOST_GROUPS}."
        )
    return values


def _public_groups(schema: Schema, frame: pd.DataFrame, name: str) -> Groups:
    """Returns groups by categories that the schema lists: those that occur are not public."""
    column = next((column for column in schema.columns if column.name == name), None)
    if not isinstance(column, CategoricalColumn):
        raise InvalidArgumentError(
            f"`by` {name} must be a column that the schema lists with categories, since which"
            " values occur is private, too."
        )
    # Values that are not listed take the last place.
    numbers = column.encode(frame[name]).argmax(axis=1)
    return Groups((*map(str, column.categories), "(other)"), np.asarray(numbers, np.int64))


def _ball(norm: str, schema: Schema) -> Ball:
    """Returns the ball of a norm within the range of features."""
    kind = Linf if norm == "linf" else L2
    if schema.max_norm is not None:  # then features are scaled, and their range is another
        return kind(radius=0.0)
    return kind(radius=0.0, low=-1.0, high=1.0)
