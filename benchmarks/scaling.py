"""How a fit scales: processes that share it, records that it draws from, and its parts."""

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from benchmarks.launching import run_together
from benchmarks.scaling_parts import PartsTask
from benchmarks.scaling_tables import make_table
from benchmarks.scaling_worker import FitTask
from benchmarks.timing import Effort
from tacit.tables.base import room_in_shard

__all__ = ["FULL", "QUICK", "Scaling", "Sizes", "measure_scaling"]

Scaling: TypeAlias = dict[str, Any]
"""What was found: ``strong``, ``sizes``, ``parts`` and the circumstances."""

_TARGET = 1.75
_NUM_SHARDS = 100

_STRONG = FitTask(
    num_records=60_000,
    num_columns=784,
    num_classes=10,
    hidden=(512, 512),
    batch=4096,
    chunk_steps=10,
    num_chunks=4,
)
_SIZED = FitTask(
    num_records=0,
    num_columns=50,
    num_classes=2,
    hidden=(64,),
    batch=1024,
    chunk_steps=100,
    num_chunks=10,
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How large everything is.

    Attributes:
      strong: the fit that one process makes, and two processes share; its step is compute bound.
      batches: with how many records in a batch; the last is that of ``strong``.
      sized: the fit whose table grows.
      in_memory: of how many records, where the table is in memory.
      on_disk: of how many records, where it stays on the disk.
      draws: expected sizes of batches that are drawn from a thousand million records.
      num_values: numbers in an update, and in a sum that processes exchange.
    """

    strong: FitTask = _STRONG
    batches: tuple[int, ...] = (1024, 4096)
    sized: FitTask = _SIZED
    in_memory: tuple[int, ...] = (10_000, 100_000, 1_000_000)
    on_disk: tuple[int, ...] = (10_000, 100_000, 1_000_000, 10_000_000)
    draws: tuple[int, ...] = (1_000, 10_000, 100_000, 1_000_000)
    num_values: int = 1_000_000


FULL = Sizes()
QUICK = Sizes(
    strong=replace(_STRONG, hidden=(64,), batch=64, num_records=1000, chunk_steps=2, num_chunks=2),
    batches=(64,),
    sized=replace(_SIZED, hidden=(), batch=16, chunk_steps=4, num_chunks=2),
    in_memory=(1000,),
    on_disk=(1000,),
    draws=(1_000_000,),
    num_values=10_000,
)


def measure_scaling(effort: Effort, sizes: Sizes = FULL) -> Scaling:
    """Measures everything; each fit in processes of its own."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    num_pairs = min(5, effort.rounds)
    before = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "strong": [
                _strong(replace(sizes.strong, batch=batch), cores, Path(folder), num_pairs)
                for batch in sizes.batches
            ],
            "sizes": _by_size(sizes, cores, Path(folder)),
            "parts": _parts(sizes, cores, Path(folder), effort),
        }
    return found | {
        "load_average": {"before": before, "after": os.getloadavg()},
        "num_cores": len(cores),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "versions": {name: metadata.version(name) for name in ("jax", "jaxlib", "numpy")},
    }


def _strong(task: FitTask, cores: Sequence[int], folder: Path, num_pairs: int) -> dict[str, Any]:
    """One process and two in turn, each process on one core."""
    steps: dict[int, list[float]] = {1: [], 2: []}
    results = {num: folder / f"result-{num}.npy" for num in steps}
    found: dict[str, Any] = {}
    for pair in range(num_pairs):
        for num, times in steps.items():
            # The one process is on this core and on that, in turn.
            bound = [[core] for core in (*cores, *cores)][pair % len(cores) :][:num]
            found = run_together([replace(task, result=str(results[num]))] * num, bound)
            times.append(statistics.median(found["chunks_ms"]))
    speedups = [one / two for one, two in zip(steps[1], steps[2], strict=True)]
    first, second = (np.load(path) for path in results.values())
    speedup = statistics.median(speedups)
    target = _TARGET if task.batch == _STRONG.batch else None
    rows = room_in_shard(-(-task.num_records // 2), task.batch / task.num_records)
    return {
        "task": asdict(task),
        "num_params": found["num_params"],
        "rows": {"1": found["capacity"], "2": min(rows, found["capacity"])},
        "step_ms": {str(num): times for num, times in steps.items()},
        "speedups": speedups,
        "speedup": speedup,
        "target": target,
        "met": target is None or speedup >= target,
        "equal_params": float(np.mean(first == second)),
        "largest_difference": float(np.abs(first - second).max()),
        "largest_param": float(np.abs(first).max()),
    }


def _by_size(sizes: Sizes, cores: Sequence[int], folder: Path) -> list[dict[str, Any]]:
    """The same fit on tables of growing length, in memory and on disk."""
    rows = []
    for on_disk, lengths in ((False, sizes.in_memory), (True, sizes.on_disk)):
        for num_records in lengths:
            task = replace(sizes.sized, num_records=num_records)
            if on_disk:
                path = _table(folder, num_records, task.num_columns)
                task = replace(task, folder=str(path))
            found = run_together([task], [cores])
            rows.append(
                {
                    "num_records": num_records,
                    "on_disk": on_disk,
                    "table_mb": num_records * 4 * (task.num_columns + 1) / 1e6,
                    "batch": task.batch,
                    "num_columns": task.num_columns,
                    "step_ms": statistics.median(found["chunks_ms"]),
                    **{name: found[name] for name in ("peak_mb", "peak_anonymous_mb", "capacity")},
                }
            )
    return rows


def _parts(
    sizes: Sizes, cores: Sequence[int], folder: Path, effort: Effort
) -> dict[str, dict[str, Any]]:
    strong = sizes.strong
    task = PartsTask(
        num_columns=strong.num_columns,
        num_classes=strong.num_classes,
        hidden=strong.hidden,
        num_records=strong.num_records,
        batch=strong.batch,
        drawn_from=10**9,
        draws=sizes.draws,
        num_shards=_NUM_SHARDS,
        num_values=sizes.num_values,
        folder=str(_table(folder, sizes.on_disk[-1], sizes.sized.num_columns)),
        effort=asdict(effort),
    )
    return {
        "task": asdict(replace(task, folder="")),
        "ms": run_together([task], [cores[:1]])
        | run_together([task] * 2, [[core] for core in cores]),
    }


def _table(folder: Path, num_records: int, num_columns: int) -> Path:
    path = folder / f"table-{num_records}"
    if not path.exists():
        make_table(path, num_records, num_columns)
    return path
