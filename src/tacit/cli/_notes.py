"""What a verb says beside its result: warnings and remarks, on standard error."""

import contextlib
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

from rich.console import Console

from tacit.errors import PrivacyWarning

__all__ = ["note", "remark", "warnings_as_notes"]


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
