"""Options that several verbs about tables share."""

from collections.abc import Sequence
from typing import Annotated, TypeAlias

import typer

from tacit.errors import InvalidArgumentError

__all__ = ["HiddenOption", "MethodOption", "SeedOption", "hidden_of", "require_widths"]

_WIDEST = 65_536

MethodOption: TypeAlias = Annotated[str, typer.Option(help="sgld, sghmc, sgd, swag, vi or ivon.")]
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
