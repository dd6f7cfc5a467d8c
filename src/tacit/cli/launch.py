"""``tacit launch``: several processes of one fit on this machine."""

import contextlib
import ctypes
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO, Annotated, Any, TypeAlias

import typer

from tacit import _check
from tacit.cli import note
from tacit.errors import InvalidArgumentError

__all__ = [
    "CoordinatorOption",
    "Launched",
    "NumProcessesOption",
    "ProcessIdOption",
    "cores_for",
    "free_address",
    "join",
    "launch_command",
]

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


# When one has failed, the others notice and end by themselves; or they are asked, and then made to.
_GRACE = 15.0
_LAST_GRACE = 5.0


def free_address() -> str:
    """Returns an address that only this machine reaches, with a port that nobody uses."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{found.getsockname()[1]}"


def cores_for(num_processes: int, cores_per_process: int | None) -> list[set[int]] | None:
    """Returns the cores of each process; None leaves that to the operating system."""
    if cores_per_process is None:
        return None
    _check.positive_integer(cores_per_process=cores_per_process)
    if not hasattr(os, "sched_setaffinity"):
        raise InvalidArgumentError("--cores-per-process works on Linux only. Leave it out.")
    there = sorted(os.sched_getaffinity(0))
    needed = num_processes * cores_per_process
    if needed > len(there):
        raise InvalidArgumentError(
            f"{num_processes} processes with --cores-per-process {cores_per_process} need {needed}"
            f" cores, and there are {len(there)}. Start fewer, or leave it out."
        )
    starts = range(0, needed, cores_per_process)
    return [set(there[start : start + cores_per_process]) for start in starts]


@dataclass
class Launched:
    """The processes of one fit on this machine; the first is the coordinator."""

    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    _readers: list[threading.Thread] = field(default_factory=list)
    _is_interrupted: bool = False

    def start(
        self,
        command: Sequence[str],
        *,
        num_processes: int,
        coordinator: str,
        cores: Sequence[set[int]] | None,
    ) -> None:
        """Starts them all.

        Args:
          command: what each executes; it gets the options of its process behind.
          num_processes: how many.
          coordinator: where they meet.
          cores: those of each.
        """
        for number in range(num_processes):
            own = [
                *("--num-processes", str(num_processes)),
                *("--process-id", str(number)),
                *("--coordinator", coordinator),
            ]
            process = subprocess.Popen(
                [*command, *own],
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE if number else None,
                text=True,
                process_group=0,  # Ctrl-C reaches the launcher alone, which passes it on
            )
            self.processes.append(process)
            if cores is not None:
                # It has one thread yet; those that come later stay where it is.
                os.sched_setaffinity(process.pid, cores[number])
            if process.stderr is not None:
                self._readers.append(_in_background(_print_with_number, number, process.stderr))

    def wait(self) -> int:
        """Waits for all, ends the others when one has failed, and returns the exit code of all."""
        ended: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number, process in enumerate(self.processes):
            _in_background(_tell_when_ended, number, process, ended)
        with self._signals_passed_on():
            order = self._ended_by_themselves(ended)
        self.end()
        for reader in self._readers:
            reader.join(timeout=1)
        codes = {number: self.processes[number].returncode for number in order}
        for number, code in codes.items():
            if code < 0:
                name = signal.Signals(-code).name
                note(f"process {number} was ended by {name}, and with it the run", style="red")
                return 128 - code
        # The coordinator knows why; the others only that it stopped.
        return codes.get(0, 0) or next(filter(None, codes.values()), 0)

    def end(self) -> None:
        """Ends those that still run."""
        running = [process for process in self.processes if process.poll() is None]
        for process in running:
            process.terminate()
        deadline = time.monotonic() + _LAST_GRACE
        for process in running:
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _ended_by_themselves(self, ended: "queue.SimpleQueue[int]") -> list[int]:
        """Returns who ended, in order: all of them, or those who did soon after one had failed."""
        order: list[int] = []
        deadline: float | None = None
        while len(order) < len(self.processes):
            try:
                rest = None if deadline is None else max(deadline - time.monotonic(), 0)
                order.append(ended.get(timeout=rest))
            except queue.Empty:
                break
            if deadline is None and self.processes[order[-1]].returncode != 0:
                deadline = time.monotonic() + _GRACE
        return order

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        actions = {
            signal.SIGINT: self._interrupt,
            signal.SIGTERM: self._terminate,
            signal.SIGHUP: self._terminate,  # the terminal was closed
        }
        before = {number: signal.signal(number, act) for number, act in actions.items()}
        try:
            yield
        except BaseException:
            self.end()
            raise
        finally:
            for number, act in before.items():
                signal.signal(number, act)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """Asks the coordinator, with which all stop; the second time all are told."""
        del frame
        asked = self.processes if self._is_interrupted else self.processes[:1]
        self._is_interrupted = True
        for process in asked:
            if process.poll() is None:
                process.send_signal(number)

    def _terminate(self, number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)


def _tell_when_ended(
    number: int, process: "subprocess.Popen[str]", ended: "queue.SimpleQueue[int]"
) -> None:
    process.wait()
    ended.put(number)


def _print_with_number(number: int, stream: IO[str]) -> None:
    with stream:
        for line in stream:
            sys.stderr.write(f"[{number}] {line}")
            sys.stderr.flush()


def _in_background(function: Callable[..., None], *arguments: object) -> threading.Thread:
    thread = threading.Thread(target=function, args=arguments, daemon=True)
    thread.start()
    return thread


def launch_command(
    command: Annotated[
        list[str], typer.Argument(help="After --: fit and its options, as for one process.")
    ],
    *,
    num_processes: Annotated[
        int, typer.Option("--num-processes", "-n", help="How many processes share the work.")
    ],
    cores_per_process: Annotated[
        int | None,
        typer.Option(help="Bind each process to so many cores of its own, and XLA's threads."),
    ] = None,
) -> None:
    """Run a fit in several processes on this machine, each with its rows of the table.

    The first of them is the coordinator: it alone pays the ledger, writes the run and prints. When
    one is lost, all end; what was paid for is kept, and any number of processes can go on with it.
    Ctrl-C stops all of them after the steps that are paid for.

    [bold]tacit launch -n 2 -- fit data.csv --schema schema.toml --epsilon 1 --output run[/]

    [bold]tacit launch -n 4 --cores-per-process 2 -- fit --resume --output run[/]
    """
    _check.positive_integer(num_processes=num_processes)
    if command[0] != "fit":
        raise InvalidArgumentError(
            f"only fit runs in several processes; got {command[0]!r}. Write: tacit launch -n"
            f" {num_processes} -- fit data.csv ..."
        )
    taken = [
        word
        for word in command
        if word.partition("=")[0] in ("--num-processes", "--process-id", "--coordinator")
    ]
    if taken:
        raise InvalidArgumentError(
            f"leave out {', '.join(taken)}: tacit launch gives each its own."
        )
    cores = cores_for(num_processes, cores_per_process)
    launched = Launched()
    launched.start(
        [sys.executable, "-m", "tacit", *command],
        num_processes=num_processes,
        coordinator=free_address(),
        cores=cores,
    )
    raise typer.Exit(launched.wait())
