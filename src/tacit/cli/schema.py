"""``tacit schema``, ``plan`` and ``encode``: what is fixed about a table before it is fitted."""

import json
import math
from pathlib import Path
from typing import Annotated, Any

import jax
import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tacit import _check, _tree
from tacit._artefact import write_text
from tacit.cli import _options, note
from tacit.cli._options import DeltaOption, JsonOption, hidden_of
from tacit.data import NumericColumn, NumericTarget, Schema, Target, encode_to_folder
from tacit.data.csv import read_csv
from tacit.data.draft import WARNING, draft_schema
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key
from tacit.studies import Prepared, Recipe, prepare
from tacit.studies.study import read_schema

__all__ = ["encode_command", "plan_command", "schema_command", "schema_of"]


def schema_command(
    table: Annotated[Path, typer.Argument(help="A CSV file.", show_default=False)],
    *,
    target: Annotated[
        str | None, typer.Option(help="The column to predict; the last one by default.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Where the draft goes; by default to the screen."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a schema that is there.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Draft a schema: the public ranges and categories of a table, for you to correct.

    A draft looks at the records, so it is no part of any guarantee: check it against a code book
    before you fit.

    [bold]tacit schema data.csv --target income --output schema.toml[/]
    """
    if output is not None and output.exists() and not overwrite:
        raise InvalidArgumentError(
            f"{str(output)!r} exists, and may hold your corrections. Choose another --output, or"
            " say --overwrite."
        )
    draft = draft_schema(read_csv(table), target=target)
    if output is not None:
        write_text(output, draft.text)
    if as_json:
        document = {
            "schema": draft.text,
            "target": draft.target,
            "notes": draft.notes,
            "is_draft": True,
            "output": None if output is None else str(output),
        }
        typer.echo(json.dumps(document))
        return
    if output is None:
        typer.echo(draft.text, nl=False)
    note(*draft.notes)
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    console.print(WARNING, style="bold", markup=False)
    if output is not None:
        console.print(f"wrote {output}", markup=False)


def plan_command(
    *,
    records: Annotated[int, typer.Option(help="Number of records (people).")],
    schema: _options.PlannedSchemaOption = None,
    features: _options.FeaturesOption = None,
    classes: _options.ClassesOption = None,
    epsilon: Annotated[float, typer.Option(help="The budget.")] = 1.0,
    delta: DeltaOption = 1e-5,
    method: _options.MethodOption = None,
    hidden: _options.HiddenOption = None,
    steps: _options.StepsOption = None,
    batch: _options.BatchOption = None,
    as_json: JsonOption = False,
) -> None:
    """What a budget buys: noise, steps, batches and signal-to-noise. No data is touched.

    [bold]tacit plan --records 30000 --features 20 --classes 2 --epsilon 1 --delta 1e-5[/]

    [bold]tacit plan --schema schema.toml --records 30000 --epsilon 0.5 --method vi[/]
    """
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    _check.positive_integer(records=records)
    recipe = Recipe(
        method=method or "sgld",
        hidden=hidden_of(hidden),
        num_steps=steps,
        batch_size=batch,
    )
    prepared = prepare(
        schema_of(schema, features, classes),
        recipe,
        num_records=records,
        budget=Budget(epsilon, delta),
    )
    facts = _facts(prepared)
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _show(facts)


def schema_of(path: Path | None, features: int | None, classes: int | None) -> Schema:
    """Returns the schema of a file, or one of so many columns between -1 and 1."""
    if path is not None:
        if features is not None or classes is not None:
            raise InvalidArgumentError(
                "--schema says what the columns and classes are; leave out --features, --classes."
            )
        return read_schema(path)
    if features is None:
        raise InvalidArgumentError("give --schema, or --features and --classes.")
    _check.positive_integer(features=features)
    classes = 2 if classes is None else classes
    _check.non_negative_integer(classes=classes)
    target: Target | NumericTarget
    if classes == 0:
        target = NumericTarget(name="target", low=-1, high=1)
    else:
        target = Target(name="target", classes=tuple(range(classes)))
    columns = tuple(NumericColumn(name=f"x{i}", low=-1, high=1) for i in range(features))
    return Schema(columns=columns, target=target)


def _facts(prepared: Prepared) -> dict[str, Any]:
    """Returns what a plan means; a step's noise is compared with the largest possible signal."""
    plan, recipe, budget = prepared.plan, prepared.recipe, prepared.budget
    method: Any = plan.method
    release: GaussianSum = getattr(method, "base", method).release
    shape = jax.eval_shape(prepared.model.init, seeded_key(0))
    num_params, num_records = _tree.size(shape), release.sampling.num_records
    batch = release.sampling.inclusion_rate * num_records
    noise = release.noise_multiplier / batch
    # All gradients at the clip norm and of one direction: what no step can exceed.
    step_ratio = 1 / (noise * math.sqrt(num_params))
    assert recipe.num_steps is not None
    return {
        "method": recipe.method,
        "hidden": list(recipe.hidden or ()),
        "num_records": num_records,
        "num_params": num_params,
        "num_steps": recipe.num_steps,
        "batch_size": batch,
        "rate": release.sampling.rate,
        "clip_norm": release.clip_norm,
        "noise_multiplier": release.noise_multiplier,
        "noise_on_mean_gradient_over_clip": noise,
        "signal_to_noise_of_a_step": step_ratio,
        "signal_to_noise_of_the_run": step_ratio * math.sqrt(recipe.num_steps),
        "epsilon": budget.spent(plan.cost),
        "delta": budget.delta,
        "accountant": budget.accountant.name,
    }


def _show(facts: dict[str, Any]) -> None:
    hidden = ", ".join(map(str, facts["hidden"])) or "none (a linear model)"
    rows = {
        "method": facts["method"],
        "hidden layers": f"{hidden}; {facts['num_params']:,} parameters",
        "steps": f"{facts['num_steps']:,}",
        "batch": f"{facts['batch_size']:,.0f} of {facts['num_records']:,} records"
        f" (rate {facts['rate']:.3g})",
        "clip norm": f"{facts['clip_norm']:.3g}",
        "noise multiplier": f"{facts['noise_multiplier']:.3f}",
        "noise on the mean gradient": f"{facts['noise_on_mean_gradient_over_clip']:.2g} clip norms,"
        " in each parameter",
        "signal-to-noise, one step": f"at most {_ratio(facts['signal_to_noise_of_a_step'])}",
        "signal-to-noise, all steps": f"at most {_ratio(facts['signal_to_noise_of_the_run'])}",
    }
    console = Console(highlight=False, soft_wrap=True)
    console.print(
        f"epsilon [bold]{round_up(facts['epsilon'])}[/] at delta {facts['delta']:g},"
        f" by {facts['accountant']}; no data was touched"
    )
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in rows.items():
        table.add_row(name, value)
    console.print(table)
    console.print(_verdict(facts["signal_to_noise_of_the_run"]), style="dim")


def _verdict(ratio: float) -> str:
    bound = (
        "The ratios are upper bounds, as if all gradients had the clip norm and one direction."
        " Real ones are smaller and disagree."
    )
    if ratio >= 2:
        return bound
    return (
        f"{bound} Here even the bound is small: noise drowns the signal. More records, a larger"
        " epsilon or fewer parameters (--hidden none) would help."
    )


def _ratio(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def encode_command(
    tables: Annotated[
        list[Path],
        typer.Argument(help="CSV or Parquet files with the private rows.", show_default=False),
    ],
    *,
    schema: Annotated[
        Path, typer.Option(help="The public ranges and categories.", show_default=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="A folder for the records.", show_default=False)
    ],
    groups: _options.GroupsOption = None,
    max_rows: _options.MaxRowsOption = None,
    weight: _options.WeightOption = None,
    max_weight: _options.MaxWeightOption = None,
    overwrite: _options.OverwriteOption = False,
    as_json: JsonOption = False,
) -> None:
    """Encode tables that are larger than memory, once, for any number of fits.

    The folder takes the place of the table in tacit fit, which then reads only rows that it draws.
    It holds the private records themselves: do not publish it. With --groups the tables must be
    sorted by that column.

    [bold]tacit encode data.parquet --schema schema.toml --output records[/]

    [bold]tacit encode 2023.csv 2024.csv --schema schema.toml --output records[/]
    """
    description = read_schema(schema)
    with Progress(
        SpinnerColumn(),
        TextColumn("encode {task.completed:,.0f} rows"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("encode", total=None)
        found = encode_to_folder(
            tables,
            description,
            output,
            weight=weight,
            max_weight=1.0 if max_weight is None else max_weight,
            groups=groups,
            max_rows=max_rows,
            overwrite=overwrite,
            on_rows=lambda num_rows: bar.update(task, completed=num_rows),
        )
    note(*(f"{line} (not for publication: it depends on the records)" for line in found.remarks))
    num_records = found.records.num_records
    if as_json:
        document = {
            "output": str(output),
            "num_rows": found.num_rows,
            "num_records": num_records,
            "is_private": True,
        }
        typer.echo(json.dumps(document))
        return
    typer.echo(f"wrote {output}: {num_records} records of {found.num_rows} rows")
    note(
        "the folder holds the private records themselves. It may not be published; keep it as you"
        " keep the table."
    )
    typer.echo(f"next: tacit fit {output} --schema {schema} --epsilon 1 --output run")
