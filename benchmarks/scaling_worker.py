"""What a process of a scaling measurement executes: one fit, and what it took as a line of JSON."""

import json
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

import tacit
from benchmarks.scaling_tables import classifier, mapped_table, table_in_memory
from tacit.processes import start_processes, stop_processes

__all__ = ["FitTask", "MemoryWatch", "kilobytes"]


@dataclass(frozen=True, kw_only=True)
class FitTask:
    """A private fit to measure.

    Attributes:
      num_records: of the table.
      num_columns: of the table.
      num_classes: of the table.
      hidden: the widths of the network.
      batch: records in a Poisson batch, as expected.
      chunk_steps: how many steps `fit` makes at once.
      num_chunks: how many chunks are measured; one before and one after them are not, which
        compile.
      folder: where the table's files are, from which rows are read as they are drawn; None for a
        table of random numbers in memory, spread over the processes where there are several.
      result: a file for the parameters at the end.
      num_processes: how many share the fit.
      process_id: which of them this is.
      port: of this machine, where they meet.
    """

    num_records: int
    num_columns: int
    num_classes: int
    hidden: tuple[int, ...]
    batch: int
    chunk_steps: int
    num_chunks: int
    folder: str | None = None
    result: str | None = None
    num_processes: int = 1
    process_id: int = 0
    port: int = 7000

    def command(self) -> list[str]:
        """Returns the command that measures it."""
        return [sys.executable, "-m", "benchmarks.scaling_worker", json.dumps(asdict(self))]


def kilobytes(name: str) -> int:
    """Returns what the system says of this process's memory, such as ``VmHWM``, its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0])
    raise KeyError(name)


class MemoryWatch(threading.Thread):
    """Looks every so many seconds how many kilobytes of memory there are that no file backs."""

    def __init__(self, every: float) -> None:
        super().__init__(daemon=True)
        self.peak, self._every = 0, every

    def run(self) -> None:
        """Looks until the process ends."""
        while True:
            self.peak = max(self.peak, kilobytes("RssAnon"))
            time.sleep(self._every)


def _measure(task: FitTask) -> dict[str, Any]:
    watch = MemoryWatch(every=0.01)
    watch.start()
    start_processes(
        num_processes=task.num_processes,
        process_id=task.process_id,
        coordinator=f"127.0.0.1:{task.port}",
    )
    table: Any
    if task.folder is not None:
        table = tacit.OnHost(mapped_table(Path(task.folder)))
    else:
        table = table_in_memory(task.num_records, task.num_columns, task.num_classes)
        table = tacit.distribute(table) if task.num_processes > 1 else table
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=task.num_records, batch_size=task.batch),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    plan = tacit.Plan(
        method=tacit.SGD(release=release, optimizer=optax.sgd(1e-6)),
        num_steps=task.chunk_steps * (task.num_chunks + 2),
    )
    ends: list[float] = []

    def note_end(checkpoint: Any) -> None:
        jax.block_until_ready(checkpoint.states)
        ends.append(time.perf_counter())

    fit = tacit.fit(
        plan,
        classifier(task.num_columns, task.hidden, task.num_classes),
        table,
        budget=tacit.Budget.non_private(),
        seed=0,
        on_chunk=note_end,
        chunk_steps=task.chunk_steps,
    )
    params = np.asarray(ravel_pytree(fit.posterior.kept)[0])
    if task.result is not None and ends:  # the coordinator's are those of all
        np.save(task.result, params)
    stop_processes()
    return {
        "chunks_ms": (np.diff(ends[:-1]) / task.chunk_steps * 1e3).tolist(),
        "num_params": params.size,
        "capacity": release.sampling.capacity,
        "peak_mb": kilobytes("VmHWM") / 1e3,
        "peak_anonymous_mb": watch.peak / 1e3,
    }


if __name__ == "__main__":
    _wanted = json.loads(sys.argv[1])
    print(json.dumps(_measure(FitTask(**_wanted))), flush=True)
