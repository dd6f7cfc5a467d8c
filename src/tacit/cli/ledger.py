"""``tacit ledger``: what was spent on the data of an owner, and what is left."""

import enum
import json
import math
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console
from rich.table import Table

from tacit import _check
from tacit.cli import as_verb
from tacit.cli._options import DeltaOption, JsonOption
from tacit.cli.accounting import AdjacencyOption
from tacit.errors import LedgerDamagedError
from tacit.privacy.accounting import Adjacency
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.filters import Filter, GDPFilter, RDPFilter
from tacit.privacy.ledger import LedgerFile
from tacit.privacy.ledger.state import DataSetRecord, LedgerState, RunRecord

__all__ = ["ledger_command"]

ledger_command = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="The owner's book of everything that was released about a data set.",
)

_FileArgument: TypeAlias = Annotated[Path, typer.Argument(help="The ledger.", show_default=False)]
_DataSetOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Only this data set.", show_default=False)
]


class _FilterName(enum.Enum):
    """How costs add up."""

    RDP = "rdp"
    GDP = "gdp"


@ledger_command.command("create")
@as_verb
def _create(
    file: _FileArgument,
    *,
    data_set: Annotated[str, typer.Option(help="What you call the data; one name, one people.")],
    epsilon: Annotated[float, typer.Option(help="The budget, for good.")],
    delta: DeltaOption,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
    composition: Annotated[
        _FilterName,
        typer.Option(
            "--filter", help="For any method (rdp), or tighter if all is full batch (gdp)."
        ),
    ] = _FilterName.RDP,
    as_json: JsonOption = False,
) -> None:
    """Sets the budget of a data set, once; makes the file if there is none.

    [bold]tacit ledger create people.ledger --data-set census --epsilon 2 --delta 1e-6[/]
    """
    _check.readable_text(data_set=data_set)
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    rule: Filter
    if composition is _FilterName.RDP:
        rule = RDPFilter.of_budget(epsilon=epsilon, delta=delta, adjacency=adjacency)
    else:
        rule = GDPFilter(epsilon=epsilon, delta=delta, adjacency=adjacency)
    # Whoever asks for a ledger that exists gets that one: budgets are added, never replaced.
    ledger = LedgerFile.open(file) if file.exists() else LedgerFile.create(file)
    ledger.register(data_set, rule)
    if as_json:
        typer.echo(json.dumps(_summary(ledger.state.data_sets[data_set])))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"{data_set}: epsilon {epsilon:g} at delta {delta:g}, for good", markup=False, style="bold"
    )
    console.print(f"in {file}. Keep it with the data, back it up, do not publish it.", markup=False)


@ledger_command.command("show")
@as_verb
def _show(
    file: _FileArgument, *, data_set: _DataSetOption = None, as_json: JsonOption = False
) -> None:
    """Shows what is left of each budget, the runs and the forks."""
    ledger = LedgerFile.open(file)
    records = _chosen(ledger, data_set)
    if as_json:
        typer.echo(json.dumps({"head": ledger.head, "data_sets": list(map(_summary, records))}))
        return
    console = Console(highlight=False, markup=False)
    for record in records:
        _show_data_set(console, record)
    if not records:
        console.print("no data set yet")


@ledger_command.command("history")
@as_verb
def _history(
    file: _FileArgument, *, data_set: _DataSetOption = None, as_json: JsonOption = False
) -> None:
    """Lists every charge, oldest first."""
    records = _chosen(LedgerFile.open(file), data_set)
    charges = sorted(
        (charge, record.name)
        for record in records
        for run in record.runs.values()
        for charge in run.charges
    )
    if as_json:
        typer.echo(json.dumps([{"data_set": name} | charge._asdict() for charge, name in charges]))
        return
    table = Table("", "time", "data set", "run", "for", "steps", box=None)
    for charge, name in charges:
        steps = "" if charge.num_steps is None else str(charge.num_steps)
        table.add_row(str(charge.number), charge.time, name, charge.run_id, charge.purpose, steps)
    Console(highlight=False, markup=False).print(table if charges else "nothing was charged yet")


@ledger_command.command("verify")
@as_verb
def _verify(
    file: _FileArgument,
    *,
    head: Annotated[
        str | None,
        typer.Option(help="A head you noted down: finds old copies too.", show_default=False),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Checks every entry. Exit code 1: the file is damaged."""
    problem, state = None, None
    try:
        state = LedgerFile.open(file).verify(known_head=head)
    except LedgerDamagedError as error:
        problem = str(error)
    if as_json:
        typer.echo(json.dumps({"is_intact": problem is None, "problem": problem} | _head(state)))
    elif problem is not None:
        Console(stderr=True).print(f"error: {problem}", style="red", markup=False, soft_wrap=True)
    elif state is not None:
        console = Console(highlight=False, soft_wrap=True)
        console.print(f"intact: {state.head.number} entries")
        console.print(f"head {state.head.digest}", style="dim")
    if problem is not None:
        raise typer.Exit(1)


def _head(state: LedgerState | None) -> dict[str, Any]:
    return {} if state is None else {"entries": state.head.number, "head": state.head.digest}


def _chosen(ledger: LedgerFile, name: str | None) -> list[DataSetRecord]:
    if name is None:
        return list(ledger.state.data_sets.values())
    return [ledger.state.data_sets[ledger.data_set(name).name]]


def _summary(record: DataSetRecord) -> dict[str, Any]:
    spent = record.spending.epsilon
    return {
        "data_set": record.name,
        "epsilon": record.rule.epsilon,
        "delta": record.rule.delta,
        "adjacency": record.rule.adjacency.value,
        "filter": record.rule.name,
        "epsilon_spent": spent if math.isfinite(spent) else None,
        "epsilon_spent_rounded_up": round_up(spent),
        "charges": record.spending.num_charges,
        "runs": [_run_summary(run) for run in record.runs.values()],
        "forks": [fork._asdict() for fork in record.forks],
    }


def _run_summary(run: RunRecord) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "purpose": run.purpose,
        "time": run.time,
        "steps_asked": run.num_steps,
        "steps_charged": run.steps_charged,
        "charges": len(run.charges),
        "parent": run.parent,
        "parent_step": run.parent_step,
        "is_secure": run.is_secure,
    }


def _bar(share: float, full: str, empty: str, *, width: int = 40) -> str:
    """What is spent, rounded up."""
    cells = min(width, math.ceil(share * width))
    return full * cells + empty * (width - cells)


def _show_data_set(console: Console, record: DataSetRecord) -> None:
    spent, budget = record.spending.epsilon, record.rule.epsilon
    console.print(record.name, style="bold")
    console.print(_bar(spent / budget, *("█░" if console.encoding.startswith("utf") else "#-")))
    console.print(
        f"epsilon {round_up(spent)} of {budget:g} is spent, at delta {record.rule.delta:g}"
        f" ({record.rule.name}, adjacency {record.rule.adjacency})",
        soft_wrap=True,
    )
    if not record.runs:
        console.print("no run yet\n")
        return
    table = Table("run", "began", "for", "steps", "goes on from", "", box=None)
    for run in record.runs.values():
        steps = str(run.steps_charged) if run.num_steps is not None else ""
        if run.num_steps is not None and not run.is_complete:
            steps += f" of {run.num_steps}"
        origin = "" if run.parent is None else f"{run.parent} at step {run.parent_step}"
        note = "" if run.is_secure else "INSECURE"
        table.add_row(run.run_id, run.time, run.purpose, steps, origin, note)
    console.print(table)
    for fork in record.forks:
        console.print(
            f"fork: {len(fork.run_ids)} runs went on from step {fork.step} of {fork.run_id}, and"
            " each was charged",
            style="yellow",
            soft_wrap=True,
        )
    console.print()
