"""``tacit statement``, ``explain`` and ``report``: what is promised about a run, for people."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit import _check
from tacit.cli._options import JsonOption
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import round_up
from tacit.privacy.interpretation import Explanation, explain_statement
from tacit.privacy.interpretation import explain as explain_epsilon
from tacit.privacy.statement import (
    Verification,
    read_sealed_statement,
    read_statement,
    statement_from_json,
    verify_statement,
)
from tacit.privacy.trade_off import TradeOff, gaussian_mu
from tacit.report.figures import trade_off_figure
from tacit.report.html import write_report
from tacit.report.panels import ledger_panel

__all__ = ["explain_command", "report_command", "statement_command"]


def statement_command(
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


def explain_command(
    *,
    epsilon: Annotated[float | None, typer.Option(help="The promise; needs --delta.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Chance that the promise fails; needs --epsilon.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(help="A run's folder, or its statement.json: explains what was executed."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Writes the trade-off curve: .png, .svg or .pdf.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What an epsilon means: how well the best attack on one person can do.

    For example, for any mechanism with this promise, and for a run of yours:

    [bold]tacit explain --epsilon 2 --delta 1e-6[/]

    [bold]tacit explain --run run --plot trade-off.png[/]
    """
    explanation = _explanation(epsilon, delta, run)
    if plot is not None:
        _draw(explanation, plot)
    if as_json:
        typer.echo(json.dumps(explanation.to_json()))
        return
    console = Console(highlight=False, soft_wrap=True)
    first, *rest = str(explanation).splitlines()
    console.print(first, style="bold", markup=False)
    console.print("\n".join(rest), markup=False)
    if plot is not None:
        console.print(f"\nWritten to {plot}", style="dim", markup=False)


def _explanation(epsilon: float | None, delta: float | None, run: Path | None) -> Explanation:
    if run is not None:
        if epsilon is not None or delta is not None:
            raise InvalidArgumentError(
                "give either --run, whose statement has both, or --epsilon and --delta."
            )
        return explain_statement(read_statement(run))
    if epsilon is None or delta is None:
        raise InvalidArgumentError("give --epsilon and --delta, or --run.")
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    return explain_epsilon(epsilon=epsilon, delta=delta)


def _draw(explanation: Explanation, path: Path) -> None:
    name = f"epsilon {explanation.epsilon:g}, delta {explanation.delta:g}"
    if explanation.is_executed:
        curves = {f"as executed: {name}": explanation.trade_off}
    else:
        mu = gaussian_mu(epsilon=explanation.epsilon, delta=explanation.delta)
        curves = {
            f"any mechanism: {name}": explanation.trade_off,
            f"Gaussian noise with the same promise: mu {round_up(mu)}": TradeOff.gaussian(mu),
        }
    try:
        trade_off_figure(curves).savefig(path, dpi=200)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error).partition("(")[0].strip()
        raise InvalidArgumentError(
            f"--plot must be a file that can be written, .png, .svg or .pdf; got {str(path)!r}"
            f" ({reason})."
        ) from None


def report_command(
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
