"""Tables on the host: what a step draws is known before it runs, and read ahead of it."""

import gc
import threading
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tacit
from tables import cases
from tacit.inference import chains
from tacit.inference.compilation import compiled_kernel
from tacit.privacy.ledger.file import fingerprint_of
from tacit.rng import seeded_key
from tacit.tables import OnHost, distribute
from tacit.tables.base import Batch, room_in_shard
from tacit.tables.on_host import fetch


def hmc_plan():
    full = tacit.FullBatch(num_records=cases.NUM_RECORDS)
    release = tacit.GaussianSum(sampling=full, clip_norm=1.0, noise_multiplier=20.0)
    method = tacit.HMC(gradient=release, ratio=release, step_size=1e-2, num_leapfrog=2)
    return tacit.Plan(method=method, num_steps=2)


def feed_of(plan, records):
    kernel = compiled_kernel(plan.method, cases.MODEL).kernel
    states = jax.eval_shape(kernel.init, seeded_key(0))
    return chains.feed_of(records, kernel, states, num_chains=plan.num_chains)


def test_chunks_are_read_while_others_are_computed():
    source = cases.RowsInMemory(cases.RECORDS)
    threads = []
    original = source.read

    def read(indices):
        threads.append(threading.current_thread())
        return original(indices)

    source.read = read
    cases.fitted(OnHost(source), cases.plan(num_steps=8), chunk_steps=2)
    assert len(threads) == 4  # one for each chunk, all of its steps and chains at once
    assert threading.main_thread() not in threads


def test_only_drawn_records_are_read():
    source = cases.RowsInMemory(cases.RECORDS)
    plan = cases.plan(num_steps=8, num_chains=1)
    cases.fitted(OnHost(source), plan, chunk_steps=8)
    assert sum(source.asked) == 8 * plan.method.release.sampling.capacity


def test_chunks_are_so_short_that_what_is_read_ahead_fits(monkeypatch):
    plan = cases.plan(num_steps=8, num_chains=1)
    row_bytes = 4 * (5 + 1 + 1) + 8
    per_step = plan.method.release.sampling.capacity * row_bytes
    monkeypatch.setattr(chains, "_MAX_BYTES", 3 * per_step)
    source = cases.RowsInMemory(cases.RECORDS)
    assert feed_of(plan, OnHost(source)).max_steps == 3
    cases.fitted(OnHost(source), plan)
    assert max(source.asked) <= 3 * plan.method.release.sampling.capacity


def test_a_method_that_draws_inside_of_a_loop_reads_when_it_asks():
    records = OnHost(cases.RowsInMemory(cases.RECORDS))
    assert feed_of(hmc_plan(), records).max_steps is None
    assert feed_of(cases.plan(), records).max_steps is not None
    found, alone = (cases.fitted(each, hmc_plan()) for each in (records, cases.RECORDS))
    cases.assert_same_states(found, alone)


def test_a_release_on_a_table_on_the_host_is_that_in_memory():
    release = cases.release()
    found = cases.gradient(release, OnHost(cases.RowsInMemory(cases.RECORDS)))
    assert cases.largest_difference(found, cases.gradient(release, cases.RECORDS)) == 0.0


def test_a_batch_that_was_not_fetched_gives_no_sum():
    table = OnHost(cases.RowsInMemory(cases.RECORDS))
    drawn = Batch(np.array([[[[3, 1, 7]]]]), np.array([[[[True, True, False]]]]))
    ahead = fetch(table, drawn, first_step=5, rate=0.1).at(jnp.array(0), jnp.array(5))

    def gathered(indices):
        batch = Batch(jnp.array(indices), jnp.array([True, True, False]))
        return ahead.gather(batch, seeded_key(1), rate=0.1)

    rows, own, is_known = gathered([3, 1, 7])
    assert is_known
    assert own.mask.tolist() == [True, True, False]
    np.testing.assert_array_equal(rows.x[:2], cases.RECORDS.x[jnp.array([3, 1])])
    assert not gathered([3, 2, 7]).is_known


def test_a_release_on_a_batch_that_was_not_fetched_is_not_a_number():
    table = OnHost(cases.RowsInMemory(cases.RECORDS))
    release = cases.release()
    drawn = release.sampling.draw(seeded_key(8))
    batches = jax.tree.map(lambda leaf: np.asarray(leaf)[None, None, None], drawn)
    ahead = fetch(table, batches, first_step=0, rate=0.2).at(jnp.array(0), jnp.array(0))
    found = release(seeded_key(0), lambda record, key: record.x, ahead)
    assert bool(jnp.isnan(found).all())


def test_reading_that_fails_ends_the_run_with_its_own_error():
    source = cases.RowsInMemory(cases.RECORDS)

    def read(indices):
        raise OSError("the disk is gone")

    source.read = read
    with pytest.raises(OSError, match="the disk is gone"):
        cases.fitted(OnHost(source), cases.plan())


def test_a_table_is_given_back_when_nobody_holds_it_any_more():
    def use_up(use):
        source = cases.RowsInMemory(cases.RECORDS)
        use(OnHost(source))
        return weakref.ref(source)

    release = cases.release()
    used = [
        use_up(lambda records: cases.fitted(records, cases.plan(num_steps=4))),
        use_up(lambda records: jax.block_until_ready(cases.gradient(release, records))),
    ]
    gc.collect()
    assert [reference() for reference in used] == [None, None]


def test_an_interrupted_run_leaves_no_thread_behind():
    def interrupt(checkpoint):
        raise KeyboardInterrupt

    before = threading.enumerate()
    records = OnHost(cases.RowsInMemory(cases.RECORDS))
    with pytest.raises(KeyboardInterrupt) as held:  # and with it all that the run had at hand
        cases.fitted(records, cases.plan(), chunk_steps=2, on_chunk=interrupt)
    assert threading.enumerate() == before
    del held


@pytest.mark.parametrize(("num_rows", "rate"), [(1000, 0.01), (10**7, 1e-4), (50, 0.9)])
def test_a_shard_lacks_room_once_in_two_to_the_64_draws(num_rows, rate):
    room = room_in_shard(num_rows, rate)
    assert stats.binom.sf(room, num_rows, rate) <= 2.0**-64
    assert room == num_rows or stats.binom.sf(room - 1, num_rows, rate) > 2.0**-64 / 2


def test_the_whole_table_has_room_in_a_full_batch():
    assert room_in_shard(17, 1.0) == 17


def test_a_table_of_another_length_is_refused_before_it_is_read():
    source = cases.RowsInMemory(jax.tree.map(lambda rows: rows[1:], cases.RECORDS))
    with pytest.raises(tacit.InvalidArgumentError, match="records has 202 rows"):
        cases.fitted(OnHost(source), cases.plan())
    assert source.asked == []


def test_a_spread_table_shows_the_same_fingerprint_as_in_memory():
    spread = distribute(cases.RECORDS)
    assert fingerprint_of(spread, salt=b"s") == fingerprint_of(cases.RECORDS, salt=b"s")


def test_a_model_that_closes_over_a_spread_table_is_refused():
    spread = distribute(cases.RECORDS)
    model = cases.MODEL._replace(log_prior=lambda params: jnp.sum(spread.rows.x), spec=None)
    with pytest.raises(tacit.errors.CrossRecordError, match="closes over an array"):
        tacit.fit(cases.plan(), model, spread, budget=cases.BUDGET, seed=0)
