"""The promise of the engine, in integers: one record moves a clipped sum by at most the clip norm.

The pairs of batches are an adversary's (`neighbours`), and so are the tables of the attacks below:
on an engine that sums in floats, each of them told who was there.
"""

import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from privacy import neighbours
from privacy.neighbours import (
    CASES,
    SAMPLINGS,
    one_of,
    worst_ratio_of_releases,
    worst_ratios,
)
from tables.cases import RowsInMemory
from tacit import native
from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import SGLD, Plan, calibrate, fit
from tacit.inference.method import objective_of
from tacit.models import MLP, Bernoulli, GaussianPrior, Model, bayesian
from tacit.privacy import lattice
from tacit.privacy.budget import Budget
from tacit.privacy.clipping import book_keeping, contributions, tracing
from tacit.privacy.lattice import (
    Lattice,
    block_rows,
    gamma,
    largest_spread,
    materialised,
    nested_sum,
    raised,
    summing_error,
)
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rng import seeded_key
from tacit.tables import OnHost
from tacit.typing import Record


@pytest.mark.parametrize("name", CASES)
def test_no_record_of_an_adversary_moves_the_integers_further_than_promised(name):
    # 160 batches of each case, each beside three neighbours.
    ratios = worst_ratios(name, num_pairs=160, seed=0)
    assert ratios.max() < 1
    assert ratios.max() > 0.9  # pairs that move nothing would test nothing


@pytest.mark.parametrize("name", ["dense", "Gram", "joint", "convolution", "per layer"])
def test_nor_where_a_batch_goes_through_in_chunks_that_stay_in_the_cache(name, monkeypatch):
    sizes = []

    def noted(*arguments, **settings):
        sizes.append(best_chunk_size(*arguments, **settings))
        return sizes[-1]

    best_chunk_size = contributions.best_chunk_size
    monkeypatch.setattr(contributions, "_IN_CACHE", 500)
    monkeypatch.setattr(contributions, "_LEAST_ROWS", 5)
    monkeypatch.setattr(book_keeping, "best_chunk_size", noted)
    neighbours._compiled.cache_clear()  # or programs with other chunks would answer
    try:
        ratios = worst_ratios(name, num_pairs=160, seed=1)
    finally:
        neighbours._compiled.cache_clear()
    assert 1 < max(sizes) <= neighbours.CASES[name].num_records / 2
    assert 0.9 < ratios.max() < 1


# Every case with one way to draw a batch, and the slow ones with the others.
DRAWS = [
    pytest.param(name, draw, marks=[] if draw == one_of(name) else [pytest.mark.slow])
    for name in CASES
    for draw in SAMPLINGS
]


@pytest.mark.parametrize(("name", "draw"), DRAWS)
def test_no_record_of_an_adversary_moves_a_release_further_than_promised(name, draw):
    ratio = worst_ratio_of_releases(
        name, draws=[draw], as_table=lambda rows: rows, num_pairs=12, seed=1
    )
    assert 0.25 < ratio < 1 + 1e-6


# Rows are read in a thread of JAX's own, where a context for double precision does not reach.
@pytest.mark.parametrize("name", [n for n, case in CASES.items() if case.dtype == np.float32])
def test_nor_one_on_a_table_on_the_host(name):
    sources = []

    def on_host(rows):
        # One source, whose rows change, so that one compiled program serves all tables.
        sources.extend([] if sources else [RowsInMemory(rows)])
        sources[0].rows = rows
        return OnHost(sources[0])

    ratio = worst_ratio_of_releases(
        name, draws=[one_of(name)], as_table=on_host, num_pairs=12, seed=2
    )
    assert 0.25 < ratio < 1 + 1e-6


def difference(engine, loss, params, one, other):
    """How far two tables' sums are apart, in clip norms; with one key their noise is the same."""
    run = jax.jit(lambda records: engine.gradient(seeded_key(0), loss, params, records))
    leaves = [jax.tree.leaves(run(table)) for table in (one, other)]
    gaps = [np.asarray(a, np.float64) - np.asarray(b) for a, b in zip(*leaves, strict=True)]
    return math.sqrt(sum(float(np.sum(gap**2)) for gap in gaps)) / engine.clip_norm


def test_a_person_whose_rows_nearly_cancel_moves_the_sum_by_at_most_the_clip_norm():
    num_inputs, num_people = 12288, 16
    model = bayesian(
        MLP(num_inputs=num_inputs, hidden=(), num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=Bernoulli(),
    )
    params = jax.tree.map(jnp.zeros_like, model.init(seeded_key(0)))
    record_loss = objective_of(model).record_loss

    def table(first, second):
        x = np.full((2 * num_people, num_inputs), 0.5, np.float32)
        x[0], x[1] = first, second
        groups = np.repeat(np.arange(num_people), 2)
        return as_records(x, np.tile([0, 1], num_people), groups=groups, max_rows=2)

    engine = GaussianSum(
        sampling=FullBatch(num_records=num_people), clip_norm=0.1, noise_multiplier=0.01
    )
    loss = lambda params, record, key: record_loss(params, None, record, key)  # noqa: E731
    for nearly in (0.99261767, 0.9999, 1 - 2**-20):
        assert difference(engine, loss, params, table(1.0, nearly), table(0.0, 0.0)) <= 1


@pytest.mark.parametrize("absent", ["no weight", "no rows"])
@pytest.mark.parametrize("size", [0.0, 1e-30, 1e-6, 0.3, 1e6, math.inf])
def test_the_counter_beside_a_gradient_leaves_with_the_record(absent, size):
    num_people, engine = (
        4,
        GaussianSum(sampling=FullBatch(num_records=4), clip_norm=2.0, noise_multiplier=2.0**-12),
    )
    present = Record(
        x=jnp.full((num_people, 2, 3), 0.3).at[1].set(size),
        y=jnp.ones((num_people, 2)),
        weight=jnp.ones((num_people, 2)),
        mask=jnp.ones((num_people, 2)),
    )
    field = "weight" if absent == "no weight" else "mask"
    without = present._replace(**{field: jnp.ones((num_people, 2)).at[1].set(0.0)})

    def loss(params, person, key):
        rows = person.weight * person.mask
        return jnp.sum(jnp.where(rows > 0, person.x @ params - person.y, 0.0))

    def numbers(records):
        found = engine.counted_gradient(seeded_key(0), loss, jnp.ones(3), records)
        # All numbers of a release have the same noise.
        counters = found.shares * engine.noise_std / np.sqrt(found.variances)
        return np.concatenate([np.asarray(found.estimate, np.float64), counters])

    moved = np.linalg.norm(numbers(present) - numbers(without)) / engine.clip_norm
    # A record that says something has a counter, unless float32 cannot tell its norm from zero.
    assert 0.7 * (1e-18 < size < math.inf) <= moved <= 1 + 1e-5


def sum_of_products_that_cancel(shape):
    """The norm of the sum of 272 records, each clipped to one, and each the adversary's."""
    record = np.float32([1.37, 1.91]) * 2**25
    offset = -(record[0] * record[1])

    def loss(params, record, key):
        # Here product and sum are one operation in one loop of the compiled program, and two in
        # another: what is left is nothing at all, or all that rounding took away.
        return jnp.sum((record[0] * record[1] + params["offset"]) @ params["kernel"])

    engine = GaussianSum(sampling=FullBatch(num_records=272), clip_norm=1.0, noise_multiplier=1e-4)
    run = jax.jit(lambda params, records: engine.gradient(seeded_key(0), loss, params, records))
    params = {"offset": jnp.full(shape[0], offset), "kernel": jnp.zeros(shape)}
    total = run(params, jnp.asarray(np.tile(record, (272, 1))))["kernel"]
    return float(jnp.linalg.norm(total))


@pytest.mark.parametrize("shape", [(96, 40), (512, 512)], ids=str)
@pytest.mark.parametrize("is_native", [True, False])
def test_records_that_are_rounded_differently_in_two_places_are_clipped_all_the_same(
    shape, is_native, monkeypatch
):
    if is_native and not native.is_loaded():
        pytest.skip("the native kernel was not built")
    monkeypatch.setattr(native, "is_loaded", lambda: is_native)
    assert sum_of_products_that_cancel(shape) < 273


def test_with_a_barrier_that_the_compiler_drops_they_would_not_be(monkeypatch):
    for module in (book_keeping, contributions, tracing, lattice):
        monkeypatch.setattr(module, "materialised", lax.optimization_barrier)
    assert sum_of_products_that_cancel((96, 40)) > 1000 * 272


@pytest.mark.parametrize("shape", [(), (1,), (2,), (5,), (3, 4), (0,), (2, 0)], ids=str)
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "int32", "bool"])
def test_materialised_numbers_are_the_same_bits(shape, is_native, dtype, monkeypatch):
    is_native = is_native and native.is_loaded()
    monkeypatch.setattr(native, "is_loaded", lambda: is_native)
    with jax.enable_x64(True):
        is_float = "float" in dtype
        values = [1.5, -0.0, np.nan, -np.inf, 2.0**-130] if is_float else [1, 0, 0, 1]
        x = jnp.asarray(np.resize(values, shape), dtype)
        for run in (materialised, jax.jit(materialised), jax.jit(jax.vmap(materialised))):
            operand = x[None] if run is not materialised and not x.ndim else x
            assert np.asarray(run(operand)).tobytes() == np.asarray(operand).tobytes()


def ordered_tables(num_records=60_000):
    """A table whose float32 sum is stuck at a power of two, and its neighbour, whose is not."""
    power, value = 14, 0.9375
    count = int(2**power // value)
    unit = 2.0 ** (power - 23)
    pairs = (num_records - count - 1) // 2
    values = [value] * count + [2**power - count * value] + [0.625 * unit, -0.45 * unit] * pairs
    x = np.zeros((len(values), 4), np.float32)
    x[:, 0] = values
    without = x.copy()
    without[0] = 0
    return x, without


def test_the_order_of_a_full_batch_does_not_tell_a_record():
    x, without = ordered_tables()
    num_records = len(x)
    records = [as_records(rows, np.zeros(num_records, np.int32)) for rows in (x, without)]
    model = Model(
        init=lambda key: jnp.zeros(4),
        log_prior=lambda params: jnp.zeros(()),
        log_likelihood=lambda params, row, key: -jnp.dot(params, row.x),
        predict=lambda params, x, key: jnp.array([0.5, 0.5]),
    )
    engine = GaussianSum(
        sampling=FullBatch(num_records=num_records), clip_norm=1.0, noise_multiplier=1.0
    )
    loss = lambda params, row, key: jnp.dot(params, row.x)  # noqa: E731
    # Of 16 000 the sum is exact to 2^-10, as float32 is.
    assert difference(engine, loss, jnp.zeros(4), *records) <= 1 + 2**-9

    budget = Budget(epsilon=1.0, delta=1e-5)
    plan = calibrate(Plan(method=SGLD(release=engine, step_size=2.0), num_steps=1), budget)
    outputs = [
        [
            float(fit(plan, model, table, budget=budget, seed=seed).checkpoint.states.params[0, 0])
            for seed in range(20 * who, 20 * who + 20)
        ]
        for who, table in enumerate(records)
    ]
    # The means differ by at most the clip norm, of 3.7 standard deviations of the noise; an
    # engine that sums in order moves by 42.
    std = plan.method.release.noise_std
    assert abs(np.mean(outputs[0]) - np.mean(outputs[1])) < 1 + 5 * std * math.sqrt(2 / 20)


def test_two_limbs_hold_a_sum_that_does_not_fit_in_one():
    num_records = 10_000
    total = GaussianSum(
        sampling=FullBatch(num_records=num_records), clip_norm=1.0, noise_multiplier=1e-3
    )
    lattice = Lattice(rounding=1.0)
    assert lattice.num_limbs(num_records) == 2
    assert num_records * 2**lattice.exponent > 2**31
    rows = jnp.ones(num_records)
    found = total(seeded_key(0), lambda row, key: jnp.array([row, 0.0, -row]) / 2, rows)
    np.testing.assert_allclose(found, [num_records / 2, 0, -num_records / 2], rtol=1e-5, atol=0.01)


@pytest.mark.parametrize("clip_norm", [1e-6, 1.0, 1e6])
def test_a_traced_clip_norm_replaces_the_configured_one(clip_norm):
    rows = jnp.asarray(np.random.default_rng(0).normal(size=(40, 3)), jnp.float32)
    total = GaussianSum(sampling=FullBatch(num_records=40), clip_norm=1.0, noise_multiplier=0.5)
    configured = replace(total, clip_norm=clip_norm)
    query = lambda row, key: row  # noqa: E731
    traced = jax.jit(lambda c: total(seeded_key(3), query, rows, clip_norm=c))(clip_norm)
    np.testing.assert_allclose(traced, configured(seeded_key(3), query, rows), rtol=1e-5)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_traced_clip_norm_that_bounds_nothing_gives_nan(bad):
    total = GaussianSum(sampling=FullBatch(num_records=4), clip_norm=1.0, noise_multiplier=0.5)
    found = jax.jit(lambda c: total(seeded_key(0), lambda row, key: row, jnp.ones(4), clip_norm=c))(
        bad
    )
    assert jnp.isnan(found)


def test_blocks_and_bounds_are_as_stated():
    for positions in (1, 2, 3, 7, 25, 49, 128):
        rows = block_rows(positions)
        error = 2 * gamma(rows * positions + 9) * rows * largest_spread(positions)
        assert summing_error(positions, 1) == pytest.approx(error)
        assert error < 0.0201
    assert summing_error(1, 1) < 0.0104


@pytest.mark.parametrize("length", [3, 2048, 2049, 100_000])
def test_a_raised_sum_is_an_upper_bound_in_any_order(length):
    generator = np.random.default_rng(length)
    for scale in (0, 1, 6):
        terms = np.exp(scale * generator.normal(size=length)).astype(np.float32)
        for order in (terms, np.sort(terms), np.sort(terms)[::-1]):
            total, operations = nested_sum(jnp.asarray(order))
            exact = math.fsum(order.astype(np.float64))
            assert exact <= float(raised(total, operations)) <= exact * 1.001


def test_a_lattice_leaves_room_for_all_that_rounding_moves():
    for rounding in (1.0, 818.0, 4000.0, 16_000.0):
        for summing in (0.0, 0.008, 0.03):
            lattice = Lattice(rounding=rounding, summing=summing)
            moved = lattice.share * (1 + summing) + rounding * 2.0**-lattice.exponent
            assert moved < 1
            assert lattice.share > 1 - 2**-8 - summing - 2e-5


def test_limbs_are_carried_before_they_overflow():
    num_records = 600_000  # 4095 times as many are more than 32 bits hold
    total = GaussianSum(
        sampling=FullBatch(num_records=num_records), clip_norm=1.0, noise_multiplier=1e-3
    )
    # Just below a multiple of 2**12 units, so that every low limb is full.
    value = (2**17 - 1) / 2**18
    found = total(seeded_key(0), lambda row, key: row, jnp.full(num_records, value, jnp.float32))
    assert float(found) == pytest.approx(num_records * value, rel=1e-5)


def test_a_sum_of_more_numbers_than_its_integers_can_hold_is_refused():
    with pytest.raises(InvalidArgumentError, match="Release fewer than"):
        Lattice(rounding=2.0**15)
