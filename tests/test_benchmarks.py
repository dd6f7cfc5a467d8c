"""The benchmark measures what it says: its workloads are valid and its rows are complete."""

import dataclasses
import json
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import extrapolation, rows, scaling_page, startup, table, tasks
from benchmarks.launching import run_together
from benchmarks.methods import render_methods
from benchmarks.peers import PEERS
from benchmarks.programs import render_programs
from benchmarks.scaling import FULL, QUICK
from benchmarks.scaling_tables import make_table
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


def test_the_page_shows_how_long_starting_took_when_it_was_measured():
    page = startup.PAGE.read_text(encoding="utf-8")
    found = json.loads((ROOT / "benchmarks/startup.json").read_text())
    assert [row["task"] for row in found] == list(startup.TASKS)
    assert startup.rendered(page, found) == page


def test_a_start_is_measured_without_and_with_what_is_kept():
    (row,) = startup.measure_startup(["fit"], rounds=1)
    assert 0 < row["warm"]["cpu"] < row["cold"]["cpu"]
    assert "`tacit fit`" in startup.render_startup([row])


@pytest.fixture(scope="module")
def scaling():
    return json.loads((ROOT / "benchmarks/scaling.json").read_text())


def test_the_page_on_scale_shows_what_was_measured(scaling):
    page = scaling_page.PAGE.read_text(encoding="utf-8")
    assert scaling_page.rendered(page, scaling) == page
    table = (ROOT / "benchmarks/scaling.md").read_text(encoding="utf-8")
    assert table == scaling_page.render_scaling(scaling) + "\n"


def test_what_was_measured_of_scale_is_what_is_measured_now(scaling):
    assert [row["task"]["batch"] for row in scaling["strong"]] == list(FULL.batches)
    for row in scaling["strong"]:
        assert row["task"]["chunk_steps"] * row["task"]["num_chunks"] >= 20
        pairs = zip(row["step_ms"]["1"], row["step_ms"]["2"], strict=True)
        assert row["speedups"] == [one / two for one, two in pairs]
        assert row["speedup"] == np.median(row["speedups"])
    assert row["task"] == json.loads(json.dumps(dataclasses.asdict(FULL.strong)))
    assert row["met"] == (row["speedup"] >= 1.6)
    found = {(row["on_disk"], row["num_records"]) for row in scaling["sizes"]}
    assert found == {(False, n) for n in FULL.in_memory} | {(True, n) for n in FULL.on_disk}
    assert {f"draw {size}" for size in FULL.draws} <= set(scaling["parts"]["ms"])


def test_a_thousand_times_the_table_on_disk_takes_no_more_memory_and_hardly_more_time(scaling):
    rows = [row for row in scaling["sizes"] if row["on_disk"]]
    assert rows[-1]["num_records"] == 1000 * rows[0]["num_records"]
    # Two megabytes lie in the processor's caches, and two gigabytes do not.
    assert rows[-1]["step_ms"] < 2 * rows[0]["step_ms"]
    # What one run of the compiler differs from another.
    assert rows[-1]["peak_anonymous_mb"] < rows[0]["peak_anonymous_mb"] + 50
    assert rows[-1]["peak_mb"] < rows[0]["peak_mb"] + 50


def test_a_process_of_the_measurement_prints_what_its_fit_took(tmp_path):
    task = dataclasses.replace(QUICK.sized, num_records=1000, folder=str(tmp_path / "table"))
    make_table(tmp_path / "table", task.num_records, task.num_columns)
    found = run_together([task], [sorted(os.sched_getaffinity(0))[:1]])
    assert len(found["chunks_ms"]) == task.num_chunks
    assert min(found["chunks_ms"]) > 0
    assert found["num_params"] == 50 * 2 + 2
    assert 50 < found["peak_anonymous_mb"] < found["peak_mb"]


UNIT = extrapolation.Costs(
    clipping=1e-9,
    noise=1e-6,
    update=1e-6,
    read=1e-3,
    exchange=1e-9,
    chunk=10.0,
    draw={1_000_000: 100.0},
)


def test_on_paper_each_host_sends_eight_bytes_for_a_parameter_but_for_its_own_slice():
    cluster = extrapolation.Cluster(num_params=1e6, gigabits=8)
    assert extrapolation.exchanged_bytes(cluster) == pytest.approx(8e6 * 0.99)
    assert extrapolation.parts_of_step(UNIT, cluster)["exchanging sums"] == pytest.approx(7.92)
    slow = dataclasses.replace(UNIT, exchange=2e-6)
    assert extrapolation.parts_of_step(slow, cluster)["exchanging sums"] == pytest.approx(15.84)


def test_on_paper_hosts_cut_the_sum_and_the_noise_and_nothing_else():
    one, many = (
        extrapolation.parts_of_step(
            UNIT, extrapolation.Cluster(num_params=1e6, gigabits=10, num_hosts=hosts)
        )
        for hosts in (2, 200)
    )
    whole = "whole step"
    assert sum(many.values()) == pytest.approx(2 * many[whole])
    for name in one.keys() - {whole, "exchanging sums"}:
        factor = 100 if name in extrapolation.CUT and one[name] else 1
        assert many[name] == pytest.approx(one[name] / factor), name
