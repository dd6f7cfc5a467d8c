"""``tacit rehearse``: candidates run on simulated records, before anything is paid for."""

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from tacit import _check
from tacit._artefact import write_json
from tacit.cli import _options
from tacit.cli._options import DeltaOption, JsonOption, hidden_of
from tacit.cli.schema import schema_of
from tacit.data import Schema
from tacit.errors import InvalidArgumentError
from tacit.privacy.budget import Budget
from tacit.rehearsal import Choice, Rehearsal
from tacit.rehearsal.figure import comparison
from tacit.rehearsal.scoring import MEASURES
from tacit.studies import Recipe, prepare
from tacit.studies.rehearsed import FILE, TableRehearsal

__all__ = ["rehearse_command"]

_MOST_COLUMNS = 3
_SHORT = {
    "accuracy": "accuracy",
    "rmse": "error",
    "nll": "NLL",
    "ece": "ECE",
    "coverage": "coverage",
    "clipped": "clipped",
    "seconds": "seconds",
}
"""Headings, where there are many candidates."""

_SEVERAL = "Several with commas are compared."
_TIMES = "As a number, or times the default: 2x."


def rehearse_command(
    *,
    records: Annotated[int, typer.Option(help="Number of records (people).")],
    schema: _options.PlannedSchemaOption = None,
    features: _options.FeaturesOption = None,
    classes: _options.ClassesOption = None,
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 1.0,
    delta: DeltaOption = 1e-5,
    method: Annotated[str, typer.Option(help=f"How to fit. {_SEVERAL}")] = "sgld",
    hidden: _options.HiddenOption = None,
    steps: Annotated[str | None, typer.Option(help=f"Number of updates. {_SEVERAL}")] = None,
    batch: Annotated[
        str | None, typer.Option(help=f"Expected records per update. {_SEVERAL}")
    ] = None,
    clip_norm: Annotated[
        str | None, typer.Option(help=f"The largest gradient norm. {_TIMES} {_SEVERAL}")
    ] = None,
    learning_rate: Annotated[
        str | None, typer.Option(help=f"On the mean loss. {_TIMES} {_SEVERAL}")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Number of simulated tables.")] = 20,
    from_prior: Annotated[
        bool, typer.Option("--from-prior", help="Draw truths from the prior, however wide.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A folder for rehearsal.json and rehearsal.png."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """What a run would give: the same fit on simulated tables. No data is touched.

    Truths are drawn at random, and tables from truths, evenly over the schema. A rehearsal has no
    privacy cost, and neither has a choice that is made by it.

    [bold]tacit rehearse --schema schema.toml --records 500 --epsilon 1[/]

    [bold]tacit rehearse --features 20 --classes 2 --records 500 --method sgld,vi,laplace[/]

    [bold]tacit rehearse --schema schema.toml --records 500 --method laplace --steps 10,100
    --clip-norm 1x,2x,4x -o rehearsal[/]
    """
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    _check.positive_integer(records=records, repeats=repeats)
    lists = {
        "method": _listed("--method", method, str),
        "num_steps": _listed("--steps", steps, int),
        "batch_size": _listed("--batch", batch, int),
        "clip_norm": _listed("--clip-norm", clip_norm, _factor_or_number),
        "learning_rate": _listed("--learning-rate", learning_rate, _factor_or_number),
    }
    description, budget = schema_of(schema, features, classes), Budget(epsilon, delta)
    rehearsal = TableRehearsal(
        schema=description,
        recipes=_candidates(lists, hidden_of(hidden), description, records, budget),
        num_records=records,
        budget=budget,
        num_repeats=repeats,
        from_prior=from_prior,
    )
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
        task = bar.add_task("rehearse", total=repeats * len(rehearsal.recipes))
        found = rehearsal.run(
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    document = rehearsal.document(found)
    if output is not None:
        write_json(output / FILE, document)
        comparison(found.rehearsals).savefig(output / "rehearsal.png")
    if as_json:
        typer.echo(json.dumps(document))
    else:
        _show(found, document["settings"], output)


def _listed(option: str, text: str | None, read: Callable[[str], Any]) -> list[Any]:
    """Returns what stands between commas; one None where nothing was given."""
    if text is None:
        return [None]
    words = [word.strip() for word in text.split(",") if word.strip()]
    try:
        found = [read(word) for word in words]
    except ValueError:
        found = []
    if not found:
        kind = {str: "a method", int: "a whole number"}.get(
            read, "a number, or a factor such as 2x"
        )  # type: ignore[call-overload]
        raise InvalidArgumentError(
            f"{option} must name {kind}, or several with commas; got {text!r}."
        )
    return list(dict.fromkeys(found))


def _factor_or_number(word: str) -> str | float:
    """Returns a number, or the word where it is a factor of the default."""
    value = float(word.removesuffix("x"))
    return f"{value:g}x" if word.endswith("x") else value


def _candidates(
    lists: Mapping[str, list[Any]],
    hidden: tuple[int, ...] | None,
    schema: Schema,
    num_records: int,
    budget: Budget,
) -> dict[str, Recipe]:
    """Returns a recipe for each combination, named by what differs."""
    found = {}
    for values in itertools.product(*lists.values()):
        given = dict(zip(lists, values, strict=True))
        factors: dict[str, Any] = {
            name: float(value[:-1])
            for name, value in given.items()
            if name in ("clip_norm", "learning_rate") and isinstance(value, str)
        }
        plain = {name: value for name, value in given.items() if name not in factors}
        recipe = Recipe(hidden=hidden, **plain)
        if factors:
            _check.positive(**factors)
            usual = prepare(schema, recipe, num_records=num_records, budget=budget).recipe
            times = {name: by * getattr(usual, name) for name, by in factors.items()}
            recipe = replace(recipe, **times)
        parts = [
            _shown(name, value)
            for name, value in given.items()
            if len(lists[name]) > 1 or name == "method"
        ]
        found[", ".join(parts)] = recipe
    return found


def _shown(name: str, value: Any) -> str:
    if name == "method":
        return str(value)
    title = {"num_steps": "steps", "batch_size": "batch"}.get(name, name.replace("_", " "))
    return f"{title} {value}"


def _show(found: Choice, settings: Mapping[str, Any], output: Path | None) -> None:
    rehearsals = found.rehearsals
    console = Console(highlight=False, soft_wrap=True)
    some = next(iter(rehearsals.values()))
    console.print(
        f"{some.num_repeats} simulated tables of {some.plan.method.public_records:,} records,"
        f" epsilon {some.budget.epsilon:g}; no data was touched"
    )
    console.print((_by_row if len(rehearsals) > _MOST_COLUMNS else _by_column)(rehearsals))
    if len(rehearsals) > 1:
        console.print(f"the smallest negative log likelihood has [bold]{found.name}[/]")
        console.print(f"as options of tacit fit: {_as_options(settings)}", markup=False)
    if output is not None:
        console.print(f"wrote {output}/rehearsal.json and rehearsal.png", markup=False)
        console.print(
            f"next: tacit fit data.csv ... --rehearsal {output}", style="dim", markup=False
        )


def _by_column(rehearsals: Mapping[str, Rehearsal]) -> Table:
    table = Table("", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in rehearsals:
        table.add_column(name, justify="right")
    for measure, title in MEASURES.items():
        if any(measure in each.shown for each in rehearsals.values()):
            table.add_row(title, *(_cell(each, measure) for each in rehearsals.values()))
    return table


def _by_row(rehearsals: Mapping[str, Rehearsal]) -> Table:
    """Returns a table of many candidates; what it leaves out is in the file."""
    shown = [name for name in _SHORT if any(name in each.shown for each in rehearsals.values())]
    table = Table("", box=None, padding=(0, 2, 0, 0), header_style="dim")
    for measure in shown:
        table.add_column(_SHORT[measure], justify="right")
    for name, each in rehearsals.items():
        table.add_row(name, *(_cell(each, measure) for measure in shown))
    return table


def _as_options(settings: Mapping[str, Any]) -> str:
    """Returns settings as they are typed."""
    hidden = ",".join(map(str, settings["hidden"])) or "none"
    numbers = {
        "steps": settings["num_steps"],
        "batch": settings.get("batch_size"),
        "clip-norm": settings["clip_norm"],
        "learning-rate": settings["learning_rate"],
    }
    typed = [f"--{name} {value:.6g}" for name, value in numbers.items() if value is not None]
    return " ".join([f"--method {settings['method']} --hidden {hidden}", *typed])


def _cell(rehearsal: Rehearsal, measure: str) -> str:
    if measure not in rehearsal.shown:
        return "–"
    return f"{rehearsal.mean(measure):.3g} ± {rehearsal.error(measure):.1g}"
