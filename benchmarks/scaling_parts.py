"""What the parts of a step cost on one core, and what two processes pay to agree."""

import json
import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import tacit
from benchmarks.rows import engine_noise
from benchmarks.scaling_tables import classifier, mapped_table, table_in_memory
from benchmarks.timing import Effort, Visit, interleave, repeat
from tacit import _tree
from tacit.privacy.budget import RunRequest
from tacit.privacy.clipping import Flat
from tacit.privacy.clipping.gradient import clipped_gradient_sum
from tacit.privacy.filters import RDPFilter
from tacit.processes import on_coordinator, start_processes, stop_processes
from tacit.rng import seeded_key
from tacit.tables import device_mesh
from tacit.tables.base import sum_over_devices
from tacit.tables.distributed import everywhere
from tacit.typing import Array, Key, Params, Record, Scalar, Tree

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
    return {name: time.best for name, time in times.items()}


def _step(task: PartsTask) -> dict[str, Visit]:
    """The parts of a private step of gradient descent, each by itself, and the whole."""
    model = classifier(task.num_columns, task.hidden, task.num_classes)
    records = table_in_memory(task.num_records, task.num_columns, task.num_classes)
    release = tacit.GaussianSum(
        sampling=tacit.PoissonBatch(num_records=task.num_records, batch_size=task.batch),
        clip_norm=1.0,
        noise_multiplier=1.0,
    )
    kernel = tacit.SGD(release=release, optimizer=optax.sgd(1e-6)).build(model)
    key = seeded_key(0)
    state, params = kernel.init(key), model.init(key)
    indices, mask = release.sampling.draw(key)
    rows, keys = _tree.take(records, indices), jax.random.split(key, len(indices))

    def loss(params: Params, record: Record, key: Key) -> Scalar:
        return -model.log_likelihood(params, record, key)

    def clipped(params: Params, rows: Record, keys: Key, mask: Array) -> Params:
        return clipped_gradient_sum(loss, params, rows, keys, mask, clipping=Flat(), clip_norm=1.0)

    return {
        "draw": _visit_of(release.sampling.draw, key),
        "gather": _visit_of(_tree.take, records, indices),
        "clipped sum": _visit_of(clipped, params, rows, keys, mask),
        "noise": engine_noise(_tree.size(params)),
        "step": _visit_of(lambda *a: kernel.step(*a)[0], key, state, records),
    }


def _large_batches(task: PartsTask) -> dict[str, Visit]:
    """Drawing a batch, and finding one's own records in it, which every device does."""
    length = -(-task.drawn_from // task.num_shards)
    visits = {}
    for size in task.draws:
        sampling = tacit.PoissonBatch(num_records=task.drawn_from, batch_size=size)

        def own(key: Key, sampling: tacit.PoissonBatch = sampling) -> Array:
            indices, mask = sampling.draw(key)
            is_own = mask & (indices // length == 0)
            return jnp.nonzero(is_own, size=sampling.capacity, fill_value=sampling.capacity)[0]

        visits[f"draw {size}"] = _visit_of(own, seeded_key(0))
    return visits


def _on_host(task: PartsTask, folder: Path) -> dict[str, Visit]:
    """What is no part of a step itself: reading rows, an optimiser, paying the ledger."""
    table = mapped_table(Path(task.folder))
    chosen = np.random.default_rng(0).integers(table.num_records, size=NUM_READ)

    adam = optax.adam(1e-3)
    params = jnp.zeros(task.num_values)

    def update(params: Any, state: Any) -> Any:
        updates, state = adam.update(params, state)
        return optax.apply_updates(params, updates), state

    census = tacit.LedgerFile.create(folder / "ledger").register(
        "census", RDPFilter.of_budget(epsilon=1e3, delta=1e-6)
    )
    cost = tacit.FullBatch(num_records=1).cost(100.0)
    run = census.begin(RunRequest(cost=tacit.Cost(cost, is_secure=True), purpose="to be timed"))

    return {
        "read": repeat(lambda: table.read(chosen) and None),
        "update": _visit_of(update, params, adam.init(params)),
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
        "exchange": _visit_of(exchanged, values),
        "agree": repeat(lambda: on_coordinator(lambda: None)),
    }


def _visit_of(function: Callable[..., Tree], *inputs: Any) -> Visit:
    # Not that of `benchmarks.rows`, which computes on import: processes could not start any more.
    compiled = jax.jit(function)

    def run() -> None:
        jax.block_until_ready(compiled(*inputs))

    return repeat(run)


if __name__ == "__main__":
    _wanted = json.loads(sys.argv[1])
    print(json.dumps(_measure(PartsTask(**_wanted))), flush=True)
