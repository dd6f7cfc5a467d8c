import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

from tacit.data import as_records
from tacit.errors import InvalidArgumentError

X = np.arange(12, dtype=np.float64).reshape(6, 2) + 1
Y = np.array([0, 1, 0, 1, 1, 0])
WEIGHT = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
PEOPLE = np.array(["cy", "al", "cy", "bo", "cy", "al"])


def assert_same(left, right):
    assert jax.tree.structure(left) == jax.tree.structure(right)
    for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


def test_one_row_is_one_record_with_weight_one_and_no_mask():
    records = as_records(X, Y)
    np.testing.assert_array_equal(records.x, X)
    np.testing.assert_array_equal(records.y, Y)
    np.testing.assert_array_equal(records.weight, np.ones(6))
    assert records.mask is None


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("float64", "float32"),
        ("float16", "float32"),
        ("int64", "int32"),
        ("uint8", "int32"),
        ("bool", "int32"),
    ],
)
def test_every_leaf_is_a_jax_array_of_32_bits(given, kept):
    records = as_records({"a": X.astype(given)}, Y.astype(given))
    for leaf in (records.x["a"], records.y):
        assert isinstance(leaf, jax.Array)
        assert leaf.dtype == kept
    assert records.weight.dtype == jnp.float32


def test_frames_series_lists_and_jax_arrays_mean_the_same_as_numpy_arrays():
    expected = as_records(X, Y, weight=WEIGHT)
    frame = pd.DataFrame(X, index=range(10, 16))
    assert_same(as_records(frame, pd.Series(Y), weight=pd.Series(WEIGHT)), expected)
    assert_same(as_records(jnp.asarray(X), Y.tolist(), weight=WEIGHT.tolist()), expected)


def test_the_structure_of_a_tree_of_inputs_is_kept():
    x = {"image": np.zeros((6, 4, 4)), "site": (np.zeros(6, int),)}
    assert jax.tree.structure(as_records(x, Y).x) == jax.tree.structure(x)


def test_the_rows_of_one_person_are_one_record_in_their_order():
    records = as_records(X, Y, weight=WEIGHT, groups=PEOPLE, max_rows=3)
    np.testing.assert_array_equal(
        records.x,
        [[X[0], X[2], X[4]], [X[1], X[5], [0, 0]], [X[3], [0, 0], [0, 0]]],
    )
    np.testing.assert_array_equal(records.y, [[0, 0, 1], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(records.weight, [[0.1, 0.3, 0.5], [0.2, 0.6, 0], [0.4, 0, 0]])
    np.testing.assert_array_equal(
        records.mask, [[True, True, True], [True, True, False], [True, False, False]]
    )


def test_a_person_with_too_many_rows_keeps_the_first_ones():
    records = as_records(X, Y, groups=PEOPLE, max_rows=2)
    np.testing.assert_array_equal(records.x[0], X[[0, 2]])
    assert int(records.mask.sum()) == 5


def test_shapes_follow_the_public_max_rows_and_not_the_data():
    records = as_records({"image": np.ones((6, 4, 4))}, Y, groups=PEOPLE, max_rows=7)
    assert records.x["image"].shape == (3, 7, 4, 4)
    assert records.y.shape == records.weight.shape == records.mask.shape == (3, 7)


def test_rows_of_one_person_are_never_split_and_none_is_lost():
    rng = np.random.default_rng(0)
    people = rng.integers(0, 40, 300)
    records = as_records(people[:, None], people, groups=people, max_rows=300)
    mask, x = np.asarray(records.mask), np.asarray(records.x)[..., 0]
    owners = [set(x[i][mask[i]].tolist()) for i in range(len(mask))]
    assert all(len(owner) == 1 for owner in owners)
    assert len(set().union(*owners)) == len(owners) == len(set(people.tolist()))
    assert mask.sum() == 300


def test_units_stand_in_the_order_of_their_first_row():
    records = as_records(X, Y, groups=PEOPLE, max_rows=1)
    np.testing.assert_array_equal(records.x[:, 0], X[[0, 1, 3]])


def test_interleaving_people_differently_changes_nothing_but_the_order_of_records():
    rng = np.random.default_rng(1)
    people = rng.integers(0, 12, 60)
    x, y = rng.normal(size=(60, 3)), rng.integers(0, 2, 60)
    # A stable sort by new numbers for the people keeps each person's rows in their order.
    order = np.argsort(rng.permutation(12)[people], kind="stable")
    before = as_records(x, y, groups=people, max_rows=4)
    after = as_records(x[order], y[order], groups=people[order], max_rows=4)
    position = {person: i for i, person in enumerate(pd.unique(people))}
    rearranged = jnp.array([position[person] for person in pd.unique(people[order])])
    assert not np.array_equal(rearranged, np.arange(rearranged.size))
    assert_same(jax.tree.map(lambda leaf: leaf[rearranged], before), after)


def test_changing_one_person_changes_that_record_alone():
    before = as_records(X, Y, groups=PEOPLE, max_rows=3)
    changed = X.copy()
    changed[PEOPLE == "al"] *= -9
    after = as_records(changed, Y, groups=PEOPLE, max_rows=3)
    differs = np.any(np.asarray(before.x) != np.asarray(after.x), axis=(1, 2))
    assert differs.tolist() == [False, True, False]


def test_one_row_per_person_is_the_plain_table_with_a_row_axis_and_a_full_mask():
    plain = as_records(X, Y, weight=WEIGHT)
    grouped = as_records(X, Y, weight=WEIGHT, groups=np.arange(6), max_rows=1)
    assert_same(jax.tree.map(lambda leaf: leaf[:, 0], grouped[:3]), plain[:3])
    assert grouped.mask.shape == (6, 1)
    assert bool(grouped.mask.all())


@pytest.mark.parametrize(
    "ids",
    [[2, 9, 2, 4, 2, 9], [2.5, 9.0, 2.5, 4.0, 2.5, 9.0], pd.Series(PEOPLE).astype("category")],
)
def test_ids_may_be_numbers_text_or_categories(ids):
    assert_same(
        as_records(X, Y, groups=ids, max_rows=3), as_records(X, Y, groups=PEOPLE, max_rows=3)
    )


def test_a_row_without_an_owner_is_refused():
    ids = np.array(["a", None, "b", "b", None, "a"], dtype=object)
    with pytest.raises(InvalidArgumentError, match="2 of 6 ids are missing"):
        as_records(X, Y, groups=ids, max_rows=2)


def test_ids_that_mix_numbers_and_text_are_refused_because_they_could_split_a_person():
    with pytest.raises(InvalidArgumentError, match="all of one kind"):
        as_records(X, Y, groups=[1, "1", 2, 2, 3, 3], max_rows=2)
    with pytest.raises(InvalidArgumentError, match="got int64 of shape"):
        as_records(X, Y, groups=np.ones((6, 1), np.int64), max_rows=2)


@pytest.mark.parametrize("gap", [None, np.nan, pd.NA])
def test_a_gap_in_a_list_of_ids_is_missing_and_not_an_owner(gap):
    with pytest.raises(InvalidArgumentError, match="1 of 6 ids are missing"):
        as_records(X, Y, groups=["a", gap, "b", "b", "c", "a"], max_rows=2)


def test_groups_and_max_rows_go_together():
    with pytest.raises(InvalidArgumentError, match=r"max_rows is required.*public knowledge"):
        as_records(X, Y, groups=PEOPLE)
    with pytest.raises(InvalidArgumentError, match="needs groups"):
        as_records(X, Y, max_rows=3)
    with pytest.raises(InvalidArgumentError, match="max_rows must be a whole number"):
        as_records(X, Y, groups=PEOPLE, max_rows=0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_rows_that_are_not_finite_are_counted_and_not_shown(bad):
    x = X.copy()
    x[[1, 4], 0] = bad
    with pytest.raises(InvalidArgumentError, match=r"x must be finite; 2 of 6 rows"):
        as_records(x, Y)
    with pytest.raises(InvalidArgumentError, match=r"y must be finite; 2 of 6 rows"):
        as_records(X, x[:, 0])


def test_rows_that_are_not_finite_pass_on_request():
    x = X.copy()
    x[1, 0] = np.nan
    assert np.isnan(as_records(x, Y, allow_non_finite=True).x[1, 0])


@pytest.mark.parametrize("bad", [-0.1, 1.1, np.nan, np.inf])
def test_weights_outside_the_public_range_are_counted_and_not_shown(bad):
    weight = np.where(np.arange(6) < 2, bad, 1.0)
    with pytest.raises(InvalidArgumentError, match=r"\[0, max_weight=1.0\]; 2 of 6"):
        as_records(X, Y, weight=weight, allow_non_finite=True)


def test_the_ends_of_the_range_of_weights_are_admitted():
    weight = np.array([0, 0.1, 1, 0, 0.1, 1]) * 0.7
    np.testing.assert_allclose(as_records(X, Y, weight=weight, max_weight=0.7).weight, weight)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": X[:5], "y": Y}, "x must have as many rows as y, 6; got 5"),
        ({"x": {"a": X, "b": X[:5]}, "y": Y}, "x must have as many rows as y, 6; got 5"),
        ({"x": X, "y": Y, "weight": WEIGHT[:5]}, "weight must have as many rows as y"),
        ({"x": X, "y": Y, "weight": WEIGHT[:, None]}, "weight must be one number per row"),
        ({"x": X, "y": Y, "groups": PEOPLE[:5], "max_rows": 1}, "groups must have as many rows"),
        ({"x": X, "y": 3}, "y must have one entry per row"),
        ({"x": X[:0], "y": Y[:0]}, "at least one; got shape"),
        ({"x": {}, "y": Y}, "at least one array"),
        ({"x": X.tolist(), "y": Y}, "turn them into arrays"),
        ({"x": X.astype(str), "y": Y}, "x must hold numbers.*Schema"),
        ({"x": X, "y": np.array(["a"] * 6)}, "y must hold numbers"),
        ({"x": X, "y": Y, "max_weight": 0.0}, "max_weight must be"),
        ({"x": X, "y": Y + 2**40}, "y must fit 32 bits; 6 of 6"),
        ({"x": np.full((6, 1), 2**31, np.uint32), "y": Y}, "x must fit 32 bits"),
    ],
)
def test_a_wrong_argument_is_named_with_the_remedy(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        as_records(**arguments)
