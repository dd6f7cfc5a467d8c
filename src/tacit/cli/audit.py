"""``tacit audit``: attack what is claimed, and say what was found."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tacit import _check
from tacit.audit import AuditResult, LiRA, LossAttack, PlanTrainer, audit_membership, audit_plan
from tacit.cli._options import JsonOption, MethodOption
from tacit.data import NumericColumn, Schema, Target, encode_table
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget
from tacit.privacy.cost import event_to_json
from tacit.privacy.statement import read_statement
from tacit.studies import Prepared, Recipe, prepare
from tacit.studies.files import read_table, write_json
from tacit.studies.table_fit import load_prepared

__all__ = ["audit_command"]

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
