"""Peers: other libraries' private steps, each in a process of the peers' own environment.

A peer reads lines with a way and a number of seconds from its input and answers each with the
milliseconds of the steps that it made in this way, so that its repetitions are interleaved with
ours. Waiting, it is idle.
Before anything else it shows that it clips every record and adds noise, and says what it is.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.timing import Visit

__all__ = ["PEERS", "Peer", "PeerKind", "runs", "serve", "started"]

_ROOT = Path(__file__).parents[1]

_JAX_PRIVACY, _OPACUS = "benchmarks.peer_jax_privacy", "benchmarks.peer_opacus"


class PeerKind(NamedTuple):
    """What a peer is.

    Attributes:
      module: the program.
      mode: one of its modes.
      ways: in which it makes steps, single dispatch first: a loop may take longer than a peer has.
    """

    module: str
    mode: str
    ways: tuple[str, ...]


PEERS: Mapping[str, PeerKind] = {
    "jax_privacy": PeerKind(_JAX_PRIVACY, "whole", ("dispatched", "loop")),
    "jax_privacy_microbatched": PeerKind(_JAX_PRIVACY, "microbatched", ("dispatched", "loop")),
    "opacus_hooks": PeerKind(_OPACUS, "hooks", ("dispatched",)),
    "opacus_ghost": PeerKind(_OPACUS, "ghost", ("dispatched",)),
}
"""All of them."""

# Memory that was freed is kept, as tacit keeps its own, and not faulted in at every step. In more
# than one arena large buffers would not be.
_KEEPING_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": str(2**32),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
    "MALLOC_ARENA_MAX": "1",
}

_MAX_SECONDS = 60
"""A peer that takes longer for a step ends: its speed is no longer of interest."""

_OPACUS_WORKLOADS = ("mlp-784-1200-1200-10", "mlp-784-512-10", "cnn-mnist")


def runs(peer: str, workload: str) -> bool:
    """Whether a peer is measured on a workload: JAX Privacy on all, Opacus where it has them."""
    return PEERS[peer].module == _JAX_PRIVACY or workload in _OPACUS_WORKLOADS


class Peer:
    """A running peer."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self._name, self._process = name, process
        self.versions: dict[str, str] = {}

    def wait_until_ready(self) -> None:
        """Waits for the peer's checks to pass; one that fails has no versions and never runs."""
        self.versions = self._answer() or {}

    def visit(self, way: str) -> Visit:
        """Returns the visit that makes private steps in this way.

        A peer that has ended, for want of memory or of patience, returns none.
        """

        def visit(seconds: float) -> list[float]:
            assert self._process.stdin is not None
            if self._process.poll() is not None:
                return []
            print(way, seconds, file=self._process.stdin, flush=True)
            return self._answer() or []

        return visit

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            print(f"{self._name} ended with code {self._process.wait()}", file=sys.stderr)
            return None
        return json.loads(line)


@contextlib.contextmanager
def started(python: Path | None, workload: str, batch: int) -> Iterator[dict[str, Peer]]:
    """Starts the peers that can run a workload; they end with the context.

    Args:
      python: the interpreter of the environment in which they are installed; None for no peers.
      workload: the name of the workload.
      batch: the number of records in every batch.
    """
    with contextlib.ExitStack() as stack:
        running = {}
        for name, kind in PEERS.items():
            if python is not None and runs(name, workload):
                process = subprocess.Popen(
                    [python, "-W", "ignore", "-m", kind.module, kind.mode, workload, str(batch)],
                    env={**os.environ, **_KEEPING_MEMORY},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                    cwd=_ROOT,
                )
                stack.enter_context(process)
                running[name] = Peer(name, process)
        for peer in running.values():
            peer.wait_until_ready()
        yield running


def serve(visits: Mapping[str, Visit], versions: Mapping[str, str]) -> None:
    """Makes steps on demand until the input ends; to be called in the peer's process."""
    # Libraries may print: only answers go where answers are read.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    print(json.dumps(versions), file=answers, flush=True)
    for line in sys.stdin:
        way, seconds = line.split()
        signal.alarm(_MAX_SECONDS)  # which ends the process
        print(json.dumps(visits[way](float(seconds))), file=answers, flush=True)
        signal.alarm(0)
