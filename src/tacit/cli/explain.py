"""``tacit explain``: what an epsilon means for one person."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit.cli import _plan
from tacit.errors import InvalidArgumentError
from tacit.privacy import explain as _explain
from tacit.privacy.accounting import round_up
from tacit.privacy.explain import Explanation
from tacit.privacy.statement import read_statement
from tacit.privacy.trade_off import TradeOff, gaussian_mu
from tacit.report.trade_off import trade_off_figure

__all__ = ["explain"]


def explain(
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
    as_json: _plan.JsonOption = False,
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
        return _explain.explain_statement(read_statement(run))
    if epsilon is None or delta is None:
        raise InvalidArgumentError("give --epsilon and --delta, or --run.")
    _plan.check_positive("--epsilon", epsilon)
    _plan.check_delta(delta)
    return _explain.explain(epsilon=epsilon, delta=delta)


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
