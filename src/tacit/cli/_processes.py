"""One fit by several processes on the command line: how each joins, and how all of them end."""

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import typer

from tacit.errors import InvalidArgumentError

__all__ = ["CoordinatorOption", "NumProcessesOption", "ProcessIdOption", "ending_together", "join"]

_PANEL = "Processes"
_LOG = "TACIT_JAX_LOG"

NumProcessesOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="How many processes share the work; tacit launch starts them on one machine.",
        envvar="TACIT_NUM_PROCESSES",
        rich_help_panel=_PANEL,
    ),
]
ProcessIdOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Which of them this is, from 0. Process 0 alone pays, writes and prints.",
        envvar="TACIT_PROCESS_ID",
        rich_help_panel=_PANEL,
    ),
]
CoordinatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        help="host:port, where process 0 is reached. Keep that network private.",
        envvar="TACIT_COORDINATOR",
        rich_help_panel=_PANEL,
    ),
]


def join(total: int | None, process_id: int | None, coordinator: str | None) -> None:
    """Connects this process with the others, where options or variables say that there are some.

    From then on only Python writes to the terminal, and on other processes than the coordinator
    only to standard error.
    """
    given = {"--num-processes": total, "--process-id": process_id, "--coordinator": coordinator}
    missing = [name for name, value in given.items() if value is None]
    if len(missing) == len(given):
        return
    if total is None or process_id is None or coordinator is None:
        raise InvalidArgumentError(
            "--num-processes, --process-id and --coordinator go together (or the variables"
            f" TACIT_NUM_PROCESSES and so on); missing: {', '.join(missing)}."
        )
    from tacit.processes import require_place, start_processes  # noqa: PLC0415 (loads JAX)

    require_place(num_processes=total, process_id=process_id, coordinator=coordinator)
    if total == 1:
        return
    _keep_the_terminal_for_python()
    _say_why_jax_aborts(process_id, coordinator)
    if process_id > 0:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    start_processes(num_processes=total, process_id=process_id, coordinator=coordinator)


@contextlib.contextmanager
def ending_together() -> Iterator[None]:
    """Ends one of several processes at once where it fails, so that none waits for another."""
    try:
        yield
    except SystemExit as end:
        if end.code not in (None, 0):
            _end_if_shared(end.code if isinstance(end.code, int) else 1)
        raise
    except BaseException as error:
        _end_if_shared(1, error)
        raise


def _end_if_shared(code: int, error: BaseException | None = None) -> None:
    processes = sys.modules.get("tacit.processes")  # where it was not loaded there is one process
    if processes is None or processes.num_processes() == 1:
        return
    if error is not None:
        sys.excepthook(type(error), error, error.__traceback__)
    processes.end_now(code)


def _keep_the_terminal_for_python() -> None:
    """Parts of JAX print to both streams, which spoils JSON, and a stack trace when they abort."""
    wanted = os.environ.get(_LOG, "") not in ("", "0")
    sink = os.dup(2) if wanted else os.open(os.devnull, os.O_WRONLY)
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream = getattr(sys, name)
        stream.flush()
        own = os.fdopen(
            os.dup(number), "w", buffering=1, encoding=stream.encoding, errors=stream.errors
        )
        setattr(sys, name, own)
        os.dup2(sink, number)


_handlers: list[Any] = []  # what C calls must not be collected


def _say_why_jax_aborts(process_id: int, coordinator: str) -> None:
    """Makes one line and exit code 2 of the abort by which JAX ends a process that is cut off.

    It comes from a thread of JAX, where no Python code runs that could catch it, and ``signal``
    would only run a handler in the main thread, too late; so C is given one.
    """
    if os.name != "posix":
        return
    message = (
        f"error: JAX ended process {process_id}: it lost the other processes of the run, or never"
        f" reached them at {coordinator}. What was charged stays charged; go on with --resume."
        f" {_LOG}=1 shows what JAX says.\n"
    ).encode()
    terminal = sys.stderr.fileno()

    def say_and_end(number: int) -> None:
        del number
        os.write(terminal, message)
        os._exit(2)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_int)
    handler = kind(say_and_end)
    _handlers.append(handler)
    library = ctypes.CDLL(None)
    library.signal.argtypes, library.signal.restype = [ctypes.c_int, kind], ctypes.c_void_p
    library.signal(signal.SIGABRT, handler)
