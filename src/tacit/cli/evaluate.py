"""``tacit evaluate``: how good a run predicts labelled records, and at what price."""

import json
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from tacit.cli import _labelled
from tacit.cli._files import write_json
from tacit.cli._labelled import Terms, predict_labelled, read_labelled
from tacit.cli._options import SeedOption
from tacit.cli._plan import JsonOption
from tacit.data import Categorical, NumericTarget, Schema
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.estimators import load_fitted_table
from tacit.report.evaluation import evaluate_predictions
from tacit.report.metric_tables import metric_rows
from tacit.report.private_evaluation import Groups, evaluate_privately

__all__ = ["evaluate"]

_MOST_GROUPS = 50


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="A CSV file with labels.", show_default=False)],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Also for each value of this column; repeat it for others."),
    ] = None,
    public: _labelled.PublicOption = False,
    epsilon: _labelled.ChargeOption = None,
    delta: _labelled.EvaluationDeltaOption = None,
    ledger: _labelled.LedgerOption = None,
    data_set: _labelled.DataSetOption = None,
    groups: _labelled.GroupsOption = None,
    owner_only: _labelled.OwnerOnlyOption = False,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Accuracy, calibration and uncertainty on labelled records, also by subgroup.

    Test records are records of people, too. Say that they are public; or spend a budget on noisy
    figures that may be published; or look at exact figures as their owner. If you say nothing,
    exact figures are shown and nothing is written.

    [bold]tacit evaluate run test.csv --public --by sex --by race[/]

    [bold]tacit evaluate run test.csv --epsilon 0.5 --ledger people.ledger --data-set census[/]
    """
    terms = Terms(
        public=public,
        owner_only=owner_only,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        data_set=data_set,
        groups=groups,
        seed=seed,
    )
    fitted = load_fitted_table(run)
    frame, truth = read_labelled(table, fitted)
    columns = list(dict.fromkeys(by or []))
    require_columns(frame, columns)
    target = fitted.schema.target
    people, num_records = terms.people(fitted, frame), len(frame)
    charged = None
    if epsilon is None:
        exact = {name: _few(frame[name]) for name in columns}
        document = evaluate_predictions(predict_labelled(fitted, frame), truth, by=exact)
    else:
        chosen = {name: _public_groups(fitted.schema, frame, name) for name in columns}
        budget, account = terms.open()
        num_records = num_records if people is None else int(people.max()) + 1
        document, charged = evaluate_privately(
            predict_labelled(fitted, frame),
            truth,
            budget=budget,
            target=target if isinstance(target, NumericTarget) else None,
            by=chosen,
            people=people,
            ledger=account,
            seed=seed,
        )
    document = {
        "kind": document.pop("kind"),
        "data": terms.describe(table, num_records, charged),
        **document,
    }
    if terms.is_written:
        write_json(run / "evaluation.json", document)
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True)
    _show(console, document)
    terms.show(console, charged)
    if terms.is_written:
        console.print(f"wrote {run / 'evaluation.json'}", markup=False)


def _few(values: "pd.Series[Any]") -> "pd.Series[Any]":
    if values.nunique() > _MOST_GROUPS:
        raise InvalidArgumentError(
            f"--by {values.name} has {values.nunique()} values; groups need at most {_MOST_GROUPS}."
        )
    return values


def _public_groups(schema: Schema, frame: pd.DataFrame, name: str) -> Groups:
    """Returns groups by categories that the schema lists: those that occur are not public."""
    column = next((column for column in schema.columns if column.name == name), None)
    if not isinstance(column, Categorical):
        raise InvalidArgumentError(
            f"--by {name} must be a column that the schema lists with categories, since which"
            " values occur is private, too."
        )
    # Values that are not listed take the last place.
    numbers = column.encode(frame[name]).argmax(axis=1)
    return Groups((*map(str, column.categories), "(other)"), np.asarray(numbers, np.int64))


def _show(console: Console, document: dict[str, Any]) -> None:
    data = document["data"]
    table = Table("", "value", "95 % interval", box=None, padding=(0, 2, 0, 0))
    for row in metric_rows(document["metrics"]):
        table.add_row(row["name"], row["value"], row["interval"])
    console.print(f"{data['num_records']:,} records of {data['name']}", style="bold", markup=False)
    console.print(table)
    if document["subgroups"]:
        names = list(document["subgroups"][0]["metrics"])
        shown = [name for name in ("accuracy", "ece", "calibration_gap", "rmse", "coverage_90")
                 if name in names]  # fmt: skip
        groups = Table("group", "records", *shown, box=None, padding=(0, 2, 0, 0))
        for row in document["subgroups"]:
            cells = {cell["key"]: cell for cell in metric_rows(row["metrics"])}
            groups.add_row(
                f"{row['column']} = {row['value']}",
                f"{row['num_records']:,}",
                *(_compact(cells[name]) for name in shown),
            )
        console.print()
        console.print(groups, markup=False)
    console.print()


def _compact(cell: dict[str, str]) -> str:
    return f"{cell['value']} ({cell['interval'].replace(' %', '')})"
