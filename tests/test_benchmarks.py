"""The benchmark measures what it says: its workloads are valid and its rows are complete."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import rows, table, tasks
from benchmarks.methods import render_methods
from benchmarks.peers import PEERS
from benchmarks.programs import render_programs
from benchmarks.timing import Effort, interleave
from benchmarks.workloads import WORKLOADS, mlp

ROOT = Path(__file__).parents[1]

NAMES = {
    "mlp-784-1200-1200-10",
    "mlp-784-512-10",
    "cnn-mnist",
    "transformer-block",
    "embedding-logistic",
    "scan-layers",
    "rnn",
    "variational-784-400-400-10",
    "vae-numpyro",
}
FIELDS = {
    "workload",
    "batch",
    "plain_ms",
    "clipped_ms",
    "step_ms",
    "gradient_ratio",
    "step_ratio",
    "speedup_over",
    "peak_memory_ratio",
}
ONE_RUN = Effort(rounds=1, visit_seconds=0.0, min_rounds=1, max_seconds=1.0)


def test_every_promised_workload_is_there():
    assert set(WORKLOADS) == NAMES


def drawn(rng, make):
    """Values with the shapes that ``make(key)`` would have, without the time to compile it."""

    def draw(leaf):
        fan_in = leaf.shape[-2] if leaf.ndim > 1 else 4.0
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) / np.sqrt(fan_in))

    return jax.tree.map(draw, jax.eval_shape(make, jax.random.key(0)))


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_without_a_clip_the_private_gradient_is_the_plain_one(workload):
    rng = np.random.default_rng(0)
    batch = 3
    inputs = (
        drawn(rng, workload.init),
        drawn(rng, workload.shared),
        workload.records(rng, batch),
        jax.random.split(jax.random.key(0), batch),
        jnp.ones(batch, bool),
    )
    plain = jax.jit(tasks.plain_gradient(workload))(*inputs)
    private = jax.jit(tasks.clipped_gradient(workload, clip_norm=np.inf))(*inputs)
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain))
    assert largest > 0
    for expected, found in zip(jax.tree.leaves(plain), jax.tree.leaves(private), strict=True):
        # 170 roundings, for sums in another order; some gradients are nothing but roundings,
        # such as that of attention's key bias, hence the second scale.
        scale = max(float(jnp.abs(expected).max()), 1e-2 * largest)
        assert jnp.abs(found - expected).max() <= 1e-5 * scale


def test_a_row_has_every_promised_field_and_a_verdict():
    workload = dataclasses.replace(
        mlp(batches=(2,), targets={"gradient_ratio": 1.5}), num_records=50
    )
    row = rows.measure(workload, 2, {}, ONE_RUN)
    assert set(row) >= FIELDS
    assert row["speedup_over"] == dict.fromkeys(PEERS)
    assert row["gradient_ratio"] == row["clipped_ms"] / row["plain_ms"]
    assert row["met"] == (row["gradient_ratio"] <= 1.5 and row["step_bound_ratio"] <= 1.2)
    assert "mlp-784-10" in table.render([row])


def test_every_candidate_is_visited_in_every_round():
    visited = []

    def visit_of(name):
        return lambda seconds: visited.append(name) or [1.0]

    interleave({"a": visit_of("a"), "b": visit_of("b")}, ONE_RUN)
    assert visited == ["a", "b", "a", "b"]


def test_a_slow_candidate_is_visited_less_often_but_at_least_once():
    effort = Effort(rounds=9, visit_seconds=0.0, min_rounds=3, max_seconds=1.0)
    times = interleave(
        {
            "quick": lambda seconds: [1.0],
            "slow": lambda seconds: [900.0],
            "very slow": lambda seconds: [60_000.0],
        },
        effort,
    )
    assert {name: len(time.runs) for name, time in times.items()} == {
        "quick": 9,
        "slow": 3,
        "very slow": 1,
    }


def test_a_candidate_that_cannot_run_is_left_out():
    times = interleave({"a": lambda seconds: [], "b": lambda seconds: [2.0, 1.0]}, ONE_RUN)
    assert set(times) == {"b"}
    assert times["b"].best == 1.0


def test_the_documented_tables_are_those_of_the_last_whole_run():
    page = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    results = json.loads((ROOT / "benchmarks/results.json").read_text())
    assert table.render(results) in page
    assert render_methods(json.loads((ROOT / "benchmarks/methods.json").read_text())) in page
    assert render_programs(json.loads((ROOT / "benchmarks/programs.json").read_text())) in page
