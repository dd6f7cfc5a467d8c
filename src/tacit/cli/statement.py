"""``tacit statement``: what is promised about a run, and whether that is so."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit.cli._plan import JsonOption
from tacit.privacy.statement import (
    Verification,
    read_sealed_statement,
    read_statement,
    statement_from_json,
    verify_statement,
)

__all__ = ["statement"]


def statement(
    run: Annotated[
        Path, typer.Argument(help="A run's directory, or a statement.json.", show_default=False)
    ],
    *,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify", help="Recompute epsilon from the statement alone, by a second accountant."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """What is promised about a run, and what it rests on.

    [bold]tacit statement run/ --verify[/]

    With [bold]--verify[/] the exit code is 0 only if the claim holds: it is 1 where the claim is
    too small, the statement contradicts itself or cannot be checked, nothing is promised,
    or the noise was not secret.
    """
    document = read_statement(run)
    if verify:
        sealed = read_sealed_statement(run) if run.is_dir() else None
        found = verify_statement(document, sealed=sealed)
        typer.echo(json.dumps(found.to_json(), indent=2)) if as_json else _print(found)
        raise typer.Exit(0 if found.holds else 1)
    if as_json:
        typer.echo(json.dumps(document, indent=2))
    else:
        typer.echo(statement_from_json(document).text())


def _print(found: Verification) -> None:
    console = Console(highlight=False, soft_wrap=True)
    if not found.holds:
        console.print("[bold red]THE CLAIM DOES NOT HOLD[/]")
        for problem in found.problems:
            console.print(f"  {problem}", style="red", markup=False)
    else:
        console.print("[bold green]the claim holds[/]")
    if found.recomputed is not None:
        console.print(f"  claimed     epsilon {found.claimed:g} at delta {found.delta:g}")
        console.print(f"  recomputed  epsilon {found.recomputed:.4g}, an upper bound")
        console.print(
            "  by dp_accounting's privacy loss distributions, from the statement alone",
            style="dim",
        )
    if found.note:
        console.print(f"  {found.note}", style="yellow", markup=False)
