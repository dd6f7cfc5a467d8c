"""Labelled records beside a fit: public, or private and charged, or for their owner alone."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import pandas as pd
import typer
from numpy.typing import NDArray
from rich.console import Console

from tacit import _check
from tacit.cli import accounting
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError, TacitError
from tacit.privacy.budget import Budget
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.statement import Statement
from tacit.studies.files import read_table
from tacit.studies.preparation import open_data_set
from tacit.studies.table_fit import FittedTable, Predicted

__all__ = [
    "OWNERS_EYES",
    "ChargeOption",
    "DataSetOption",
    "EvaluationDeltaOption",
    "GroupsOption",
    "LedgerOption",
    "OwnerOnlyOption",
    "PublicOption",
    "Terms",
    "predict_labelled",
    "read_labelled",
]

OWNERS_EYES = "NOT covered by any guarantee, and not charged: for the owner's eyes only."
_PANEL = "Whose records these are"
_DELTA = 1e-5

PublicOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--public", help="The records are public, or consented to.", rich_help_panel=_PANEL
    ),
]
OwnerOnlyOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--owner-only",
        help="They are private; write an uncharged result, marked as not for publication.",
        rich_help_panel=_PANEL,
    ),
]
ChargeOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="They are private; spend this on the result.", rich_help_panel=_PANEL),
]
EvaluationDeltaOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="With --epsilon: 1e-5, or that of the ledger.", rich_help_panel=_PANEL),
]
LedgerOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="With --epsilon: is charged.", rich_help_panel=_PANEL)
]
DataSetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="What the ledger calls these records.", rich_help_panel=_PANEL),
]
GroupsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="With --epsilon: whose each row is.", rich_help_panel=_PANEL),
]


@dataclass(frozen=True, kw_only=True)
class Terms:
    """On what terms records may be looked at.

    Without a word they are private and not paid for: a result is then shown, not written.
    """

    public: bool
    owner_only: bool
    epsilon: float | None
    delta: float | None
    ledger: Path | None
    data_set: str | None
    groups: str | None
    seed: int | None

    def __post_init__(self) -> None:
        if self.public + self.owner_only + (self.epsilon is not None) > 1:
            raise InvalidArgumentError(
                "say one of --public, --owner-only and --epsilon: the records are either public, or"
                " private and looked at by their owner alone, or private and paid for."
            )
        if self.epsilon is not None:
            accounting.check_positive("--epsilon", self.epsilon)
        if self.delta is not None:
            accounting.check_delta(self.delta)
        if self.seed is not None:
            _check.non_negative_integer(**{"--seed": self.seed})
        if (self.ledger is None) != (self.data_set is None):
            raise InvalidArgumentError(
                "--ledger and --data-set go together: the file, and what it calls these records."
            )
        options = {
            "--delta": self.delta,
            "--ledger": self.ledger,
            "--groups": self.groups,
            "--seed": self.seed,
        }
        extra = [name for name, value in options.items() if value is not None]
        if self.epsilon is None and extra:
            raise InvalidArgumentError(f"{', '.join(extra)} needs --epsilon, what may be spent.")

    def open(self) -> tuple[Budget, DataSetLedger | None]:
        """Returns what may be spent, and where it is charged."""
        assert self.epsilon is not None
        ledger = open_data_set(self.ledger, self.data_set)
        delta = self.delta
        if delta is None:
            delta = _DELTA if ledger is None else ledger.rule.delta
        return Budget(self.epsilon, delta), ledger

    def describe(self, table: Path, num_records: int, charged: Statement | None) -> dict[str, Any]:
        """Returns the field ``data`` of a result."""
        statement: Any = None if self.public else OWNERS_EYES
        if charged is not None:
            statement = charged.to_json()
        return {
            "name": table.name,
            "num_records": num_records,
            "public": self.public,
            "statement": statement,
        }

    @property
    def is_written(self) -> bool:
        """Whether a result goes into the run's folder, which may be published."""
        return self.public or self.owner_only or self.epsilon is not None

    def show(self, console: Console, charged: Statement | None) -> None:
        """Says what the result may be used for."""
        if charged is not None:
            console.print(
                f"private records, charged: epsilon {charged.epsilon_text} at delta"
                f" {charged.delta:g} for {charged.unit}",
                markup=False,
            )
        elif self.public:
            console.print("public records, as you say: free", style="dim")
        else:
            console.print(OWNERS_EYES, style="bold red", markup=False)
        if not self.is_written:
            console.print(
                "Not written to the run, which may be published. Say --public, --epsilon or"
                " --owner-only.",
                style="red",
            )

    def people(self, fitted: FittedTable, frame: pd.DataFrame) -> NDArray[np.int64] | None:
        """Returns whose each row is, where units of privacy are people."""
        if self.groups is None:
            if self.epsilon is not None and fitted.statement["unit"].startswith("one person"):
                raise InvalidArgumentError(
                    "the run protects people with several rows; give --groups, the column that says"
                    " whose each row is, or a row would be protected instead of a person."
                )
            return None
        require_columns(frame, [self.groups])
        numbers, _ = pd.factorize(frame[self.groups])
        if (numbers < 0).any():
            raise InvalidArgumentError(
                f"--groups {self.groups}: {int((numbers < 0).sum())} of {len(numbers)} ids are"
                " missing. Leave these rows out, or give each an id of its own."
            )
        return np.asarray(numbers, np.int64)


def predict_labelled(fitted: FittedTable, frame: pd.DataFrame) -> Predicted:
    """Returns what a run predicts; raises where it predicts nothing."""
    found = fitted.predict(frame)
    if not all(np.isfinite(part).all() for part in found):
        raise TacitError(
            "the run predicts NaN: its fit diverged. Fit again, with a smaller learning rate"
            " (recipe.learning_rate in a study)."
        )
    return found


def read_labelled(path: Path, fitted: FittedTable) -> tuple[pd.DataFrame, NDArray[Any]]:
    """Returns the rows of a table and their targets: class numbers, or numbers as they are."""
    schema = fitted.schema
    frame = read_table(path, schema)
    encoded = schema.encode_target(frame)
    if np.issubdtype(encoded.dtype, np.integer):
        return frame, encoded
    return frame, frame[schema.target.name].to_numpy(np.float64)
