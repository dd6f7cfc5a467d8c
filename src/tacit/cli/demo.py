"""``tacit demo``: a private Bayesian network on real census records, in a minute or so."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit.cli import _plan
from tacit.inference import ProgressBar
from tacit.report.demo import run_demo

__all__ = ["demo"]


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
    steps: Annotated[int, typer.Option(help="Updates of each fit.", min=40)] = 400,
    as_json: _plan.JsonOption = False,
) -> None:
    """Fit a private Bayesian network to census records and compare it with two others.

    The records are UCI Adult (does a person earn over 50 000 dollars?), which ships with tacit.

    [bold]tacit demo --epsilon 1[/]
    """
    _plan.check_positive("--epsilon", epsilon)
    _plan.check_delta(delta)
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
        typer.echo(json.dumps({"rows": [asdict(row) for row in rows], "output": str(output)}))
        return
    table = Table(title="UCI Adult: income above 50 000 dollars, public test part")
    table.add_column("method")
    for column in ("epsilon", "accuracy", "NLL", "ECE", "epistemic", "seconds"):
        table.add_column(column, justify="right")
    for row in rows:
        numbers = (row.accuracy, row.nll, row.ece, row.epistemic)
        table.add_row(
            row.name, row.epsilon, *(f"{value:.3f}" for value in numbers), f"{row.seconds:.0f}"
        )
    console = Console(highlight=False)
    console.print()
    console.print(table)
    console.print(f"\n[bold]DP-SGLD[/] is {private.statement}\n")
    console.print(f"Written to {output}/: reliability.png, posterior, statement.txt, results.json")
