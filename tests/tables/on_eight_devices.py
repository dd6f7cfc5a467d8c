"""Tables on eight devices of one process; ``test_shards`` runs this where there are eight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tacit
from privacy import neighbours
from tables import cases
from tacit import native
from tacit.inference.ensemble import shard_records, shard_size
from tacit.privacy import noise
from tacit.rng import seeded_key
from tacit.tables import OnHost, device_mesh, distribute

SAMPLINGS = {
    "poisson": tacit.PoissonBatch(num_records=cases.NUM_RECORDS, batch_size=40),
    "full": tacit.FullBatch(num_records=cases.NUM_RECORDS),
    "fixed": tacit.FixedBatch(num_records=cases.NUM_RECORDS, batch_size=40),
}


def spread(table=cases.RECORDS, /, **sizes):
    return distribute(table, device_mesh(**sizes))


@pytest.fixture(scope="module")
def in_memory():
    return cases.fitted(cases.RECORDS, cases.plan())


def test_there_are_eight_devices():
    assert len(jax.devices()) == 8


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("noise_multiplier", [0.0, 2.0])
def test_a_release_is_the_same_on_any_number_of_shards(name, noise_multiplier):
    release = cases.release(SAMPLINGS[name], noise_multiplier)
    alone = cases.gradient(release, cases.RECORDS)
    for num_shards in (1, 8) if name == "poisson" else (4,):
        found = cases.gradient(release, spread(records=num_shards))
        # The noise is the same to the last bit; blocks of other records are rounded otherwise.
        assert cases.largest_difference(alone, found) <= 1e-4


def test_what_is_rounded_record_by_record_is_the_same_to_the_last_bit_on_any_number_of_shards():
    release = cases.release(SAMPLINGS["poisson"])

    def total(records):
        return jax.jit(lambda: release(seeded_key(0), lambda record, key: record.x, records))()

    for num_shards in (1, 4, 8):
        found = total(spread(records=num_shards))
        np.testing.assert_array_equal(total(cases.RECORDS), found)


def test_a_query_is_summed_over_shards():
    total = tacit.GaussianSum(sampling=SAMPLINGS["full"], clip_norm=1.0, noise_multiplier=0.0)
    found = total(seeded_key(0), lambda record, key: record.weight / 2, spread())
    assert float(found) == pytest.approx(cases.NUM_RECORDS / 2)


def test_a_batch_that_a_shard_has_no_room_for_is_drawn_again(monkeypatch):
    release = cases.release(noise_multiplier=0.0)
    sizes = []
    for least_room in (1000, 11):
        monkeypatch.setattr("tacit.tables.base.room_in_shard", lambda num_rows, rate: least_room)  # noqa: B023
        keys = jax.random.split(seeded_key(0), 50)
        counts = jax.vmap(
            lambda key: release(key, lambda record, key: record.weight, spread(records=4))
        )(keys)
        sizes.append(np.asarray(counts) * release.sampling.inclusion_rate)
    np.testing.assert_allclose(sizes, np.round(sizes), atol=1e-3)
    # Four shards of at most eleven hold fewer than the 46 that a batch has room for.
    assert sizes[1].max() <= 44 < sizes[0].max()


@pytest.mark.parametrize("num_shards", [1, 4])
def test_noise_is_drawn_once_whatever_the_number_of_shards(num_shards):
    size = 40_000
    total = tacit.GaussianSum(sampling=SAMPLINGS["full"], clip_norm=1.0, noise_multiplier=3.0)
    records = spread(records=num_shards)
    found = jax.jit(lambda key: total(key, lambda record, key: jnp.zeros(size), records))(
        seeded_key(5)
    )
    # The variance of a sample of 40 000 normals is within 5 of its standard deviations.
    assert float(jnp.var(found)) == pytest.approx(9.0, rel=5 * np.sqrt(2 / size))
    alone = total(seeded_key(5), lambda record, key: jnp.zeros(size), cases.RECORDS)
    np.testing.assert_array_equal(found, alone)


def test_a_device_makes_the_noise_of_its_own_slice_only(monkeypatch):
    monkeypatch.setattr(native, "_library", None)
    jax.clear_caches()
    lengths = []

    def counted(key, start, length, *, num_words):
        lengths.append((length, num_words))
        return original(key, start, length, num_words=num_words)

    original = noise.words_between
    monkeypatch.setattr(noise, "words_between", counted)
    release = cases.release(SAMPLINGS["full"])
    jax.jit(lambda data: release(seeded_key(0), lambda record, key: jnp.zeros(4000), data)).lower(
        spread(records=8)
    )
    assert set(lengths) == {(2000 // 8, 4 * 2000)}


@pytest.mark.skipif(not native.is_loaded(), reason="no native kernel")
def test_a_device_asks_the_kernel_for_the_noise_of_its_own_slice_only():
    jax.clear_caches()
    release = cases.release(SAMPLINGS["full"])
    text = (
        jax.jit(lambda data: release(seeded_key(0), lambda record, key: jnp.zeros(4000), data))
        .lower(spread(records=8))
        .as_text()
    )
    calls = [line for line in text.splitlines() if "custom_call @tacit_noise" in line]
    assert calls
    for line in calls:
        assert "num_columns = 2000" in line
        assert line.rstrip().endswith("-> tensor<2x250xf32>")


def test_what_is_made_of_a_table_with_fillings_may_not_be_closed_over():
    records = spread()  # 203 records in 208 rows
    doubled = records.rows.x * 2
    release = cases.release(SAMPLINGS["full"])
    with pytest.raises(tacit.errors.CrossRecordError, match="closes over an array"):
        release(seeded_key(0), lambda record, key: record.x + doubled.sum(axis=0), records)
    model = cases.MODEL._replace(log_prior=lambda params: jnp.sum(doubled), spec=None)
    with pytest.raises(tacit.errors.CrossRecordError, match="closes over an array"):
        tacit.fit(cases.plan(), model, records, budget=cases.BUDGET, seed=0)


def test_one_record_moves_a_sum_over_shards_by_at_most_the_clip():
    release = cases.release(SAMPLINGS["full"], noise_multiplier=0.0)

    @jax.jit
    def sum_over(records):
        return release(seeded_key(0), lambda record, key: record.x * 100.0, records)

    def total(records):
        return sum_over(spread(records, records=4))

    for bad in (jnp.nan, 1e30, 7.0):
        changed = cases.RECORDS._replace(x=cases.RECORDS.x.at[77].set(bad))
        zeroed = cases.RECORDS._replace(x=cases.RECORDS.x.at[77].set(0.0))
        assert float(jnp.linalg.norm(total(changed) - total(zeroed))) <= 1.0 + 1e-4


@pytest.mark.parametrize("name", SAMPLINGS)
def test_with_noise_one_record_moves_a_gradient_over_shards_by_at_most_the_clip(name):
    # With one key both gradients have the same batch and the same noise.
    release = cases.release(SAMPLINGS[name], noise_multiplier=0.01)

    def weighted_loss(params, record, key):
        return record.weight * cases.record_loss(params, record, key)

    @jax.jit
    def gradient(records):
        return release.gradient(seeded_key(3), weighted_loss, cases.PARAMS, records)

    for index in (0, 77, 202):
        zeroed = cases.RECORDS._replace(weight=cases.RECORDS.weight.at[index].set(0.0))
        for bad in (jnp.nan, 1e30, 50.0, 1e-30):
            changed = cases.RECORDS._replace(x=cases.RECORDS.x.at[index].set(bad))
            tables = (spread(table, records=4) for table in (changed, zeroed))
            one, other = (gradient(table) for table in tables)
            gap = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b), one, other)
            norm = np.sqrt(sum(np.sum(leaf**2) for leaf in jax.tree.leaves(gap)))
            assert norm * release.sampling.inclusion_rate <= 1.0 + 1e-5


@pytest.mark.parametrize("name", neighbours.CASES)
def test_no_record_of_an_adversary_moves_a_release_over_shards_further_than_promised(name):
    ratio = neighbours.worst_ratio_of_releases(
        name,
        draws=[neighbours.one_of(name)],
        as_table=lambda rows: distribute(rows, device_mesh(records=4)),
        num_pairs=12,
        seed=3,
    )
    assert 0.25 < ratio < 1 + 1e-6


@pytest.mark.parametrize(
    "sizes",
    [{"records": 2}, {"records": 8}, {"records": 2, "chains": 2}, {"records": 2, "parameters": 2}],
    ids=str,
)
def test_a_fit_is_the_same_on_any_mesh(in_memory, sizes):
    found = cases.fitted(spread(**sizes), cases.plan())
    cases.assert_same_states(found, in_memory, atol=cases.ROUNDING)
    assert found.statement.epsilon == in_memory.statement.epsilon


@pytest.mark.parametrize("num_shards", [1, 4])
def test_a_fit_is_the_same_on_a_table_on_the_host(in_memory, num_shards):
    source = cases.RowsInMemory(cases.RECORDS)
    records = OnHost(source) if num_shards == 1 else spread(OnHost(source), records=num_shards)
    found = cases.fitted(records, cases.plan(), chunk_steps=4)
    cases.assert_same_states(found, in_memory, atol=0.0 if num_shards == 1 else cases.ROUNDING)


def test_shards_behind_the_end_of_a_table_on_the_host_read_nothing_beyond_it():
    source = cases.RowsInMemory(jax.tree.map(lambda leaf: leaf[:9], cases.RECORDS))
    source.num_records = 9  # on eight devices of two records each: the last three own nothing
    for sampling in (
        tacit.FullBatch(num_records=9),
        tacit.PoissonBatch(num_records=9, batch_size=4),
    ):
        release = cases.release(sampling, noise_multiplier=0.0)
        alone = cases.gradient(release, jax.tree.map(jnp.asarray, source.rows))
        found = cases.gradient(release, spread(OnHost(source)))
        assert cases.largest_difference(alone, found) <= 1e-4


def test_states_stay_cut_among_the_devices_that_share_parameters(monkeypatch):
    shapes = []

    def noted(self, *arguments):
        original(self, *arguments)
        kernel = self._states.params["network"]["dense_0"]["kernel"]
        shapes.append({part.data.shape for part in kernel.addressable_shards})

    original = tacit.inference.chains.Chains.take_on
    monkeypatch.setattr(tacit.inference.chains.Chains, "take_on", noted)
    cases.fitted(spread(records=2, parameters=4), cases.plan(num_steps=2))
    assert shapes[-1] == {(2, 5, 2)}  # two chains of 5 x 8, cut in four


def test_a_run_goes_on_with_another_number_of_shards(in_memory):
    checkpoints = []
    cases.fitted(spread(records=4), cases.plan(), on_chunk=checkpoints.append, chunk_steps=3)
    again = [
        cases.fitted(records, cases.plan(), resume=checkpoints[0])
        for records in (cases.RECORDS, spread(records=2))
    ]
    cases.assert_same_states(*again, atol=cases.ROUNDING)


def test_members_of_an_ensemble_are_shared_among_devices():
    size = shard_size(cases.NUM_RECORDS, 4)
    sharded = shard_records(
        cases.RECORDS, np.arange(cases.NUM_RECORDS) % 4, num_shards=4, size=size
    )
    sampling = tacit.PoissonBatch(num_records=size, batch_size=10)
    member = tacit.SGLD.fixed_noise(release=cases.release(sampling), step_size=1e-3)
    plan = tacit.Plan(method=tacit.Ensemble(member=member, num_shards=4), num_steps=3)
    alone = cases.fitted(sharded, plan)
    cases.assert_same_states(cases.fitted(spread(sharded, records=4), plan), alone)
    with pytest.raises(tacit.InvalidArgumentError, match="whole members on each device"):
        cases.fitted(spread(sharded, records=3), plan)
    source = cases.RowsInMemory(sharded)
    source.num_records = plan.method.num_records
    for on_host in (OnHost(source), spread(OnHost(source), records=4)):
        with pytest.raises(tacit.InvalidArgumentError, match="an Ensemble has its table in memory"):
            cases.fitted(on_host, plan)
    assert source.asked == []


def test_predictions_are_the_same_on_many_devices(in_memory):
    x = np.asarray(cases.RECORDS.x)[:37]
    alone = tacit.predict(in_memory.posterior, x)
    for shape, axes in (((8,), ("inputs",)), ((8,), ("draws",)), ((4, 2), ("inputs", "draws"))):
        mesh = jax.make_mesh(shape, axes)
        found = tacit.predict(in_memory.posterior, x, mesh=mesh, batch_size=20)
        for a, b in zip(alone, found, strict=True):
            np.testing.assert_allclose(a, b, atol=2e-6)


def test_meshes_that_do_not_fit_are_refused():
    with pytest.raises(tacit.InvalidArgumentError, match=r"num_chains=3 must be a multiple of 2"):
        cases.fitted(spread(records=2, chains=2), cases.plan(num_chains=3))
    with pytest.raises(tacit.InvalidArgumentError, match='an axis "records"'):
        distribute(cases.RECORDS, jax.make_mesh((2,), ("data",)))
    with pytest.raises(tacit.InvalidArgumentError, match="at most 8"):
        device_mesh(records=3, chains=3)
    with pytest.raises(tacit.InvalidArgumentError, match='axes "inputs" or "draws"'):
        tacit.predict(cases.fitted(cases.RECORDS, cases.plan(2)).posterior, np.ones((1, 5)),
                      mesh=jax.make_mesh((2,), ("data",)))  # fmt: skip
