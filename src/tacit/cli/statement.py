"""``tacit statement``, ``explain``, ``report``, ``audit``: what is promised, and if it holds."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit import _check
from tacit._artefact import write_json
from tacit.audit import AuditResult, audit_membership, audit_plan
from tacit.audit.membership import LiRA, LossAttack, PlanTrainer
from tacit.cli._options import JsonOption, MethodOption
from tacit.data import NumericColumn, Schema, Target, encode_table
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget
from tacit.privacy.cost import event_to_json
from tacit.privacy.interpretation import Explanation, TradeOff, explain_statement, gaussian_mu
from tacit.privacy.interpretation import explain as explain_epsilon
from tacit.privacy.statement import read_statement, verify_statement
from tacit.privacy.statement.fields import read_sealed_statement, statement_from_json
from tacit.privacy.statement.verification import Verification
from tacit.report.figures import trade_off_figure
from tacit.report.html import write_report
from tacit.report.panels import ledger_panel
from tacit.studies import Prepared, Recipe, prepare
from tacit.studies.study import read_table
from tacit.studies.table_fit import load_prepared

__all__ = ["audit_command", "explain_command", "report_command", "statement_command"]


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


_EPSILON, _DELTA, _METHOD = 1.0, 1e-5, "sgld"
_SYNTHETIC = Schema(
    columns=(NumericColumn(name="x", low=-1, high=1),),
    target=Target(name="y", classes=("no", "yes")),
)


def audit_command(
    *,
    run: Annotated[
        Path | None,
        typer.Argument(help="A run's folder: audits its settings and writes audit.json into it."),
    ] = None,
    method: MethodOption = None,
    epsilon: Annotated[float | None, typer.Option(help="The claim, 1 by default.")] = None,
    delta: Annotated[float | None, typer.Option(help="Its delta, 1e-5 by default.")] = None,
    canaries: Annotated[
        int, typer.Option(help="How many canaries; more of them can show more.")
    ] = 500,
    table: Annotated[
        Path | None,
        typer.Option(
            help="The run's own CSV: attacks models trained on it. The result is then private."
        ),
    ] = None,
    shadows: Annotated[
        int, typer.Option(help="With --table: shadow models of LiRA; 0 attacks by the loss alone.")
    ] = 32,
    confidence: Annotated[float, typer.Option(help="Of the lower bound and the verdict.")] = 0.95,
    seed: Annotated[int | None, typer.Option(help="Makes the audit repeatable.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Attack a method or a run, and report a lower bound on its epsilon.

    Without private data: synthetic canaries go through the engine and the method, and whoever
    reads the result guesses which of them were there. An audit tests code. One that finds nothing
    proves nothing. The exit code is 1 on a violation.

    [bold]tacit audit --method sgld --epsilon 1 --delta 1e-5 --canaries 500[/]

    The settings of a run, and models trained on its own table:

    [bold]tacit audit run[/]

    [bold]tacit audit run --table data.csv[/]
    """
    _check.positive_integer(canaries=canaries)
    _check.fraction(one=False, confidence=confidence)
    if seed is not None:
        _check.non_negative_integer(seed=seed)
    if run is None:
        if table is not None:
            raise InvalidArgumentError("--table needs the folder of the run that it belongs to.")
        prepared = _prepared(method, epsilon, delta, canaries)
        result = audit_plan(
            prepared.plan,
            budget=prepared.budget,
            num_canaries=canaries,
            confidence=confidence,
            seed=seed,
        )
    else:
        if any(option is not None for option in (method, epsilon, delta)):
            raise InvalidArgumentError(
                "leave out --method, --epsilon and --delta: the run has its own."
            )
        result = _audit_run(
            run, table, canaries=canaries, shadows=shadows, confidence=confidence, seed=seed
        )
        write_json(run / "audit.json", result.to_json())
    typer.echo(json.dumps(result.to_json())) if as_json else _show(result)
    if result.violation is not None:
        raise typer.Exit(1)


def _show(result: AuditResult) -> None:
    console = Console(highlight=False, soft_wrap=True)
    verdict, *rest = str(result).splitlines()
    style = "bold green" if result.violation is None else "bold red"
    console.print(verdict, style=style, markup=False)
    console.print("\n".join(rest), markup=False)
    if result.details.get("same_cost_as_run") is False:
        console.print(
            "  note         the run's cost is not that of its study alone; what was audited is"
            " the study, calibrated anew"
        )


def _prepared(
    method: str | None, epsilon: float | None, delta: float | None, num_records: int
) -> Prepared:
    epsilon = _EPSILON if epsilon is None else epsilon
    delta = _DELTA if delta is None else delta
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    recipe = Recipe(method=method or _METHOD)
    return prepare(_SYNTHETIC, recipe, num_records=num_records, budget=Budget(epsilon, delta))


def _audit_run(
    run: Path,
    table: Path | None,
    *,
    canaries: int,
    shadows: int,
    confidence: float,
    seed: int | None,
) -> AuditResult:
    prepared = load_prepared(run)
    # Calibrated anew, so that a run which a ledger or private bounds made dearer is not the same.
    is_same = event_to_json(prepared.plan.cost) == read_statement(run).get("cost")
    num_canaries = min(canaries, prepared.plan.method.num_records)
    if table is None:
        result = audit_plan(
            prepared.plan,
            budget=prepared.budget,
            num_canaries=num_canaries,
            confidence=confidence,
            seed=seed,
        )
    else:
        result = audit_membership(
            PlanTrainer(plan=prepared.plan, model=prepared.model, budget=prepared.budget),
            encode_table(read_table(table, prepared.schema), prepared.schema),
            num_canaries=num_canaries,
            attack=LiRA(num_shadows=shadows) if shadows else LossAttack(),
            confidence=confidence,
            seed=seed,
        )
    return replace(result, details={**result.details, "same_cost_as_run": is_same})
