"""The tacit command: a thin function for each verb; related verbs share a module."""

import contextlib
import functools
import gc
import importlib
import importlib.metadata
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperCommand, TyperGroup

from tacit.errors import PrivacyWarning, TacitError, UtilityWarning

__all__ = ["main"]

# The first line of each verb's own help: with it the list of verbs is printed without loading them.
_VERBS = {
    "demo": "Fit a private Bayesian network to census records and compare it with two others.",
    "schema": "Draft a schema: the public ranges and categories of a table, for you to correct.",
    "encode": "Encode tables that are larger than memory, once, for any number of fits.",
    "plan": "What a budget buys: noise, steps, batches and signal-to-noise. No data is touched.",
    "rehearse": "What a run would give: the same fit on simulated tables. No data is touched.",
    "fit": "Fit a private table: a posterior and its privacy statement, ready to be published.",
    "launch": "Run a fit in several processes on this machine, each with its rows of the table.",
    "predict": "Predict new rows, with probabilities and what they do not know.",
    "evaluate": "Accuracy, calibration and uncertainty on labelled records, also by subgroup.",
    "certify": "Certify predictions: right, whatever somebody changes within a radius.",
    "epsilon": "Epsilon of a run, rounded up.",
    "calibrate": "The least noise, or the most steps, that a budget allows.",
    "explain": "What an epsilon means: how well the best attack on one person can do.",
    "audit": "Attack a method or a run, and report a lower bound on its epsilon.",
    "statement": "What is promised about a run, and what it rests on.",
    "report": "One HTML page about a run: privacy, accuracy, uncertainty, and how to check it.",
    "ledger": "The owner's book of everything that was released about a data set.",
}
_MODULES = {
    "audit": "statement",
    "calibrate": "accounting",
    "certify": "evaluate",
    "encode": "schema",
    "epsilon": "accounting",
    "explain": "statement",
    "plan": "schema",
    "predict": "evaluate",
    "report": "statement",
}
"""The modules of verbs that share one; the others have one of their own name."""


class _Verbs(TyperGroup):
    """Loads a verb when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(_VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in _VERBS:
            return None
        return TyperCommand(name=cmd_name, help=_VERBS[cmd_name], rich_markup_mode="rich")

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else _loaded(name), rest


def _loaded(verb: str) -> Any:
    with _without_collecting():
        module = importlib.import_module(f"tacit.cli.{_MODULES.get(verb, verb)}")
    own = getattr(module, f"{verb}_command")
    if not isinstance(own, typer.Typer):
        function, own = (
            own,
            typer.Typer(
                add_completion=False, rich_markup_mode="rich", pretty_exceptions_show_locals=False
            ),
        )
        own.command(verb)(as_verb(function))
    command = typer.main.get_command(own)
    command.name = verb
    return command


@contextlib.contextmanager
def _without_collecting() -> Iterator[None]:
    """Leaves garbage alone: imports make none, and looking for it takes a seventh of their time."""
    is_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if is_on:
            gc.enable()


def note(*lines: str, style: str = "yellow") -> None:
    """Prints each line to standard error, where it does not get into a result.

    Of several processes only the coordinator prints: all have the same to say.
    """
    from tacit.processes import is_coordinator  # noqa: PLC0415 (loads JAX)

    if not is_coordinator():
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(f"note: {line}", style=style, markup=False)


_OTHER_NAMES = {"num_steps": "steps", "batch_size": "batch", "num_records": "records"}
"""What options call arguments of the library."""


def as_verb(function: Callable[..., None]) -> Callable[..., None]:
    """Returns a verb that shows privacy warnings as notes, and whose errors name options.

    The library speaks of arguments: in backticks, or as the first word of "epsilon must be ...".
    """
    flags = {name: f"--{name.replace('_', '-')}" for name in inspect.signature(function).parameters}
    flags |= {name: flags[own] for name, own in _OTHER_NAMES.items() if own in flags}

    def translated(text: str) -> str:
        return re.sub(
            r"`([a-z_]+)`|^([a-z_]+)(?= must )",
            lambda found: flags.get(found[1] or found[2], found[0]),
            text,
        )

    @functools.wraps(function)
    def verb(*args: Any, **options: Any) -> None:
        if "jax" in sys.modules:
            from tacit.compiling import keep_compiled  # noqa: PLC0415 (loads JAX)

            keep_compiled()
        try:
            with _warnings_as_notes():
                function(*args, **options)
        except TacitError as error:
            error.args = (translated(str(error)),)
            note(*map(translated, getattr(error, "__notes__", ())))
            raise

    return verb


@contextlib.contextmanager
def _warnings_as_notes() -> Iterator[None]:
    """Shows each privacy warning as a line for people, without file names and code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note(str(message))

    with warnings.catch_warnings():
        for category in (PrivacyWarning, UtilityWarning):
            warnings.simplefilter("always", category)
        warnings.showwarning = show
        yield


@contextlib.contextmanager
def _ending_together() -> Iterator[None]:
    """Ends one of several processes at once where it fails, so that none waits for another."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            _end_if_shared(end.code if isinstance(end.code, int) else 1)
        raise
    except BaseException as error:
        _end_if_shared(1, error)
        raise


def _end_if_shared(code: int, error: BaseException | None = None) -> None:
    processes = sys.modules.get("tacit.processes")  # where it was not loaded there is one process
    if processes is None or processes.num_processes() == 1:
        return
    if error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    processes.end_now(code)


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_show_locals=False,  # locals may hold records
    help=(
        "Private Bayesian deep learning: posteriors that may be published.\n\n"
        "Start with [bold]tacit demo[/]; [bold]tacit epsilon --help[/] shows what a run costs."
    ),
)


def main() -> None:
    """Runs the command; an error that tacit raises on purpose is one line and exit code 2.

    So is one of the file system, such as a full disk.
    """
    with _ending_together():
        try:
            app()
        except TacitError as error:
            _fail(str(error))
        except (MemoryError, RuntimeError) as error:  # JAX's own is a RuntimeError
            if isinstance(error, RuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
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
