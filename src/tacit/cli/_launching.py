"""Processes on this machine: started together, ended together."""

import contextlib
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
from typing import IO

from tacit import _check
from tacit.cli._notes import note
from tacit.errors import InvalidArgumentError

__all__ = ["Launched", "cores_for", "free_address"]

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
    _check.positive_integer(**{"--cores-per-process": cores_per_process})
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
