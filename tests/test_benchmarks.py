"""The benchmark measures what it says: its workloads are valid and its rows are complete."""

import dataclasses
import json
import os
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from benchmarks import (
    __main__,
    extrapolation,
    loops,
    page,
    parts,
    profile,
    rows,
    scaling_page,
    startup,
    tasks,
)
from benchmarks.launching import run_together
from benchmarks.markdown import renewed
from benchmarks.peers import PEERS
from benchmarks.scaling import FULL, QUICK
from benchmarks.scaling_tables import make_table
from benchmarks.timing import Effort, interleave
from benchmarks.workloads import WORKLOADS, mlp

from tacit.inference.vi import VI, variational_objective
from tacit.privacy.sampling import PoissonBatch
from tacit.rng import seeded_key

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
ONE_RUN = Effort(rounds=1, visit_seconds=0.0, min_rounds=1, max_seconds=1.0)


def test_every_promised_workload_is_there():
    assert set(WORKLOADS) == NAMES


def drawn(rng, make):
    """Values with the shapes that ``make(key)`` would have, without the time to compile it."""

    def draw(leaf):
        fan_in = leaf.shape[-2] if leaf.ndim > 1 else 4.0
        return jnp.asarray(rng.standard_normal(leaf.shape, np.float32) / np.sqrt(fan_in))

    return jax.tree.map(draw, jax.eval_shape(make, jax.random.key(0)))


def case(workload, batch=3):
    """A loss of the workload, and parameters and records for its gradient."""
    rng = np.random.default_rng(0)
    params, shared = drawn(rng, workload.init), drawn(rng, workload.shared)
    keys = jax.random.split(jax.random.key(0), batch)
    return (
        lambda params, record, key: workload.loss(params, shared, record, key),
        params,
        workload.records(rng, batch),
        keys,
        jnp.ones(batch, bool),
    )


@pytest.mark.parametrize("workload", WORKLOADS.values(), ids=lambda w: w.name)
def test_without_a_clip_the_private_gradient_is_the_plain_one(workload):
    loss, *inputs = case(workload)
    plain = jax.jit(tasks.plain_gradient(loss))(*inputs)
    private = jax.jit(tasks.clipped_gradient(loss, clip_norm=np.inf))(*inputs)
    require_close(plain, private)


def require_close(plain, other):
    largest = max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(plain))
    assert largest > 0
    for expected, found in zip(jax.tree.leaves(plain), jax.tree.leaves(other), strict=True):
        # 170 roundings, for sums in another order; some gradients are nothing but roundings,
        # such as that of attention's key bias, hence the second scale.
        scale = max(float(jnp.abs(expected).max()), 1e-2 * largest)
        assert jnp.abs(found - expected).max() <= 1e-5 * scale


def test_a_rewritten_loss_is_the_same_loss():
    rewritten = [w for w in WORKLOADS.values() if w.rewritten is not None]
    assert [workload.name for workload in rewritten] == ["cnn-mnist"]
    for workload in rewritten:
        loss, *inputs = case(workload)
        other, *_ = case(dataclasses.replace(workload, loss=workload.rewritten))
        require_close(*(jax.jit(tasks.plain_gradient(one))(*inputs) for one in (loss, other)))


def test_the_plain_variational_step_optimises_what_tacit_does():
    (workload,) = (w for w in WORKLOADS.values() if w.guided is not None)
    method = tasks.method_of(workload, PoissonBatch(num_records=9, batch_size=3))
    assert isinstance(method, VI)
    objective = variational_objective(workload.guided, method.guide, 1, method.draws)
    params = drawn(np.random.default_rng(0), workload.init)
    named = {name: {"network": tree} for name, tree in params.items()}
    theirs = jax.eval_shape(objective.init, jax.random.key(0))
    assert jax.tree.map(jnp.shape, named) == jax.tree.map(jnp.shape, theirs)
    exact = jax.jit(jax.grad(objective.regulariser))(named, [])
    own = jax.jit(jax.grad(workload.divergence))(params)
    require_close(own, exact)


def small(**changes):
    return dataclasses.replace(mlp(8, batches={4: {"step_ratio": 1e9}}), num_records=50, **changes)


def steps(workload, batch, *, is_private):
    """A step, its first state, its key and its data."""
    data = workload.records(np.random.default_rng(0), workload.num_records)
    if not is_private:
        key = jax.random.key(0)
        return tasks.plain_step(workload, batch), workload.init(key), key, data
    sampling = PoissonBatch(num_records=workload.num_records, batch_size=batch)
    kernel = tasks.method_of(workload, sampling).build(tasks.model_of(workload))
    return loops.private_step(kernel), kernel.init(seeded_key(0)), seeded_key(1), data


@pytest.mark.parametrize("is_private", [False, True])
def test_steps_in_a_loop_are_those_that_are_dispatched(is_private):
    step, start, key, data = steps(small(), 4, is_private=is_private)
    state, compiled = start, jax.jit(step)
    for t in range(5):
        state = compiled(np.int32(t), key, state, data)
    given = jax.tree.map(jnp.copy, start)
    made = loops.loop_of(step)(np.int32(0), np.int32(5), key, given, data)
    # Some of what is given away is taken, in place.
    assert any(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), made, state)
    moved = [
        not np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(made), jax.tree.leaves(start), strict=True)
    ]
    assert any(moved)


def test_a_visit_makes_as_many_steps_as_it_says_one_after_the_other():
    made = []

    def step(t, key, state, data):
        jax.debug.callback(lambda t: made.append(int(t)), t, ordered=True)
        return state + data

    visit = loops.in_loop(step, jnp.zeros(()), jax.random.key(0), jnp.ones(()))
    counts = [len(visit(seconds)) for seconds in (0.0, 0.02, 0.02)]
    jax.effects_barrier()
    assert counts[0] == 1
    assert counts[2] > 1
    assert made == list(range(sum(counts)))


class Peer:
    """One that takes a minute for a step, and a second less in a loop."""

    versions = {"peer": "1.0"}  # noqa: RUF012

    def visit(self, way):
        return lambda seconds: [59e3 if way == "loop" else 60e3]


def test_a_row_has_every_ratio_and_a_verdict():
    row = rows.measure(small(), 4, {"jax_privacy": Peer(), "opacus_ghost": Peer()}, ONE_RUN)
    ms = row["ms"]
    assert row["step_ratio"] == ms["loop private"] / ms["loop plain"]
    assert row["dispatched_ratio"] == ms["dispatched private"] / ms["dispatched plain"]
    assert row["speedup_over"] == dict.fromkeys(PEERS) | {
        "jax_privacy": 59e3 / ms["loop private"],
        "opacus_ghost": 60e3 / ms["loop private"],
    }
    assert row["targets"]["step_ratio"] == 1e9
    assert set(row["missed"]) <= {"peak_memory_ratio"}
    missed = row | {"missed": ["step_ratio"], "targets": {"step_ratio": 0.001}}
    found = {"steps": [missed], "methods": [], "programs": []}
    assert "(missed: ≤ 0.001)" in page.SECTIONS["steps"](found)
    assert "59,000 ms, loop" in page.SECTIONS["peers"](found)
    said = page.SECTIONS["targets"](found)
    assert said.startswith("0 of 1 targets are met.")
    assert f"mlp-784-8-10, 4: private over plain: {row['step_ratio']:.2f}, aimed at ≤ 0.001" in said


def test_the_faster_of_two_plain_steps_counts():
    row = rows.measure(small(rewritten=small().loss), 4, {}, ONE_RUN)
    ms = row["ms"]
    assert row["step_ratio"] == ms["loop private"] / min(ms["loop plain"], ms["loop rewritten"])


def test_a_quick_run_writes_what_it_measured(monkeypatch, tmp_path, capsys):
    workload = small()
    monkeypatch.setattr(__main__, "WORKLOADS", {workload.name: workload})
    monkeypatch.setattr(__main__, "_ALL", [workload.name])
    monkeypatch.setattr(__main__, "_HERE", tmp_path / "benchmarks")
    monkeypatch.setattr("sys.argv", ["benchmarks", "--quick", "--only", workload.name])
    cores = os.sched_getaffinity(0)
    try:
        __main__.main()
    finally:
        os.sched_setaffinity(0, cores)
    found = json.loads((tmp_path / "build" / "bench" / "results.json").read_text())
    assert [row["workload"] for row in found["steps"]] == [workload.name]
    assert page.render(found) in capsys.readouterr().out


@pytest.fixture(scope="module")
def taken_apart():
    workload = small()
    sampling = PoissonBatch(num_records=50, batch_size=4)
    method, model = tasks.method_of(workload, sampling), tasks.model_of(workload)
    return method, model, workload.records(np.random.default_rng(0), 50)


def test_the_parts_of_a_step_add_up_to_it():
    found = profile.profile(small(), 4, ONE_RUN)
    assert set(found) == {*parts.PARTS, parts.STEP}
    assert sum(found[part] for part in parts.PARTS) == pytest.approx(found[parts.STEP])
    assert all(found[part] > 0 for part in ("draw", "gather", "noise", "update"))
    assert "| the step |" in profile.render_profile("small", 4, found)


def test_where_records_are_clipped_one_by_one_the_sum_has_no_stages(taken_apart, monkeypatch):
    monkeypatch.setattr(parts, "find_norm_plan", lambda *args: "a reason")
    assert set(parts.visits_of_parts(*taken_apart)) == {
        *("draw", "gather", "to the sum", "noise", "update", parts.STEP)
    }
    ms = {"draw": 1.0, "gather": 2.0, "to the sum": 5.0, "noise": 1.0, "update": 1.0, "step": 10.0}
    found = parts.parts_in(ms)
    assert found == {
        **{"draw": 1.0, "gather": 2.0, "sum": 3.0, "noise": 1.0, "update": 1.0},
        parts.LEFT: 2.0,
    }


def test_nothing_of_a_part_is_moved_out_of_its_loop(taken_apart):
    method, model, records = taken_apart
    data = model.init(jax.random.key(0)), records, method.release.sampling.draw(seeded_key(0))
    products = {}
    for name, stage in parts._stages(method.release, model).items():
        shapes = jax.eval_shape(stage, np.int32(0), seeded_key(0), data)
        lowered = loops.loop_of(lambda t, key, state, data, f=stage: f(t, key, data)).lower(
            np.int32(0), np.int32(1), seeded_key(0), shapes, data
        )
        inside, outside = lowered.compile().as_text().split("\nENTRY ")
        assert not re.search(r" (fusion|dot|call|convolution)\(", outside), name
        products[name] = len(re.findall(r" dot\(|matmul", inside))
    # Two forward and one backward, as the inputs have no gradient; then one for each kernel.
    assert products["gather"] == 0
    assert products["to derivatives"] == 3
    assert products["to the sum"] >= 5


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


def test_the_page_shows_what_was_measured():
    found = json.loads(page.RESULTS.read_text(encoding="utf-8"))
    text = page.PAGE.read_text(encoding="utf-8")
    assert renewed(text, page.SECTIONS, found) == text


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
    assert renewed(page, scaling_page.SECTIONS, scaling) == page


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
