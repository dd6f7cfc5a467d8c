"""Ctrl-C: a run stops after the steps that are paid for, and keeps them."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

from tacit.cli._notes import note

__all__ = ["GentleInterrupt"]


class GentleInterrupt:
    """While it is open, the first Ctrl-C only asks a run to stop; the second stops it at once.

    Example:
      >>> with GentleInterrupt() as interrupt:
      ...     interrupt.raise_if_asked()
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        # Elsewhere than in the main thread nobody can press Ctrl-C.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def raise_if_asked(self) -> None:
        """Ends the run here, where all that was paid for is kept."""
        if self._is_asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        note("stopping after the steps that are paid for; Ctrl-C again stops now, and loses them")
