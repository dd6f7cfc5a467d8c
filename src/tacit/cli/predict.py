"""``tacit predict``: what a posterior says of new rows, and how sure it is."""

import json
from pathlib import Path
from typing import Annotated, Any, cast

import pandas as pd
import typer

from tacit import _check
from tacit.cli._files import read_table, write_text
from tacit.cli._notes import note
from tacit.cli._plan import JsonOption
from tacit.data.schema import require_columns
from tacit.errors import InvalidArgumentError
from tacit.estimators import load_fitted_table
from tacit.report.predictions import prediction_table

__all__ = ["predict"]


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
