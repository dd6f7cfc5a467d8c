"""Progress for people: steps, epsilon spent and time; never a training loss."""

import math
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tacit.privacy.accounting import round_up

__all__ = ["OnProgress", "ProgressBar"]


class OnProgress(Protocol):
    """Is told how far a run is; all of it is public."""

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Is called after each chunk with steps made, steps planned and epsilon spent so far."""
        ...


class ProgressBar:
    """A bar in the terminal or the notebook.

    Example:
      >>> with ProgressBar("DP-SGLD") as bar:  # doctest: +SKIP
      ...     fit(plan, model, records, budget=budget, progress=bar)
    """

    def __init__(self, description: str = "fit", *, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(description, total=None, epsilon="0")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Moves the bar."""
        text = "infinity" if math.isinf(epsilon) else round_up(epsilon)
        self._bar.update(self._task, completed=step, total=num_steps, epsilon=text)
