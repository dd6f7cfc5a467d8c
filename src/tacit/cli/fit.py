"""``tacit fit``: a private table becomes a posterior that may be published."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tacit.cli._options import HiddenOption, SeedOption, hidden_of, warnings_as_notes
from tacit.cli.accounting import JsonOption
from tacit.cli.launch import CoordinatorOption, NumProcessesOption, ProcessIdOption, join
from tacit.errors import InvalidArgumentError
from tacit.inference import ProgressBar
from tacit.inference.method import describe_table_methods
from tacit.privacy.accounting import round_up
from tacit.processes import is_coordinator, stop_processes, translating_lost_workers
from tacit.studies import TableFit, execution
from tacit.studies.execution import Interrupted
from tacit.studies.study import Study, merged, read_study

__all__ = ["fit"]

_DATA, _BUDGET, _HOW, _RUN = "The records", "The budget", "How to fit", "The run"


def fit(
    table: Annotated[
        Path | None, typer.Argument(help="A CSV file with the private records.")
    ] = None,
    *,
    target: Annotated[
        str | None,
        typer.Option(help="The column to predict, as in the schema.", rich_help_panel=_DATA),
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(help="The public ranges and categories.", rich_help_panel=_DATA),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="The column that says whose each row is: protects people, not rows.",
            rich_help_panel=_DATA,
        ),
    ] = None,
    max_rows: Annotated[
        int | None,
        typer.Option(help="With --groups: rows of one person that count.", rich_help_panel=_DATA),
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="The column of weights.", rich_help_panel=_DATA)
    ] = None,
    max_weight: Annotated[
        float | None,
        typer.Option(help="The largest weight, as public knowledge: 1.", rich_help_panel=_DATA),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="What may be spent. With --ledger and without it: all that is left.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    delta: Annotated[
        float | None,
        typer.Option(
            help="Chance that the promise fails: 1e-5, or that of the ledger.",
            rich_help_panel=_BUDGET,
        ),
    ] = None,
    ledger: Annotated[
        Path | None,
        typer.Option(help="The owner's ledger, charged first.", rich_help_panel=_BUDGET),
    ] = None,
    data_set: Annotated[
        str | None,
        typer.Option(help="What the ledger calls these records.", rich_help_panel=_BUDGET),
    ] = None,
    non_private: Annotated[
        bool,
        typer.Option(
            "--non-private", help="Promise nothing: for public data.", rich_help_panel=_BUDGET
        ),
    ] = False,
    method: Annotated[
        str | None,
        typer.Option(help=f"By default sgld. {describe_table_methods()}.", rich_help_panel=_HOW),
    ] = None,
    hidden: HiddenOption = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of updates.", rich_help_panel=_HOW)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="Expected records per update.", rich_help_panel=_HOW)
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for the run.", rich_help_panel=_RUN),
    ] = None,
    study: Annotated[
        Path | None,
        typer.Option(help="A TOML file with all of this; options override.", rich_help_panel=_RUN),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on with the run in --output.", rich_help_panel=_RUN),
    ] = False,
    overwrite: Annotated[
        bool,
        typer.Option("--overwrite", help="Replace a run in --output.", rich_help_panel=_RUN),
    ] = False,
    seed: SeedOption = None,
    num_processes: NumProcessesOption = None,
    process_id: ProcessIdOption = None,
    coordinator: CoordinatorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fit a private table: a posterior and its privacy statement, ready to be published.

    What is not given is chosen from public facts. Ctrl-C stops the run without losing what was
    paid for.

    [bold]tacit fit data.csv --target income --schema schema.toml --epsilon 1 --output run[/]

    [bold]tacit fit --study study.toml --epsilon 0.5 --output other-run[/]

    [bold]tacit fit --resume --output run[/]
    """
    if non_private and epsilon is not None:
        raise InvalidArgumentError("give either --epsilon or --non-private, not both.")
    if epsilon is not None and math.isinf(epsilon):
        raise InvalidArgumentError("--epsilon must be finite; to promise nothing, --non-private.")
    widths = hidden_of(hidden)
    given: dict[str, dict[str, Any]] = {
        "data": {
            "table": _text(table),
            "target": target,
            "schema": _text(schema),
            "groups": groups,
            "max_rows": max_rows,
            "weight": weight,
            "max_weight": max_weight,
        },
        "budget": {
            "epsilon": math.inf if non_private else epsilon,
            "delta": delta,
            "ledger": _text(ledger),
            "data_set": data_set,
        },
        "recipe": {
            "method": method,
            "hidden": None if widths is None else list(widths),
            "num_steps": steps,
            "batch_size": batch,
        },
        "run": {"output": _text(output), "seed": seed},
    }
    join(num_processes, process_id, coordinator)
    console = Console(stderr=True, quiet=not is_coordinator())

    def bar(name: str) -> ProgressBar:
        return ProgressBar(name, console=console)

    try:
        with warnings_as_notes(), translating_lost_workers():
            if resume:
                found = execution.resume(_study_to_resume(output, study, given), bar=bar)
            else:
                tables, num_records = ({}, None) if study is None else read_study(study)
                own = Study.from_tables(merged(tables, given), num_records=num_records)
                found = execution.execute(own, bar=bar, overwrite=overwrite)
                output = own.output
    except Interrupted as stopped:
        _show_interrupted(stopped, output, as_json=as_json)
        raise typer.Exit(130) from None
    if as_json:
        typer.echo(json.dumps({"output": str(output), "statement": dict(found.statement)}))
    else:
        _show(found, output)
    stop_processes()


def _study_to_resume(
    output: Path | None, study: Path | None, given: dict[str, dict[str, Any]]
) -> Study:
    """Returns the study of a run; the table may have moved, and a trial may have a seed."""
    if output is None:
        raise InvalidArgumentError("say which run to go on with: --resume --output run.")
    allowed = {"table", "output", "seed"}
    extra = [
        key
        for part in given.values()
        for key, value in part.items()
        if value is not None and key not in allowed
    ]
    if extra or study is not None:
        raise InvalidArgumentError(
            "--resume goes on with the run's own study.toml; leave out"
            f" {', '.join(extra) or 'study'}."
        )
    tables, num_records = read_study(output / "study.toml")
    tables.get("run", {}).pop("seed", None)  # noise is never used twice
    found = Study.from_tables(merged(tables, given), num_records=num_records)
    if found.epsilon is None or found.delta is None:
        raise InvalidArgumentError(f"{output / 'study.toml'} must have budget.epsilon and delta.")
    return found


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _show(found: TableFit, output: Path | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    console.print(found.statement_text, markup=False)
    console.print(f"\nwrote {output}: posterior, statement and schema, and no record", markup=False)
    console.print(
        f"next: tacit evaluate {output} test.csv --public, tacit report {output}",
        style="dim",
        markup=False,
    )


def _show_interrupted(stopped: Interrupted, output: Path | None, *, as_json: bool) -> None:
    remedy = f"tacit fit --resume --output {output}" if stopped.step else None
    if as_json:
        document = {
            "interrupted": True,
            "step": stopped.step,
            "num_steps": stopped.num_steps,
            "epsilon": stopped.epsilon,
            "resume": remedy,
        }
        typer.echo(json.dumps(document))
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    spent = stopped.epsilon if isinstance(stopped.epsilon, str) else round_up(stopped.epsilon)
    console.print(
        f"{stopped}; epsilon {spent} is stated for them, as for all that were declared",
        style="bold",
    )
    if remedy is None:
        console.print("no step was finished", markup=False)
    else:
        console.print(f"kept in {output}; go on with: {remedy}", markup=False)
