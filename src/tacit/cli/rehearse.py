"""``tacit rehearse``: a plan run on simulated records, before anything is paid for."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tacit import _check
from tacit._artefact import write_json
from tacit.cli import _options
from tacit.cli._options import DeltaOption, JsonOption, hidden_of
from tacit.cli.schema import schema_of
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget
from tacit.rehearsal import Rehearsal, choose
from tacit.rehearsal.figure import comparison
from tacit.rehearsal.scoring import MEASURES
from tacit.studies import Recipe, prepare

__all__ = ["rehearse_command"]


def rehearse_command(
    *,
    records: Annotated[int, typer.Option(help="Number of records (people).")],
    schema: _options.PlannedSchemaOption = None,
    features: _options.FeaturesOption = None,
    classes: _options.ClassesOption = None,
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 1.0,
    delta: DeltaOption = 1e-5,
    method: Annotated[
        str, typer.Option(help="One method, or several with commas, which are compared.")
    ] = "sgld",
    hidden: _options.HiddenOption = None,
    steps: _options.StepsOption = None,
    batch: _options.BatchOption = None,
    repeats: Annotated[int, typer.Option(help="Number of simulated tables.")] = 20,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for rehearsal.json and rehearsal.png."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a run would give: the same fit on simulated tables. No data is touched.

    Truths are drawn from the prior, and tables from truths, evenly over the schema. A rehearsal
    costs nothing, and neither does a choice that is made by it.

    [bold]tacit rehearse --schema schema.toml --records 500 --epsilon 1[/]

    [bold]tacit rehearse --features 20 --classes 2 --records 500 --method sgld,vi,laplace[/]
    """
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    _check.positive_integer(records=records, repeats=repeats)
    description, budget = schema_of(schema, features, classes), Budget(epsilon, delta)
    names = [name.strip() for name in method.split(",") if name.strip()]
    if not names:
        raise InvalidArgumentError(f"--method must name a method; got {method!r}.")
    candidates = {}
    for name in names:
        recipe = Recipe(method=name, hidden=hidden_of(hidden), num_steps=steps, batch_size=batch)
        prepared = prepare(description, recipe, num_records=records, budget=budget)
        candidates[name] = prepared.plan
    # Methods do not decide the model: all were prepared with the same one.
    model = prepared.model
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
    with Progress(
        TextColumn("rehearse"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} runs"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("rehearse", total=repeats * len(candidates))
        found = choose(
            candidates,
            model,
            description,
            budget=budget,
            num_repeats=repeats,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    document = {
        "best": found.name,
        "rehearsals": {name: each.to_json() for name, each in found.rehearsals.items()},
    }
    if output is not None:
        write_json(output / "rehearsal.json", document)
        comparison(found.rehearsals).savefig(output / "rehearsal.png")
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _show(found.rehearsals, found.name, output)


def _show(rehearsals: Mapping[str, Rehearsal], best: str, output: Path | None) -> None:
    console = Console(highlight=False, soft_wrap=True)
    some = next(iter(rehearsals.values()))
    console.print(
        f"{some.num_repeats} simulated tables of {some.plan.method.public_records:,} records,"
        f" epsilon {some.budget.epsilon:g}; no data was touched"
    )
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("")
    for name in rehearsals:
        table.add_column(name, justify="right")
    for measure, title in MEASURES.items():
        if any(measure in each.shown for each in rehearsals.values()):
            cells = [_cell(each, measure) for each in rehearsals.values()]
            table.add_row(title, *cells)
    console.print(table)
    if len(rehearsals) > 1:
        console.print(f"the smallest negative log likelihood has [bold]{best}[/]")
    if output is not None:
        console.print(f"wrote {output}/rehearsal.json and rehearsal.png", markup=False)


def _cell(rehearsal: Rehearsal, measure: str) -> str:
    if measure not in rehearsal.shown:
        return "–"
    return f"{rehearsal.mean(measure):.3g} ± {rehearsal.error(measure):.1g}"
