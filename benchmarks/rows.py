"""A row of the results: one workload at one batch size, all of it measured in one go."""

import os
from collections.abc import Mapping
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import tasks
from benchmarks.loops import Step, dispatched, in_loop, made_in_loop, private_step
from benchmarks.peers import PEERS, Peer
from benchmarks.timing import Effort, Visit, interleave
from benchmarks.workloads import Workload
from tacit import _tree
from tacit.inference.method import objective_of
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Tree

__all__ = ["Row", "measure", "meets", "threefry", "value_of"]

Row: TypeAlias = dict[str, Any]

# What every row aims at unless its workload says otherwise.
_TARGETS = {"peak_memory_ratio": 1.6, **{f"speedup_over.{peer}": 1.0 for peer in PEERS}}


def measure(workload: Workload, batch: int, peers: Mapping[str, Peer], effort: Effort) -> Row:
    """Measures a workload against plain training and against the given peers."""
    load_before = os.getloadavg()
    key = jax.random.key(0)
    data = workload.records(np.random.default_rng(0), workload.num_records)
    params = jax.jit(workload.init)(key)
    sampling = PoissonBatch(num_records=workload.num_records, batch_size=batch)
    kernel = tasks.method_of(workload, sampling).build(tasks.model_of(workload))
    state = jax.jit(kernel.init)(seeded_key(0))
    visits = {
        **_both_ways("plain", tasks.plain_step(workload, batch), params, key, data),
        **_both_ways("rewritten", tasks.rewritten_step(workload, batch), params, key, data),
        **_both_ways("private", private_step(kernel), state, seeded_key(0), data),
        "loop threefry": threefry(_tree.size(params)),
    }
    for name, peer in peers.items():
        visits |= {f"{way} {name}": peer.visit(way) for way in PEERS[name].ways}
    times = interleave(visits, effort)
    ms = {name: time.best for name, time in times.items()}
    best = {name: _best(ms, name) for name in PEERS}
    private, plain = ms["loop private"], _fastest(ms, "loop")
    row: Row = {
        "workload": workload.name,
        "batch": batch,
        "capacity": sampling.capacity,
        "num_records": workload.num_records,
        "num_params": _tree.size(params),
        "ms": ms,
        "step_ratio": private / plain,
        "dispatched_ratio": ms["dispatched private"] / _fastest(ms, "dispatched"),
        "bound_ratio": private / (plain + ms["loop threefry"]),
        "speedup_over": {name: time and time / private for name, time in best.items()},
        "peak_memory_ratio": _memory_ratio(workload, batch),
    }
    aims = {
        name: aim
        for name, aim in {**_TARGETS, **workload.batches.get(batch, {})}.items()
        if value_of(row, name) is not None
    }
    return row | {
        "targets": aims,
        "missed": [name for name, aim in aims.items() if not meets(name, value_of(row, name), aim)],
        "median_ms": {name: time.median for name, time in times.items()},
        "num_steps": {name: len(time.runs) for name, time in times.items()},
        "load_average": {"before": load_before, "after": os.getloadavg()},
        "peers": {k: v for peer in peers.values() for k, v in peer.versions.items()},
    }


def threefry(num_values: int) -> Visit:
    """Returns the visit that draws so many normals with JAX's default generator, in a loop."""

    def draw(t: Array, key: Key, data: None) -> Array:
        return jax.random.normal(jax.random.fold_in(key, t), (num_values,))

    return made_in_loop(draw, jax.random.key(0), None)


def _both_ways(name: str, step: Step | None, state: Tree, key: Key, data: Tree) -> dict[str, Visit]:
    if step is None:
        return {}
    return {
        f"loop {name}": in_loop(step, state, key, data),
        f"dispatched {name}": dispatched(step, state, key, data),
    }


def _fastest(ms: Mapping[str, float], way: str) -> float:
    """The time of the faster plain step."""
    return min(ms[name] for name in (f"{way} plain", f"{way} rewritten") if name in ms)


def _best(ms: Mapping[str, float], peer: str) -> float | None:
    """The time of a peer's step, the better way; None where it could not run."""
    times = (ms.get(f"{way} {peer}") for way in PEERS[peer].ways)
    return min((time for time in times if time is not None), default=None)


def _memory_ratio(workload: Workload, batch: int) -> float:
    """What the compiler plans beyond the arguments, the clipped sum over the plain gradient."""
    key, model = jax.random.key(0), tasks.model_of(workload)
    shared, asked = workload.shared(key), objective_of(model).record_loss
    records = workload.records(np.random.default_rng(0), batch)
    rest = records, jax.random.split(key, batch), jnp.ones(batch, bool)

    def peak_bytes(gradient: tasks.Gradient, init: Any) -> int:
        params = jax.eval_shape(init, key)
        plan: Any = jax.jit(gradient).lower(params, *rest).compile().memory_analysis()
        return int(plan.temp_size_in_bytes + plan.output_size_in_bytes)

    plain = tasks.plain_gradient(lambda params, *one: workload.loss(params, shared, *one))
    clipped = tasks.clipped_gradient(lambda params, *one: asked(params, None, *one))
    return peak_bytes(clipped, model.init) / peak_bytes(plain, workload.init)


def value_of(row: Row, name: str) -> Any:
    """Returns the value of a dotted name; None where it was not measured."""
    value: Any = row
    for part in name.split("."):
        value = value.get(part) if value is not None else None
    return value


def meets(name: str, value: float, aim: float) -> bool:
    """Returns whether a target is met: speedups are to be at least so much, ratios at most."""
    return value >= aim if name.startswith("speedup") else value <= aim
