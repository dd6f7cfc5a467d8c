"""``tacit encode``: a table that is larger than memory becomes a folder of records."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from tacit.cli._files import read_schema
from tacit.cli._notes import note, remark
from tacit.cli._plan import JsonOption
from tacit.data import encode_to_folder

__all__ = ["encode"]


def encode(
    tables: Annotated[
        list[Path],
        typer.Argument(help="CSV or Parquet files with the private rows.", show_default=False),
    ],
    *,
    schema: Annotated[
        Path, typer.Option(help="The public ranges and categories.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder for the records.", show_default=False)
    ],
    groups: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose each row is; the table must be sorted by it."
        ),
    ] = None,
    max_rows: Annotated[
        int | None, typer.Option(help="With --groups: rows of one person that count.")
    ] = None,
    weight: Annotated[str | None, typer.Option(help="The column of weights.")] = None,
    max_weight: Annotated[
        float, typer.Option(help="The largest weight, as public knowledge.")
    ] = 1.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace records in --output.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Encode tables that are larger than memory, once, for any number of fits.

    The folder takes the place of the table in tacit fit, which then reads only rows that it draws.
    It holds the private records themselves: do not publish it.

    [bold]tacit encode data.parquet --schema schema.toml --output records[/]

    [bold]tacit encode 2023.csv 2024.csv --schema schema.toml --output records[/]
    """
    description = read_schema(schema)
    with Progress(
        SpinnerColumn(),
        TextColumn("encode {task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("encode", total=None)
        found = encode_to_folder(
            tables,
            description,
            output,
            weight=weight,
            max_weight=max_weight,
            groups=groups,
            max_rows=max_rows,
            overwrite=overwrite,
            on_rows=lambda num_rows: bar.update(task, completed=num_rows),
        )
    remark(found.remarks)
    num_records = found.records.num_records
    if as_json:
        document = {
            "output": str(output),
            "num_rows": found.num_rows,
            "num_records": num_records,
            "is_private": True,
        }
        typer.echo(json.dumps(document))
        return
    typer.echo(f"wrote {output}: {num_records} records of {found.num_rows} rows")
    note(
        "the folder holds the private records themselves. It may not be published; keep it as you"
        " keep the table."
    )
    typer.echo(f"next: tacit fit {output} --schema {schema} --epsilon 1 --output run")
