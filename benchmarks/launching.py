"""Launching the processes of a measurement, each bound to its own cores."""

import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.scaling_parts import PartsTask
from benchmarks.scaling_worker import FitTask

__all__ = ["run_together"]

Task: TypeAlias = FitTask | PartsTask

_ROOT = Path(__file__).parents[1]
_MAX_SECONDS = 300


def run_together(tasks: Sequence[Task], cores: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Starts a process for each task, and returns what the first of them printed.

    Args:
      tasks: what each process executes; its place among them is filled in.
      cores: of each process.
    """
    port = _free_port()
    running = []
    try:
        for number, (task, own) in enumerate(zip(tasks, cores, strict=True)):
            placed = replace(task, num_processes=len(tasks), process_id=number, port=port)
            with _bound_to(own):
                running.append(
                    subprocess.Popen(
                        placed.command(),
                        cwd=_ROOT,
                        env=_environment(),
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                )
        printed = [process.communicate(timeout=_MAX_SECONDS)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError(f"a process of {tasks[0]} failed; its error is above.")
    # The transport prints lines of its own.
    lines = [line for line in printed[0].splitlines() if line.startswith("{")]
    found: dict[str, Any] = json.loads(lines[-1])
    return found


@contextlib.contextmanager
def _bound_to(cores: Sequence[int]) -> Iterator[None]:
    """Lets what is started inside have these cores only; XLA counts them when it starts."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _environment() -> dict[str, str]:
    return {
        "JAX_COMPILATION_CACHE_DIR": str(_ROOT / "build" / "bench" / "compiled"),
        **os.environ,
        "XLA_FLAGS": "",
        "JAX_PLATFORMS": "cpu",
    }


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
