"""The tacit command: one thin module per verb."""

import importlib.metadata
import sys
from typing import Annotated

import jax
import typer
from rich.console import Console

from tacit.cli import (
    audit,
    calibrate,
    certify,
    demo,
    encode,
    epsilon,
    evaluate,
    explain,
    fit,
    launch,
    ledger,
    plan,
    predict,
    report,
    schema,
    statement,
)
from tacit.cli._notes import warnings_as_notes
from tacit.cli._processes import ending_together
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
app.command("schema")(schema.schema)
app.command("encode")(encode.encode)
app.command("plan")(plan.plan)
app.command("fit")(fit.fit)
app.command("launch")(launch.launch)
app.command("predict")(predict.predict)
app.command("evaluate")(evaluate.evaluate)
app.command("certify")(certify.certify)
app.command("epsilon")(epsilon.epsilon)
app.command("calibrate")(calibrate.calibrate)
app.command("explain")(explain.explain)
app.command("audit")(audit.audit)
app.command("statement")(statement.statement)
app.command("report")(report.report)
app.add_typer(ledger.app, name="ledger")


def main() -> None:
    """Runs the command; an error that tacit raises on purpose is one line and exit code 2.

    So is one of the file system, such as a full disk.
    """
    with ending_together():
        _run()


def _run() -> None:
    try:
        with warnings_as_notes():
            app()
    except TacitError as error:
        _fail(str(error))
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        _fail("there is not enough memory. Use narrower --hidden layers, or fewer --max-rows.")
    except OSError as error:
        _fail(f"{error.filename or 'a file'} cannot be used ({error.strerror}).")


def _fail(message: str) -> None:
    text = " ".join(message.split())
    Console(stderr=True).print(f"error: {text}", style="red", markup=False, soft_wrap=True)
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
