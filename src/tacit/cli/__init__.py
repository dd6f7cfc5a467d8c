"""The tacit command: one thin module per verb."""

import importlib.metadata
import sys
from typing import Annotated

import typer
from rich.console import Console

from tacit.cli import audit, calibrate, demo, epsilon, explain, ledger, report, statement
from tacit.errors import TacitError

__all__ = ["app", "main"]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # locals may hold records
    help=(
        "Private Bayesian deep learning: posteriors that may be published.\n\n"
        "Start with [bold]tacit demo[/]; [bold]tacit epsilon --help[/] shows what a run costs."
    ),
)
app.command("demo")(demo.demo)
app.command("epsilon")(epsilon.epsilon)
app.command("calibrate")(calibrate.calibrate)
app.command("explain")(explain.explain)
app.command("audit")(audit.audit)
app.command("statement")(statement.statement)
app.command("report")(report.report)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Runs the command; an error that tacit raises on purpose is one line and exit code 2."""
    try:
        app()
    except TacitError as error:
        Console(stderr=True).print(f"error: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(2)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {importlib.metadata.version('tacit')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass
