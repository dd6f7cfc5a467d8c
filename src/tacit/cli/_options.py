"""What verbs share: options, and remarks on standard error."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, TypeAlias

import typer
from rich.console import Console

from tacit.errors import InvalidArgumentError, PrivacyWarning

__all__ = [
    "HiddenOption",
    "SeedOption",
    "hidden_of",
    "note",
    "remark",
    "require_widths",
    "warnings_as_notes",
]


def note(*lines: str, style: str = "yellow") -> None:
    """Prints each line to standard error, where it does not get into a result.

    Of several processes only the coordinator prints: all have the same to say.
    """
    from tacit.processes import is_coordinator  # noqa: PLC0415 (loads JAX)

    if not is_coordinator():
        return
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    for line in lines:
        console.print(f"note: {line}", style=style, markup=False)


def remark(found: Iterable[str]) -> None:
    """Prints what depends on private records and is for their owner alone."""
    lines = list(found)
    if lines:
        note(*lines, "(The lines above depend on the records: not for publication.)", style="dim")


@contextlib.contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Shows each privacy warning as a line for people, without file names and code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        note(str(message))

    with warnings.catch_warnings():
        warnings.simplefilter("always", PrivacyWarning)
        warnings.showwarning = show
        yield


_WIDEST = 65_536

HiddenOption: TypeAlias = Annotated[
    str | None,
    typer.Option(help="Widths of hidden layers, such as 32 or 64,32; none for a linear model."),
]
SeedOption: TypeAlias = Annotated[
    int | None,
    typer.Option(help="For trials: repeatable and INSECURE. By default the noise is secret."),
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
        widths = tuple(int(word) for word in text.split(","))
    except ValueError:
        raise InvalidArgumentError(
            f"--hidden must be widths such as 32 or 64,32, or none; got {text!r}."
        ) from None
    require_widths(widths)
    return widths


def require_widths(widths: Sequence[object]) -> None:
    """Raises for layers that no table can fill."""
    if any(isinstance(width, int) and width > _WIDEST for width in widths):
        raise InvalidArgumentError(f"--hidden must be widths of at most {_WIDEST}.")
