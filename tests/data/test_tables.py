import numpy as np
import pandas as pd
import pytest

from tacit.data import CategoricalColumn, NumericColumn, Schema, Target, encode_table
from tacit.errors import InvalidArgumentError

SCHEMA = Schema(
    columns=(
        NumericColumn(name="dose", low=0, high=10),
        CategoricalColumn(name="site", categories=("north", "south")),
    ),
    target=Target(name="ill", classes=("no", "yes")),
)
FRAME = pd.DataFrame(
    {
        "dose": [0.0, 5.0, np.nan, 10.0],
        "site": ["north", "south", "?", None],
        "ill": ["no", "yes", "yes", "no"],
        "person": ["p", "q", "p", "p"],
        "trust": [1.0, 0.5, 0.0, 1.0],
    },
    index=[9, 9, 3, 1],
)


def test_a_table_becomes_features_class_numbers_and_unit_weights():
    records = encode_table(FRAME, SCHEMA)
    np.testing.assert_array_equal(records.x, SCHEMA.encode(FRAME))
    assert records.y.tolist() == [0, 1, 1, 0]
    assert records.weight.tolist() == [1, 1, 1, 1]
    assert records.mask is None


def test_weights_and_owners_are_columns_of_the_table():
    records = encode_table(FRAME, SCHEMA, weight="trust", groups="person", max_rows=2)
    features = SCHEMA.encode(FRAME)
    np.testing.assert_array_equal(records.x[0], features[[0, 2]])
    np.testing.assert_array_equal(records.x[1], [features[1], np.zeros(5)])
    assert records.weight.tolist() == [[1, 0], [0.5, 0]]
    assert records.mask.tolist() == [[True, True], [True, False]]


def test_max_weight_is_the_callers_public_bound():
    with pytest.raises(InvalidArgumentError, match="2 of 4"):
        encode_table(FRAME, SCHEMA, weight="trust", max_weight=0.5)


@pytest.mark.parametrize("argument", ["weight", "groups"])
def test_a_column_that_is_not_there_is_named(argument):
    with pytest.raises(InvalidArgumentError, match="lacks the columns 'nope'"):
        encode_table(FRAME, SCHEMA, **{argument: "nope"})


def test_an_unknown_label_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"1 of 4 labels.*Correct the class list"):
        encode_table(FRAME.assign(ill=["no", "yes", "yes.", "no"]), SCHEMA)


def test_garbage_in_the_features_still_gives_finite_records():
    frame = FRAME.assign(dose=[np.inf, -np.inf, 1e308, np.nan], site=["", None, "x", "north"])
    assert np.isfinite(encode_table(frame, SCHEMA).x).all()
