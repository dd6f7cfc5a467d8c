import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data import CategoricalColumn, NumericColumn, Target
from tacit.data.columns import Scale
from tacit.errors import InvalidArgumentError

AGE = NumericColumn(name="age", low=20, high=80)
INCOME = NumericColumn(name="income", low=0, high=99, scale=Scale.LOG1P)
HOURS = NumericColumn(name="hours", low=0, high=100, knots=(20, 40))
CITY = CategoricalColumn(name="city", categories=("Oslo", "Rome"))
CODE = CategoricalColumn(name="code", categories=(3, 7))


@pytest.mark.parametrize(
    ("value", "feature"),
    [(20, -1), (50, 0), (80, 1), (19, -1), (1e30, 1), (np.inf, 1), (-np.inf, -1)],
)
def test_a_number_is_clipped_to_the_public_range_and_mapped_to_the_unit_interval(value, feature):
    assert AGE.encode(pd.Series([value])).tolist() == [[feature, 0]]


def test_the_log1p_scale_halves_the_range_where_the_logarithm_does():
    np.testing.assert_allclose(INCOME.encode(pd.Series([0, 9, 99]))[:, 0], [-1, 0, 1], atol=1e-6)


def test_knots_make_a_linear_model_piecewise_linear_in_the_value():
    values = np.linspace(0, 100, 41)
    heights = np.array([5.0, -1.0, 2.0, 8.0])  # at 0, 20, 40 and 100
    fitted = HOURS.encode(pd.Series(values))[:, :-1] @ heights
    np.testing.assert_allclose(fitted, np.interp(values, [0, 20, 40, 100], heights), atol=1e-5)


def test_knots_on_the_log1p_scale_are_given_in_units_of_the_column():
    column = NumericColumn(name="x", low=0, high=99, scale=Scale.LOG1P, knots=(9,))
    np.testing.assert_allclose(column.encode(pd.Series([0, 9, 99]))[:, :-1], np.eye(3), atol=1e-6)


@pytest.mark.parametrize("column", [AGE, INCOME, HOURS])
@pytest.mark.parametrize("missing", [pd.Series([np.nan]), pd.Series([None]), pd.Series([pd.NA])])
def test_a_missing_number_is_its_own_feature_and_nothing_else(column, missing):
    *values, indicator = column.encode(missing)[0].tolist()
    assert indicator == 1
    assert not any(values)


def test_numbers_may_come_in_any_numeric_dtype():
    for dtype in ("int8", "uint16", "float32", "Int64", "Float32", "bool"):
        assert AGE.encode(pd.Series([1, 0], dtype=dtype)).tolist() == [[-1, 0], [-1, 0]]
    assert AGE.encode(pd.Series([50, None], dtype="Int64")).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("missing", [None, np.nan, pd.NA, "?", "oslo", " Oslo"])
def test_unseen_and_missing_categories_share_the_last_slot(missing):
    encoded = CITY.encode(pd.Series(["Rome", missing, "Oslo"], dtype=object))
    assert encoded.tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


@pytest.mark.parametrize("dtype", ["object", "string", "category", None])
def test_text_categories_may_come_in_any_text_dtype(dtype):
    assert CITY.encode(pd.Series(["Rome", "Oslo"], dtype=dtype)).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", ["int64", "float64", "Int16", "category"])
def test_codes_may_come_in_any_numeric_dtype(dtype):
    assert CODE.encode(pd.Series([7, 3, 5], dtype=dtype)).tolist() == [
        [0, 1, 0],
        [1, 0, 0],
        [0, 0, 1],
    ]


def test_a_fractional_number_is_no_code():
    assert CODE.encode(pd.Series([3.5, np.nan])).tolist() == [[0, 0, 1], [0, 0, 1]]


def test_a_column_that_is_missing_throughout_needs_no_type():
    assert CITY.encode(pd.Series([np.nan, np.nan])).tolist() == [[0, 0, 1], [0, 0, 1]]


@given(st.lists(st.floats(width=64) | st.none(), min_size=1))
@pytest.mark.parametrize("column", [AGE, INCOME, HOURS])
def test_features_of_any_number_are_finite_and_have_norm_at_most_one(column, values):
    features = column.encode(pd.Series(values, dtype="float64"))
    assert features.shape == (len(values), len(column.feature_names))
    assert np.all(np.linalg.norm(features, axis=1) <= 1 + 1e-6)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        (AGE, ["35", "?"], r"'age' must hold numbers.*pandas\.to_numeric"),
        (AGE, [1 + 2j], "'age' must hold numbers"),
        (AGE, pd.to_datetime(["2020-01-01"]), "'age' must hold numbers"),
        (CITY, [1, 2], "'city' is declared with text; got dtype int64"),
        (CODE, ["3", "7"], "'code' is declared with whole numbers"),
    ],
)
def test_a_column_of_the_wrong_type_is_named_with_the_remedy(column, values, message):
    with pytest.raises(InvalidArgumentError, match=message):
        column.encode(pd.Series(values))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"low": 1, "high": 1}, "must increase"),
        ({"low": 2, "high": 1}, "must increase"),
        ({"low": 0, "high": 9, "knots": (3, 3)}, "must increase"),
        ({"low": 0, "high": 9, "knots": (9,)}, "must increase"),
        ({"low": 0, "high": 9, "knots": [3]}, "must be a tuple"),
        ({"low": 0, "high": float("inf")}, "high must be finite"),
        ({"low": float("nan"), "high": 1}, "low must be a number"),
        ({"low": -1, "high": 1, "scale": Scale.LOG1P}, "log1p scale needs low > -1"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        NumericColumn(name="x", **arguments)


@pytest.mark.parametrize("levels", [(), ("a", "a"), ("a", 1), (True, False), (1.5,), "ab", ["a"]])
def test_levels_are_a_tuple_of_distinct_strings_or_whole_numbers(levels):
    with pytest.raises(InvalidArgumentError, match="distinct"):
        CategoricalColumn(name="x", categories=levels)
    with pytest.raises(InvalidArgumentError, match="distinct"):
        Target(name="x", classes=levels)


def test_classes_are_numbered_in_the_order_of_the_public_list():
    assert Target(name="y", classes=("b", "a")).encode(pd.Series(["a", "b"])).tolist() == [1, 0]
    assert Target(name="y", classes=(-1, 1)).encode(pd.Series([1, -1])).tolist() == [1, 0]


def test_unknown_labels_are_counted_and_not_shown():
    target = Target(name="y", classes=("no", "yes"))
    with pytest.raises(InvalidArgumentError, match="2 of 3 labels") as caught:
        target.encode(pd.Series(["yes", "secret", None]))
    assert "secret" not in str(caught.value)


def test_one_class_is_not_enough():
    with pytest.raises(InvalidArgumentError, match="at least two"):
        Target(name="y", classes=("only",))


def test_a_column_needs_a_name():
    with pytest.raises(InvalidArgumentError, match="name must be"):
        CategoricalColumn(name="", categories=("a",))
