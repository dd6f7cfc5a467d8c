"""``tacit launch``: several processes of one fit on this machine."""

import sys
from typing import Annotated

import typer

from tacit import _check
from tacit.cli._launching import Launched, cores_for, free_address
from tacit.errors import InvalidArgumentError

__all__ = ["launch"]


def launch(
    command: Annotated[
        list[str], typer.Argument(help="After --: fit and its options, as for one process.")
    ],
    *,
    num_processes: Annotated[
        int, typer.Option("--num-processes", "-n", help="How many processes share the work.")
    ],
    cores_per_process: Annotated[
        int | None,
        typer.Option(help="Bind each process to so many cores of its own, and XLA's threads."),
    ] = None,
) -> None:
    """Run a fit in several processes on this machine, each with its rows of the table.

    The first of them is the coordinator: it alone pays the ledger, writes the run and prints. When
    one is lost, all end; what was paid for is kept, and any number of processes can go on with it.
    Ctrl-C stops all of them after the steps that are paid for.

    [bold]tacit launch -n 2 -- fit data.csv --schema schema.toml --epsilon 1 --output run[/]

    [bold]tacit launch -n 4 --cores-per-process 2 -- fit --resume --output run[/]
    """
    _check.positive_integer(**{"--num-processes": num_processes})
    if command[0] != "fit":
        raise InvalidArgumentError(
            f"only fit runs in several processes; got {command[0]!r}. Write: tacit launch -n"
            f" {num_processes} -- fit data.csv ..."
        )
    taken = [
        word
        for word in command
        if word.partition("=")[0] in ("--num-processes", "--process-id", "--coordinator")
    ]
    if taken:
        raise InvalidArgumentError(
            f"leave out {', '.join(taken)}: tacit launch gives each its own."
        )
    cores = cores_for(num_processes, cores_per_process)
    launched = Launched()
    launched.start(
        [sys.executable, "-m", "tacit", *command],
        num_processes=num_processes,
        coordinator=free_address(),
        cores=cores,
    )
    raise typer.Exit(launched.wait())
