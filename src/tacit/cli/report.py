"""``tacit report``: one page about a run that a person likes to look at."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit.cli._plan import JsonOption
from tacit.errors import InvalidArgumentError
from tacit.report.html import write_report
from tacit.report.ledger_panel import ledger_panel

__all__ = ["report"]


def report(
    run: Annotated[Path, typer.Argument(help="A run's directory.", show_default=False)],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the page goes; by default run/report.html."),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="The owner's ledger, to show what all runs spent.")
    ] = None,
    data_set: Annotated[
        str | None, typer.Option(help="The name of the data in the ledger, where it has several.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """One HTML page about a run: privacy, accuracy, uncertainty, and how to check it.

    [bold]tacit report run/ --output page.html[/]

    It needs no network and can be printed or sent as it is. It shows what is in the directory
    and says what is not.
    """
    if data_set is not None and ledger is None:
        raise InvalidArgumentError("--data-set names data in a ledger; add --ledger FILE.")
    panel = None if ledger is None else ledger_panel(ledger, data_set=data_set)
    path = write_report(run, output, ledger=panel)
    if as_json:
        typer.echo(json.dumps({"report": str(path)}))
    else:
        Console(highlight=False, soft_wrap=True).print(f"wrote {path}", markup=False)
