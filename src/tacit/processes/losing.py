"""Losing a process: what JAX says of it in many ways becomes one error, and the run ends.

What happens, and how long it takes:
  * A process that dies (killed, out of memory, crashed) closes its connections. The next collective
    of the others fails within milliseconds, as `LostWorkerError`.
  * One that falls silent (its host lost power, the network is cut) is noticed after the heartbeat
    timeout. JAX then aborts the others from a thread of its own (SIGABRT), and so it does at once
    where the coordinator died and no collective is under way. Python code cannot catch that; the
    command line makes one line of it. Nothing is lost: what was charged is on the disk already.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from typing import NoReturn

from tacit.errors import LostWorkerError, TacitError
from tacit.processes.membership import is_coordinator, num_processes

__all__ = ["end_if_broken", "end_now", "translating_lost_workers"]

# JAX has no type of its own for this, but raises ValueError or JaxRuntimeError with a status code
# and the words of whichever layer noticed first.
_STATUS = re.compile(r"\s*(UNKNOWN|UNAVAILABLE|INTERNAL|DEADLINE_EXCEEDED|ABORTED|CANCELLED)\b")
_SIGNS = re.compile(
    r"gloo|nccl|closed by peer|reset by peer|broken pipe|socket closed|heartbeat timeout"
    r"|coordination service|barrier|unhealthy",
    re.IGNORECASE,
)

# The coordinator ends a little later than the other survivors: when it goes, JAX aborts those that
# have not noticed the loss themselves.
_HEAD_START = 1.0

_is_broken = threading.Event()


@contextlib.contextmanager
def translating_lost_workers(*, after_step: int | None = None) -> Iterator[None]:
    """Turns what JAX raises where a process of the run is gone into `LostWorkerError`.

    JAX computes ahead: wait for the results inside (``jax.block_until_ready``), or the error comes
    later and elsewhere. After this error the process can only end. It then does so without waiting
    for the lost one, with exit code 1.

    Args:
      after_step: how many steps were finished before.

    Example:
      >>> with translating_lost_workers(after_step=20):
      ...     raise ValueError("this is another error, and stays as it is")
      Traceback (most recent call last):
      ValueError: this is another error, and stays as it is
    """
    try:
        yield
    except TacitError:
        raise
    except (ValueError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        if num_processes() == 1 or not _tells_of_loss(str(error)):
            raise
        _is_broken.set()
        where = "" if after_step is None else f" after step {after_step}"
        raise LostWorkerError(
            f"a process of this run was lost{where}. What was charged stays charged. Go on from the"
            " last checkpoint, with as many processes as you like."
        ) from error


def end_if_broken() -> None:
    """Ends a process that has lost another, or failed alone; for the exit of the interpreter."""
    # Python leaves there what nobody caught.
    if _is_broken.is_set() or hasattr(sys, "last_value"):
        end_now(1)


def end_now(code: int) -> NoReturn:
    """Ends a process of several without waiting for the others.

    At the exit of the interpreter JAX waits until all processes are there, and aborts if one never
    comes: too long for a process that failed alone, while the others wait for it.
    """
    if is_coordinator():
        time.sleep(_HEAD_START)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _tells_of_loss(text: str) -> bool:
    return bool(_STATUS.match(text)) and bool(_SIGNS.search(text))
