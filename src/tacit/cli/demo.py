"""``tacit demo``: a private Bayesian network on real census records, in half a minute or so."""

import json
import textwrap
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit.cli import _plan
from tacit.errors import InvalidArgumentError
from tacit.inference import Fit, ProgressBar
from tacit.report.demo import DemoRow, run_demo

__all__ = ["demo"]

_FEWEST_STEPS = 40  # the second half of the chain is thinned to twenty states


def demo(
    *,
    epsilon: Annotated[float, typer.Option(help="Budget of each private fit.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Chance that the promise fails.")] = 1e-5,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the picture and the posterior.")
    ] = Path("tacit-demo"),
    seed: Annotated[
        int | None,
        typer.Option(help="Makes the run repeatable and INSECURE; by default the noise is secret."),
    ] = None,
    steps: Annotated[int, typer.Option(help="Updates of each fit, at least 40.")] = 400,
    as_json: _plan.JsonOption = False,
) -> None:
    """Fit a private Bayesian network to census records and compare it with two others.

    The records are UCI Adult (does a person earn over 50 000 dollars?), which ships with tacit.
    Nothing is downloaded. It takes about half a minute on two cores. For example, with a tenth
    of the budget:

    [bold]tacit demo --epsilon 0.1 --output demo-tenth[/]
    """
    _plan.check_positive("--epsilon", epsilon)
    _plan.check_delta(delta)
    if steps < _FEWEST_STEPS:
        raise InvalidArgumentError(f"--steps must be at least {_FEWEST_STEPS}; got {steps}.")
    if seed is not None and seed < 0:
        raise InvalidArgumentError(
            f"--seed must be a whole number of at least 0; got {seed}. Leave it out for secret"
            " noise."
        )
    _check.writable_directory(**{"--output": output})
    progress_console = Console(stderr=True)
    rows, private = run_demo(
        output,
        epsilon=epsilon,
        delta=delta,
        seed=seed,
        num_steps=steps,
        progress=lambda name: ProgressBar(f"{name:<17}", console=progress_console),
    )
    if as_json:
        document = {
            "rows": [asdict(row) for row in rows],
            "statement": private.statement.to_json(),
            "output": str(output),
        }
        typer.echo(json.dumps(document))
    else:
        _show(rows, private, output)


def _show(rows: list[DemoRow], private: Fit, output: Path) -> None:
    table = Table(title="UCI Adult: income above 50 000 dollars, public test part")
    table.add_column("method")
    for column in ("epsilon", "accuracy", "NLL", "ECE", "epistemic", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (row.accuracy, row.nll, row.ece, row.epistemic)
        epsilon = row.epsilon.split()[0]  # one note below serves all rows, and the table stays slim
        table.add_row(
            row.name, epsilon, *(f"{value:.3f}" for value in numbers), f"{row.seconds:.0f}"
        )
    if not private.statement.is_secure:
        table.caption = "INSECURE: whoever knows the seed can take the noise off."
    console = Console(highlight=False)
    console.print()
    console.print(table)
    console.print()
    hanging = " " * 15  # where the statement's second column begins
    for line in f"DP-SGLD is {private.statement}".splitlines():
        wrapped = textwrap.fill(line, console.width, subsequent_indent=hanging)
        console.print(wrapped, markup=False, soft_wrap=True)
    files = "reliability.png, posterior.*, statement.txt, results.json"
    console.print(f"\nWritten to {output}: {files}", markup=False, soft_wrap=True)
