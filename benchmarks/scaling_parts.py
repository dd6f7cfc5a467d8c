"""What the parts of a step cost on one core, and what two processes pay to agree."""

import json
import math
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import tacit
from benchmarks.loops import in_loop, made_in_loop, visit_of
from benchmarks.parts import STEP, visits_of_parts
from benchmarks.scaling_tables import classifier, mapped_table, table_in_memory
from benchmarks.timing import Effort, Visit, interleave, repeat
from tacit.inference.compilation import step_key
from tacit.privacy.budget import RunRequest
from tacit.privacy.filters import RDPFilter
from tacit.processes import on_coordinator, start_processes, stop_processes
from tacit.rng import seeded_key
from tacit.tables import device_mesh
from tacit.tables.base import sum_over_devices
from tacit.tables.distributed import everywhere
from tacit.typing import Array, Key

__all__ = ["NUM_READ", "PartsTask"]

NUM_READ = 20_000
"""Records that are read at once."""


@dataclass(frozen=True, kw_only=True)
class PartsTask:
    """What to measure.

    Attributes:
      num_columns: of the table of the step that is taken apart.
      num_classes: of that table.
      hidden: the widths of its network.
      num_records: of its table.
      batch: records in its Poisson batch.
      drawn_from: of how many records large batches are drawn ...
      draws: ... and their expected sizes.
      num_shards: among how many a drawn batch is shared.
      num_values: numbers in an update, and in a sum that processes exchange.
      folder: a table on disk, to read from.
      effort: how often each is visited.
      num_processes: 1 for what one core does, 2 for what two processes do together.
      process_id: which of them this is.
      port: of this machine, where they meet.
    """

    num_columns: int
    num_classes: int
    hidden: tuple[int, ...]
    num_records: int
    batch: int
    drawn_from: int
    draws: tuple[int, ...]
    num_shards: int
    num_values: int
    folder: str
    effort: dict[str, Any]
    num_processes: int = 1
    process_id: int = 0
    port: int = 7000

    def command(self) -> list[str]:
        """Returns the command that measures it."""
        return [sys.executable, "-m", "benchmarks.scaling_parts", json.dumps(asdict(self))]


def _measure(task: PartsTask) -> dict[str, float]:
    start_processes(
        num_processes=task.num_processes,
        process_id=task.process_id,
        coordinator=f"127.0.0.1:{task.port}",
    )
    effort = Effort(**task.effort)
    with tempfile.TemporaryDirectory() as folder:
        if task.num_processes == 1:
            visits = _step(task) | _large_batches(task) | _on_host(task, Path(folder))
            times = interleave(visits, effort)
        else:
            # No look at the clock: both processes must make the same number of visits.
            alike = Effort(
                rounds=10 * effort.rounds, visit_seconds=0.0, min_rounds=1, max_seconds=math.inf
            )
            times = interleave(_together(task), alike)
    stop_processes()
    ms = {name: time.best for name, time in times.items()}
    if "to the sum" in ms:
        ms["clipped sum"] = ms.pop("to the sum") - ms["gather"]
    return ms


def _step(task: PartsTask) -> dict[str, Visit]:
    """Parts of a private step of gradient descent, in loops, and the whole."""
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=task.num_records, batch_size=task.batch),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    method = tacit.SGD(release=release, optimizer=optax.sgd(1e-6))
    model = classifier(task.num_columns, task.hidden, task.num_classes)
    records = table_in_memory(task.num_records, task.num_columns, task.num_classes)
    visits = visits_of_parts(method, model, records)
    return {name: visits[name] for name in ("draw", "gather", "to the sum", "noise", STEP)}


def _large_batches(task: PartsTask) -> dict[str, Visit]:
    """Drawing a batch, and finding one's own records in it, which every device does."""
    length = -(-task.drawn_from // task.num_shards)
    visits = {}
    for size in task.draws:
        sampling = tacit.PoissonBatch(num_records=task.drawn_from, batch_size=size)

        def own(t: Array, key: Key, data: None, sampling: tacit.PoissonBatch = sampling) -> Array:
            indices, mask = sampling.draw(step_key(key, t))
            is_own = mask & (indices // length == 0)
            return jnp.nonzero(is_own, size=sampling.capacity, fill_value=sampling.capacity)[0]

        visits[f"draw {size}"] = made_in_loop(own, seeded_key(0), None)
    return visits


def _on_host(task: PartsTask, folder: Path) -> dict[str, Visit]:
    """What is no part of a step itself: reading rows, an optimiser, paying the ledger."""
    table = mapped_table(Path(task.folder))
    chosen = np.random.default_rng(0).integers(table.num_records, size=NUM_READ)

    adam = optax.adam(1e-3)
    params = jnp.zeros(task.num_values)

    def update(t: Array, key: Key, state: Any, gradient: Array) -> Any:
        params, memory = state
        updates, memory = adam.update(gradient, memory)
        return optax.apply_updates(params, updates), memory

    census = tacit.LedgerFile.create(folder / "ledger").register(
        "census", RDPFilter.of_budget(epsilon=1e3, delta=1e-6)
    )
    cost = tacit.FullBatch(num_records=1).cost(100.0)
    run = census.begin(RunRequest(cost=tacit.Cost(cost, is_secure=True), purpose="to be timed"))

    return {
        "read": repeat(lambda: table.read(chosen) and None),
        "update": in_loop(update, (params, adam.init(params)), seeded_key(0), params + 1.0),
        "charge": repeat(lambda: run.charge(cost)),
    }


def _together(task: PartsTask) -> dict[str, Visit]:
    """What processes do together: summing and gathering a sum, and waiting for the coordinator."""
    mesh = device_mesh()

    def exchanged(values: Array) -> Array:
        return jax.shard_map(
            lambda own: sum_over_devices(own, mesh).gathered(),
            mesh=mesh,
            in_specs=P(),
            out_specs=P(),
            check_vma=False,
        )(values)

    values = everywhere(jnp.ones((1, task.num_values)), mesh)
    return {
        "exchange": visit_of(jax.jit(exchanged), values),
        "agree": repeat(lambda: on_coordinator(lambda: None)),
    }


if __name__ == "__main__":
    _wanted = json.loads(sys.argv[1])
    print(json.dumps(_measure(PartsTask(**_wanted))), flush=True)
