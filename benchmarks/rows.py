"""A row of the results: one workload at one batch size, all of it measured in one go."""

import datetime
import itertools
import os
import platform
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import tasks
from benchmarks.peers import PEERS, Peer
from benchmarks.timing import Effort, Times, Visit, interleave, repeat
from benchmarks.workloads import Workload
from tacit import _tree
from tacit.privacy.noise import noisy
from tacit.privacy.sampling import FixedBatch, PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Key, Tree

__all__ = [
    "NOISE_ROW",
    "Row",
    "engine_noise",
    "measure",
    "measure_noise",
    "steps_of",
    "threefry",
    "visit_of",
]

Row: TypeAlias = dict[str, Any]

NOISE_ROW = "chacha-normal"
_NUM_NOISE_VALUES = 2_400_000

# What every row aims at unless its workload says otherwise.
_TARGETS = {"step_bound_ratio": 1.2, **{f"speedup_over.{peer}": 1.0 for peer in PEERS}}


def measure(workload: Workload, batch: int, peers: Mapping[str, Peer], effort: Effort) -> Row:
    """Measures a workload against plain training and against the given peers."""
    load_before = os.getloadavg()
    key = jax.random.key(0)
    data = workload.records(np.random.default_rng(0), workload.num_records)
    params, shared = jax.jit(workload.init)(key), jax.jit(workload.shared)(key)
    records = jax.tree.map(lambda leaf: leaf[:batch], data)
    inputs = (params, shared, records, jax.random.split(key, batch), jnp.ones(batch, bool))
    plain = jax.jit(tasks.plain_gradient(workload)).lower(*inputs).compile()
    clipped = jax.jit(tasks.clipped_gradient(workload)).lower(*inputs).compile()
    num_params = _tree.size(params)
    poisson = PoissonBatch(num_records=workload.num_records, batch_size=batch)
    fixed = FixedBatch(num_records=workload.num_records, batch_size=batch)
    times = interleave(
        {
            "plain": visit_of(plain, *inputs),
            "clipped": visit_of(clipped, *inputs),
            "plain_step": steps_of(tasks.plain_step(workload, batch), params, key, data),
            "step": _private_steps(workload, poisson, data),
            "equal_batch_step": _private_steps(workload, fixed, data),
            "noise": engine_noise(num_params),
            "threefry": threefry(num_params),
            **{name: peer.visit for name, peer in peers.items()},
        },
        effort,
    )
    best = {name: time.best for name, time in times.items()}
    row: Row = {
        "workload": workload.name,
        "batch": batch,
        "plain_ms": best["plain"],
        "clipped_ms": best["clipped"],
        "step_ms": best["step"],
        "gradient_ratio": best["clipped"] / best["plain"],
        "step_ratio": best["step"] / best["plain_step"],
        "speedup_over": _speedups(best, best["step"]),
        "peak_memory_ratio": _peak_bytes(clipped) / _peak_bytes(plain),
        "step_bound_ratio": best["step"] / (best["plain_step"] + best["threefry"]),
        "equal_batch_bound_ratio": best["equal_batch_step"]
        / (best["plain_step"] + best["threefry"]),
        "plain_step_ms": best["plain_step"],
        "equal_batch_step_ms": best["equal_batch_step"],
        "speedup_over_at_equal_batch": _speedups(best, best["equal_batch_step"]),
        "noise_ms": best["noise"],
        "threefry_ms": best["threefry"],
        "peer_ms": {name: best.get(name) for name in PEERS},
        "num_params": num_params,
        "num_records": workload.num_records,
        "capacity": poisson.capacity,
    }
    peer_versions = {k: v for peer in peers.values() for k, v in peer.versions.items()}
    return _finished(row, workload.targets, times, load_before, peer_versions)


def measure_noise(effort: Effort) -> Row:
    """Measures the engine's exact noise against JAX's normals; the batch counts values."""
    load_before = os.getloadavg()
    times = interleave(
        {
            "plain": threefry(_NUM_NOISE_VALUES),
            "clipped": engine_noise(_NUM_NOISE_VALUES),
        },
        effort,
    )
    row: Row = {
        "workload": NOISE_ROW,
        "batch": _NUM_NOISE_VALUES,
        "plain_ms": times["plain"].best,
        "clipped_ms": times["clipped"].best,
        "step_ms": None,
        "gradient_ratio": times["clipped"].best / times["plain"].best,
        "step_ratio": None,
        "speedup_over": dict.fromkeys(PEERS),
        "peak_memory_ratio": None,
    }
    return _finished(row, {"gradient_ratio": 0.5}, times, load_before, {})


def visit_of(function: Callable[..., Tree], *inputs: Any) -> Visit:
    """Returns the visit that calls a compiled function and waits for its result."""

    def run() -> None:
        jax.block_until_ready(function(*inputs))

    return repeat(run)


def steps_of(step: tasks.Step, state: Any, key: Key, data: Tree) -> Visit:
    """Returns the visit that goes on training; the state is updated in place."""
    compiled = jax.jit(step, donate_argnums=2)
    # A copy: the caller's arrays must survive the first step, which gives its state away.
    held = [jax.tree.map(jnp.copy, state)]
    counter = itertools.count()

    def run() -> None:
        held[0] = jax.block_until_ready(compiled(np.int32(next(counter)), key, held[0], data))

    return repeat(run)


def _private_steps(workload: Workload, sampling: PoissonBatch | FixedBatch, data: Tree) -> Visit:
    init, step = tasks.private_step(workload, sampling)
    key = seeded_key(0)
    return steps_of(step, jax.jit(init)(key), key, data)


def engine_noise(num_values: int) -> Visit:
    """Returns the visit that adds the engine's exact noise to so many integers."""
    num_columns = -(-num_values // 2)
    total = jnp.zeros((1, 2, num_columns), jnp.int32)
    release = jax.jit(
        lambda key, total: noisy(key, total, ratio=2.0**18, scale=1.0, num_columns=num_columns)
    )
    return visit_of(release, seeded_key(0), total)


def threefry(num_values: int) -> Visit:
    """Returns the visit that draws so many normals with JAX's default generator."""
    return visit_of(jax.jit(lambda key: jax.random.normal(key, (num_values,))), jax.random.key(0))


def _peak_bytes(compiled: jax.stages.Compiled) -> int:
    """What a compiled function needs beyond its arguments, as the compiler planned it."""
    plan: Any = compiled.memory_analysis()
    return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)


def _speedups(best: Mapping[str, float], ours: float) -> dict[str, float | None]:
    return {name: best[name] / ours if name in best else None for name in PEERS}


def _finished(
    row: Row,
    targets: Mapping[str, float],
    times: Mapping[str, Times],
    load_before: tuple[float, float, float],
    peer_versions: Mapping[str, str],
) -> Row:
    """Adds the verdict on the targets, and the circumstances."""
    aims = {**_TARGETS, **targets}
    values = {name: _at(row, name) for name in aims}
    missed = [
        name
        for name, value in values.items()
        if value is not None and not _meets(name, value, aims)
    ]
    return row | {
        "targets": {name: aims[name] for name, value in values.items() if value is not None},
        "missed": missed,
        "met": not missed,
        "median_ms": {name: time.median for name, time in times.items()},
        "num_runs": {name: len(time.runs) for name, time in times.items()},
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "num_threads": len(os.sched_getaffinity(0)),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in ("tacit", "jax", "jaxlib", "optax")},
            **peer_versions,
        },
    }


def _at(row: Row, name: str) -> float | None:
    """The value of a dotted name; None where it was not measured."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if value is not None else None
    return value


def _meets(name: str, value: float, aims: Mapping[str, float]) -> bool:
    """Speedups are to be at least their target, ratios at most."""
    return value >= aims[name] if name.startswith("speedup") else value <= aims[name]
