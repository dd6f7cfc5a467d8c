"""``tacit schema``: a draft of the public description of a table."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit.cli._files import write_text
from tacit.cli._plan import JsonOption
from tacit.data.csv import read_csv
from tacit.data.draft import WARNING, draft_schema
from tacit.errors import InvalidArgumentError

__all__ = ["schema"]


def schema(
    table: Annotated[Path, typer.Argument(help="A CSV file.", show_default=False)],
    *,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; the last one by default.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the draft goes; by default to the screen."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a schema that is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft a schema: the public ranges and categories of a table, for you to correct.

    A draft looks at the records, so it is no part of any guarantee: check it against a code book
    before you fit.

    [bold]tacit schema data.csv --target income --output schema.toml[/]
    """
    if output is not None and output.exists() and not overwrite:
        raise InvalidArgumentError(
            f"{str(output)!r} exists, and may hold your corrections. Choose another --output, or"
            " say --overwrite."
        )
    draft = draft_schema(read_csv(table), target=target)
    if output is not None:
        write_text(output, draft.text)
    if as_json:
        document = {
            "schema": draft.text,
            "target": draft.target,
            "notes": draft.notes,
            "is_draft": True,
            "output": None if output is None else str(output),
        }
        typer.echo(json.dumps(document))
        return
    if output is None:
        typer.echo(draft.text, nl=False)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in draft.notes:
        console.print(f"note: {line}", style="yellow", markup=False)
    console.print(WARNING, style="bold", markup=False)
    if output is not None:
        console.print(f"wrote {output}", markup=False)
