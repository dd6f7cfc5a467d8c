"""``tacit predict``, ``evaluate`` and ``certify``: what a posterior says of rows, and how well."""

import enum
import json
from pathlib import Path
from typing import Annotated, Any, cast

import jax.numpy as jnp
import numpy as np
import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit.certify import certified_curve
from tacit.cli._options import SeedOption, note
from tacit.cli.accounting import JsonOption, check_positive
from tacit.data import CategoricalColumn, NumericTarget, Schema, Target
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.report.evaluation_panel import metric_rows
from tacit.robust import L2, Ball, Linf
from tacit.studies import labelled, load_fitted_table
from tacit.studies.evaluation import (
    METHOD,
    certificate_points,
    evaluate_predictions,
    private_certificate_points,
)
from tacit.studies.files import read_table, write_json, write_text
from tacit.studies.labelled import Terms, predict_labelled, read_labelled
from tacit.studies.private_evaluation import Groups, evaluate_privately
from tacit.studies.table_fit import prediction_table

__all__ = ["certify", "evaluate", "predict"]


def predict(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="A CSV file with new rows.", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A CSV file to write; by default to the screen."),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(help="A column of the new rows to carry over, such as an id; repeat it."),
    ] = None,
    level: Annotated[float, typer.Option(help="Of intervals, for numeric targets.")] = 0.9,
    as_json: JsonOption = False,
) -> None:
    """Predict new rows, with probabilities and what they do not know.

    Writes a probability for each class, or a mean with its interval, and how much of the
    uncertainty is noise (aleatoric) or ignorance (epistemic).

    [bold]tacit predict run new.csv --output predictions.csv --keep person[/]
    """
    _check.fraction(one=False, **cast(dict[str, Any], {"--level": level}))
    if output is not None and output.resolve() == table.resolve():
        raise InvalidArgumentError("--output is the table itself; choose another file.")
    fitted = load_fitted_table(run)
    frame = read_table(table, fitted.schema, with_target=False)
    require_columns(frame, keep or [])
    found = prediction_table(fitted.predict(frame), fitted.schema.target, level=level)
    clash = sorted(set(keep or []) & set(found.columns))
    if clash:
        raise InvalidArgumentError(f"--keep {clash[0]} is the name of a prediction; rename it.")
    result = pd.concat([frame[keep or []], found], axis=1)
    if output is not None:
        write_text(output, result.to_csv(index=False, lineterminator="\n"))
    if as_json:
        document: dict[str, Any] = {"num_rows": len(result), "output": str(output)}
        if output is None:
            document = {"predictions": json.loads(result.to_json(orient="records"))}
        typer.echo(json.dumps(document))
    elif output is None:
        typer.echo(result.to_csv(index=False, lineterminator="\n"), nl=False)
    else:
        typer.echo(f"wrote {output}: {len(result)} predictions")
        note(
            "predictions tell about the rows they are made for, which the run's promise does not"
            " cover.",
            style="dim",
        )


_MOST_GROUPS = 50


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="A CSV file with labels.", show_default=False)],
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Also for each value of this column; repeat it for others."),
    ] = None,
    public: labelled.PublicOption = False,
    epsilon: labelled.ChargeOption = None,
    delta: labelled.EvaluationDeltaOption = None,
    ledger: labelled.LedgerOption = None,
    data_set: labelled.DataSetOption = None,
    groups: labelled.GroupsOption = None,
    owner_only: labelled.OwnerOnlyOption = False,
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
    if not isinstance(column, CategoricalColumn):
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


class NormName(enum.Enum):
    """How far an input may move."""

    LINF = "linf"
    L2 = "l2"

    def ball(self, schema: Schema) -> Ball:
        """Returns the ball of this norm within the range of features."""
        kind = Linf if self is NormName.LINF else L2
        if schema.max_norm is not None:  # then features are scaled, and their range is another
            return kind(radius=0.0)
        return kind(radius=0.0, low=-1.0, high=1.0)


def certify(
    run: Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)],
    table: Annotated[Path, typer.Argument(help="A CSV file with labels.", show_default=False)],
    *,
    radius: Annotated[
        list[float], typer.Option(help="How far features in [-1, 1] may move; repeat it.")
    ],
    norm: Annotated[
        NormName, typer.Option(help="Each feature by so much (linf), or all together (l2).")
    ] = NormName.LINF,
    first: Annotated[
        int | None, typer.Option(help="Only the first so many rows: a certificate takes time.")
    ] = None,
    public: labelled.PublicOption = False,
    epsilon: labelled.ChargeOption = None,
    delta: labelled.EvaluationDeltaOption = None,
    ledger: labelled.LedgerOption = None,
    data_set: labelled.DataSetOption = None,
    groups: labelled.GroupsOption = None,
    owner_only: labelled.OwnerOnlyOption = False,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Certify predictions: right, whatever somebody changes within a radius.

    The radius is in units of encoded features, which lie in [-1, 1]: for a numeric column, half of
    its range is 1. Categories may move in between, too, so a certificate is stricter than needed.

    [bold]tacit certify run test.csv --radius 0.02 --radius 0.05 --norm linf --public[/]
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
    for value in radius:
        check_positive("--radius", value)
    if first is not None:
        _check.positive_integer(**{"--first": first})
    fitted = load_fitted_table(run)
    if not isinstance(fitted.schema.target, Target):
        raise InvalidArgumentError("a certificate is about classes; this run predicts numbers.")
    frame, labels = read_labelled(table, fitted)
    frame, labels = frame[:first], labels[:first]
    people = terms.people(fitted, frame)
    budget, account = (None, None) if epsilon is None else terms.open()
    certificates = certified_curve(
        fitted.posterior,
        jnp.asarray(fitted.schema.encode(frame)),
        jnp.asarray(labels),
        norm.ball(fitted.schema),
        sorted({0.0, *radius}),
    )
    charged, num_records = None, len(frame)
    if budget is None:
        points = certificate_points(certificates)
    else:
        num_records = num_records if people is None else int(people.max()) + 1
        points, charged = private_certificate_points(
            certificates, budget=budget, people=people, ledger=account, seed=seed
        )
    document = {
        "data": terms.describe(table, num_records, charged),
        "norm": "l-infinity" if norm is NormName.LINF else "l2",
        "points": points,
        "method": METHOD,
    }
    if terms.is_written:
        write_json(run / "certificate.json", document)
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True)
    _show_certificate(console, document)
    terms.show(console, charged)
    if terms.is_written:
        console.print(f"wrote {run / 'certificate.json'}", markup=False)


def _show_certificate(console: Console, document: dict[str, Any]) -> None:
    data = document["data"]
    console.print(
        f"{data['num_records']:,} records of {data['name']}, {document['norm']}",
        style="bold",
        markup=False,
    )
    table = Table("radius", "certified", "95 % interval", box=None, padding=(0, 2, 0, 0))
    for row in document["points"]:
        table.add_row(
            f"{row['radius']:g}",
            f"{100 * row['certified']:.1f} %",
            f"{100 * row['low']:.1f} to {100 * row['high']:.1f} %",
        )
    console.print(table)
    console.print("features lie in [-1, 1]; at radius 0 it is the accuracy\n", style="dim")
