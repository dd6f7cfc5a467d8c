"""Options that several verbs share, or that one verb has many of."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

from tacit.errors import InvalidArgumentError
from tacit.inference.method import describe_table_methods

__all__ = ["hidden_of", "with_options"]

_DATA, _BUDGET, _HOW, _RUN = "The records", "The budget", "How to fit", "The run"

# Any verb

JsonOption: TypeAlias = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
DeltaOption: TypeAlias = Annotated[
    float, typer.Option(help="Chance that the promise fails; well below 1/records.")
]
SeedOption: TypeAlias = Annotated[
    int | None,
    typer.Option(help="For trials: repeatable and INSECURE. By default the noise is secret."),
]
RunArgument: TypeAlias = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]
LabelledArgument: TypeAlias = Annotated[
    Path, typer.Argument(help="A CSV file with labels.", show_default=False)
]

# How to fit

PlannedSchemaOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="The public schema; or give --features and --classes.")
]
FeaturesOption: TypeAlias = Annotated[int | None, typer.Option(help="Number of numeric columns.")]
ClassesOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Number of classes; 0 for a numeric target. Default: 2.")
]
MethodOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help=f"By default sgld. {describe_table_methods()}.", rich_help_panel=_HOW),
]
HiddenOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="Widths of hidden layers, such as 32 or 64,32; none for a linear model.",
        rich_help_panel=_HOW,
    ),
]
StepsOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Number of updates.", rich_help_panel=_HOW)
]
BatchOption: TypeAlias = Annotated[
    int | None, typer.Option(help="Expected records per update.", rich_help_panel=_HOW)
]

ClipNormOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="The largest gradient norm of one record.", rich_help_panel=_HOW),
]
LearningRateOption: TypeAlias = Annotated[
    float | None, typer.Option(help="On the gradient of the mean loss.", rich_help_panel=_HOW)
]
RehearsalOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        help="A folder of tacit rehearse: fits with the settings that it chose.",
        rich_help_panel=_HOW,
    ),
]

# The records

SchemaOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="The public ranges and categories.", rich_help_panel=_DATA)
]
TargetOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="The column to predict, as in the schema.", rich_help_panel=_DATA),
]
GroupsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="The column that says whose each row is: protects people, not rows.",
        rich_help_panel=_DATA,
    ),
]
MaxRowsOption: TypeAlias = Annotated[
    int | None,
    typer.Option(help="With --groups: rows of one person that count.", rich_help_panel=_DATA),
]
WeightOption: TypeAlias = Annotated[
    str | None, typer.Option(help="The column of weights.", rich_help_panel=_DATA)
]
MaxWeightOption: TypeAlias = Annotated[
    float | None,
    typer.Option(help="The largest weight, as public knowledge: 1.", rich_help_panel=_DATA),
]

# The budget of a fit

FitEpsilonOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="What may be spent. With --ledger and without it: all that is left.",
        rich_help_panel=_BUDGET,
    ),
]
FitDeltaOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="Chance that the promise fails: 1e-5, or that of the ledger.", rich_help_panel=_BUDGET
    ),
]
FitLedgerOption: TypeAlias = Annotated[
    Path | None, typer.Option(help="The owner's ledger, charged first.", rich_help_panel=_BUDGET)
]
FitDataSetOption: TypeAlias = Annotated[
    str | None, typer.Option(help="What the ledger calls these records.", rich_help_panel=_BUDGET)
]
NonPrivateOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--non-private", help="Promise nothing: for public data.", rich_help_panel=_BUDGET
    ),
]

# The run

RunOutputOption: TypeAlias = Annotated[
    Path | None, typer.Option("--output", "-o", help="A folder for the run.", rich_help_panel=_RUN)
]
StudyOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(help="A TOML file with all of this; options override.", rich_help_panel=_RUN),
]
ResumeOption: TypeAlias = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --output.", rich_help_panel=_RUN)
]
HalfPrecisionOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--half-precision",
        help="Write the draws of a large network to --output in half precision while the run goes"
        " on, instead of holding them in memory.",
        rich_help_panel=_RUN,
    ),
]
OverwriteOption: TypeAlias = Annotated[
    bool, typer.Option("--overwrite", help="Replace what is in --output.", rich_help_panel=_RUN)
]


def hidden_of(text: str | None) -> tuple[int, ...] | None:
    """Returns widths from what was typed; None where nothing was.

    Example:
      >>> hidden_of("64,32"), hidden_of("none")
      ((64, 32), ())
    """
    if text is None:
        return None
    if text.strip().lower() == "none":
        return ()
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InvalidArgumentError(
            f"--hidden must be widths such as 32 or 64,32, or none; got {text!r}."
        ) from None


def with_options(name: str, build: Callable[..., object]) -> Callable[[Any], Any]:
    """Gives a verb the options of another function, and what that makes of them as one argument.

    Typer reads options off a signature, so options that two verbs share would be written twice.

    Args:
      name: of the verb's argument.
      build: its parameters are options.
    """

    def decorate(verb: Any) -> Any:
        own, more = inspect.signature(verb), inspect.signature(build)

        @functools.wraps(verb)
        def joined(*args: Any, **options: Any) -> None:
            given = {key: options.pop(key) for key in more.parameters}
            verb(*args, **options, **{name: build(**given)})

        kept = [parameter for key, parameter in own.parameters.items() if key != name]
        parameters = {parameter.name: parameter for parameter in (*kept, *more.parameters.values())}
        last = parameters.pop("as_json", None)
        ordered = [*parameters.values(), *([] if last is None else [last])]
        joined.__signature__ = own.replace(parameters=ordered)  # type: ignore[attr-defined]
        joined.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
        return joined

    return decorate
