"""Shards follow identities alone: they survive deletion, and a filled table tells no size."""

import jax.numpy as jnp
import numpy as np
import pytest

from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import assign_shards
from tacit.inference.ensemble import shard_records, shard_size
from tacit.typing import Record

IDS = [f"person {i}" for i in range(3000)]


def table(num_records):
    x = jnp.arange(1.0, num_records + 1)[:, None]
    return Record(x, jnp.arange(num_records), jnp.ones(num_records))


def test_deleting_and_reordering_people_moves_nobody():
    whole = dict(zip(IDS, assign_shards(IDS, 7, salt="a"), strict=True))
    left = list(reversed(IDS[::3]))
    assert list(assign_shards(left, 7, salt="a")) == [whole[name] for name in left]


def test_rows_of_one_person_share_a_shard():
    rows = assign_shards([*IDS[:50], *IDS[:50]], 4, salt="a")
    np.testing.assert_array_equal(rows[:50], rows[50:])


def test_shards_are_as_even_as_independent_throws():
    counts = np.bincount(assign_shards(IDS, 10, salt="a"), minlength=10)
    # Chi-squared with 9 degrees of freedom: mean 9, standard deviation 4.2; five of them.
    assert np.sum((counts - 300) ** 2 / 300) < 30


def test_another_salt_is_another_assignment():
    one, other = (assign_shards(IDS, 10, salt=salt) for salt in ("a", "b"))
    # Agreement is Binomial(3000, .1), standard deviation 16.
    assert abs(np.sum(one == other) - 300) < 5 * 16.5


def test_the_width_of_whole_numbers_does_not_matter_and_text_is_something_else():
    wide = assign_shards(np.arange(500), 9, salt="a")
    np.testing.assert_array_equal(assign_shards(np.arange(500, dtype=np.uint16), 9, salt="a"), wide)
    np.testing.assert_array_equal(assign_shards(list(range(500)), 9, salt="a"), wide)
    assert (assign_shards([str(i) for i in range(500)], 9, salt="a") != wide).any()


@pytest.mark.parametrize("ids", [[1, "1"], [1.0, 2.0], [True], [None], [], [[1], [2]]])
def test_ids_without_one_meaning_are_refused(ids):
    with pytest.raises(InvalidArgumentError, match="ids must be"):
        assign_shards(ids, 2, salt="a")


@pytest.mark.parametrize(("num_shards", "salt"), [(0, "a"), (2, 7)])
def test_an_impossible_assignment_is_refused(num_shards, salt):
    with pytest.raises(InvalidArgumentError, match=r"num_shards|salt"):
        assign_shards(["ann"], num_shards, salt=salt)


def test_every_record_is_in_its_own_shard_and_the_filling_weighs_nothing():
    shards = assign_shards(IDS[:100], 3, salt="a")
    sharded = shard_records(table(100), shards, num_shards=3, size=60)
    for shard in range(3):
        rows = sharded.x[60 * shard : 60 * (shard + 1), 0]
        expected = np.flatnonzero(shards == shard) + 1.0
        np.testing.assert_array_equal(rows[: len(expected)], expected)
        assert not rows[len(expected) :].any()
    assert sharded.weight.sum() == 100


def test_a_persons_rows_go_to_a_shard_together_and_the_filling_has_no_rows():
    groups = ["ann", "bob", "ann", "cy"]
    records = as_records(np.arange(4.0)[:, None], [0, 1, 0, 1], groups=groups, max_rows=2)
    sharded = shard_records(records, np.array([1, 0, 1]), num_shards=2, size=2)
    assert sharded.mask.sum(1).tolist() == [1, 0, 2, 1]


def test_the_room_suffices_for_hashed_shards_and_is_not_wasted():
    size = shard_size(3000, 10)
    assert 300 < size < 420
    for salt in "abcdefgh":
        assert np.bincount(assign_shards(IDS, 10, salt=salt)).max() <= size
    assert shard_size(5, 1) == 5


def test_a_shard_that_overflows_is_refused():
    with pytest.raises(InvalidArgumentError, match="at least 3"):
        shard_records(table(4), np.array([0, 0, 0, 1]), num_shards=2, size=2)


@pytest.mark.parametrize("shards", [[0, 1], [0, 1, 2, 2], [0, -1, 0, 0]])
def test_shards_that_do_not_fit_the_table_are_refused(shards):
    with pytest.raises(InvalidArgumentError, match="shards must give"):
        shard_records(table(4), np.array(shards), num_shards=2, size=4)
