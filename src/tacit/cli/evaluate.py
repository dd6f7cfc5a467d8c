"""``tacit predict``, ``evaluate`` and ``certify``: what a posterior says of rows, and how well."""

import enum
import json
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit._artefact import write_text
from tacit.cli import note
from tacit.cli._options import (
    JsonOption,
    LabelledArgument,
    RunArgument,
    SeedOption,
    with_options,
)
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.report.evaluation_panel import metric_rows
from tacit.studies import Terms, certify_run, evaluate_run, load_fitted_table
from tacit.studies.labelled import OWNERS_EYES
from tacit.studies.run_folder import read_interval_facts
from tacit.studies.study import read_table
from tacit.studies.table_fit import prediction_table

__all__ = ["certify_command", "evaluate_command", "predict_command"]

_WHOSE = "Whose records these are"


def predict_command(
    run: RunArgument,
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
    _check.fraction(one=False, level=level)
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
        note(*fitted.posterior.intervals.caveats)
        note(
            "predictions tell about the rows they are made for, which the run's promise does not"
            " cover.",
            style="dim",
        )


def _terms(
    *,
    public: Annotated[
        bool,
        typer.Option(
            "--public", help="The records are public, or consented to.", rich_help_panel=_WHOSE
        ),
    ] = False,
    epsilon: Annotated[
        float | None,
        typer.Option(help="They are private; spend this on the result.", rich_help_panel=_WHOSE),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(help="With --epsilon: 1e-5, or that of the ledger.", rich_help_panel=_WHOSE),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="Charged when --epsilon is given.", rich_help_panel=_WHOSE),
    ] = None,
    data_set: Annotated[
        str | None,
        typer.Option(help="What the ledger calls these records.", rich_help_panel=_WHOSE),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="With --epsilon: whose each row is.", rich_help_panel=_WHOSE),
    ] = None,
    owner_only: Annotated[
        bool,
        typer.Option(
            "--owner-only",
            help="They are private; write an uncharged result, marked as not for publication.",
            rich_help_panel=_WHOSE,
        ),
    ] = False,
    seed: SeedOption = None,
) -> Terms:
    """Returns the terms on which a verb may look at labelled records."""
    return Terms(
        public=public,
        owner_only=owner_only,
        epsilon=epsilon,
        delta=delta,
        ledger=ledger,
        data_set=data_set,
        groups=groups,
        seed=seed,
    )


@with_options("terms", _terms)
def evaluate_command(
    run: RunArgument,
    table: LabelledArgument,
    *,
    by: Annotated[
        list[str] | None,
        typer.Option(help="Also for each value of this column; repeat it for others."),
    ] = None,
    terms: Terms,
    as_json: JsonOption = False,
) -> None:
    """Accuracy, calibration and uncertainty on labelled records, also by subgroup.

    Test records are records of people, too. Say that they are public; or spend a budget on noisy
    figures that may be published; or look at exact figures as their owner. If you say nothing,
    exact figures are shown and nothing is written.

    [bold]tacit evaluate run test.csv --public --by sex --by race[/]

    [bold]tacit evaluate run test.csv --epsilon 0.5 --ledger people.ledger --data-set census[/]
    """
    document = evaluate_run(run, table, terms=terms, by=by or ())
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True)
    _show(console, document)
    note(*read_interval_facts(run).caveats)
    _show_terms(console, terms, document, run / "evaluation.json")


class NormName(enum.Enum):
    """How far an input may move."""

    LINF = "linf"
    L2 = "l2"


@with_options("terms", _terms)
def certify_command(
    run: RunArgument,
    table: LabelledArgument,
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
    terms: Terms,
    as_json: JsonOption = False,
) -> None:
    """Certify predictions: right, whatever somebody changes within a radius.

    The radius is in units of encoded features, which lie in [-1, 1]: for a numeric column, half of
    its range is 1. Categories may move in between, too, so a certificate is stricter than needed.

    [bold]tacit certify run test.csv --radius 0.02 --radius 0.05 --norm linf --public[/]
    """
    document = certify_run(run, table, radii=radius, norm=norm.value, terms=terms, first=first)
    if as_json:
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False, soft_wrap=True)
    _show_certificate(console, document)
    _show_terms(console, terms, document, run / "certificate.json")


def _show_terms(console: Console, terms: Terms, document: dict[str, Any], file: Path) -> None:
    """Says what a result may be used for, and where it is."""
    charged = document["data"]["statement"]
    if terms.epsilon is not None:
        console.print(
            f"private records, charged: epsilon {charged['epsilon_text']} at delta"
            f" {charged['delta']:g} for {charged['unit']}",
            markup=False,
        )
    elif terms.public:
        console.print(
            "evaluated on public records (as declared); no privacy cost", style="dim", markup=False
        )
    else:
        console.print(OWNERS_EYES, style="bold red", markup=False)
    if terms.is_written:
        console.print(f"wrote {file}", markup=False)
    else:
        console.print(
            "Not written to the run, which may be published. Say --public, --epsilon or"
            " --owner-only.",
            style="red",
        )


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
