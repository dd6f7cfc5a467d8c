import math
import tomllib
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.data import CategoricalColumn, NumericColumn, NumericTarget, Schema, Target
from tacit.data.columns import Scale
from tacit.data.schema import toml_of
from tacit.errors import InvalidArgumentError

SCHEMA = Schema(
    columns=(
        NumericColumn(name="age", low=17, high=90, knots=(30, 50)),
        NumericColumn(name="gain", low=0, high=99999.5, scale=Scale.LOG1P),
        CategoricalColumn(name="city", categories=("Oslo", "Rome")),
    ),
    target=Target(name="ill", classes=("no", "yes")),
)


def table(num_rows, seed=0):
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.choice([16.0, 20.0, 44.0, 95.0, np.nan], num_rows),
            "gain": rng.exponential(5000, num_rows),
            "city": rng.choice(["Oslo", "Rome", "?"], num_rows),
            "ill": rng.choice(["no", "yes"], num_rows),
        }
    )


def test_features_follow_the_order_of_the_columns_and_have_names():
    frame = pd.DataFrame({"city": ["Rome"], "gain": [99999.5], "age": [40], "unused": [1]})
    features = dict(zip(SCHEMA.feature_names, SCHEMA.encode(frame)[0].tolist(), strict=True))
    assert features == {
        "age@17": 0.0,
        "age@30": 0.5,
        "age@50": 0.5,
        "age@90": 0.0,
        "age=(missing)": 0.0,
        "gain": 1.0,
        "gain=(missing)": 0.0,
        "city=Oslo": 0.0,
        "city=Rome": 1.0,
        "city=(other)": 0.0,
    }
    assert SCHEMA.encode(frame).dtype == np.float32


def test_a_row_is_encoded_without_regard_to_the_other_rows():
    frame = table(50)
    together = SCHEMA.encode(frame)
    alone = np.vstack([SCHEMA.encode(frame.iloc[[i]]) for i in range(50)])
    np.testing.assert_array_equal(together, alone)
    others = table(50, seed=1)
    others.iloc[7] = frame.iloc[7]
    np.testing.assert_array_equal(SCHEMA.encode(others)[7], together[7])


def test_permuting_the_rows_permutes_the_features():
    frame, order = table(50), np.random.default_rng(2).permutation(50)
    shuffled = frame.iloc[order]
    np.testing.assert_array_equal(SCHEMA.encode(shuffled), SCHEMA.encode(frame)[order])
    np.testing.assert_array_equal(
        SCHEMA.encode_target(shuffled), SCHEMA.encode_target(frame)[order]
    )


def test_an_empty_table_has_no_rows_and_all_features():
    assert SCHEMA.encode(table(3).iloc[:0]).shape == (0, len(SCHEMA.feature_names))


def test_rows_obey_the_norm_bound_and_some_reach_it():
    norms = np.linalg.norm(SCHEMA.encode(table(500)), axis=1)
    assert SCHEMA.norm_bound == math.sqrt(3)
    assert norms.max() <= SCHEMA.norm_bound + 1e-6
    extreme = pd.DataFrame({"age": [10], "gain": [0], "city": ["Bonn"]})
    assert np.linalg.norm(SCHEMA.encode(extreme)) == pytest.approx(SCHEMA.norm_bound)


def test_max_norm_rescales_every_feature_by_one_public_constant():
    unit = replace(SCHEMA, max_norm=1.0)
    assert unit.norm_bound == 1.0
    np.testing.assert_allclose(
        unit.encode(table(20)), SCHEMA.encode(table(20)) / math.sqrt(3), rtol=1e-6
    )


def test_features_need_no_target_column():
    assert SCHEMA.encode(table(4).drop(columns="ill")).shape == (4, 10)


def test_columns_that_are_missing_or_repeated_are_named():
    frame = table(3)
    with pytest.raises(InvalidArgumentError, match="lacks the columns 'age', 'city'"):
        SCHEMA.encode(frame[["gain", "ill"]])
    with pytest.raises(InvalidArgumentError, match="lacks the columns 'ill'"):
        SCHEMA.encode_target(frame.drop(columns="ill"))
    with pytest.raises(InvalidArgumentError, match="repeats the columns 'age'"):
        SCHEMA.encode(pd.concat([frame, frame[["age"]]], axis=1))


def test_an_array_is_not_a_table():
    with pytest.raises(InvalidArgumentError, match=r"DataFrame; got ndarray.*as_records"):
        SCHEMA.encode(np.zeros((2, 3)))


def test_a_column_cannot_be_both_feature_and_target():
    with pytest.raises(InvalidArgumentError, match="repeated: city"):
        replace(SCHEMA, target=Target(name="city", classes=("Oslo", "Rome")))


def test_a_schema_needs_columns_and_a_positive_norm():
    with pytest.raises(InvalidArgumentError, match="at least one column"):
        replace(SCHEMA, columns=())
    with pytest.raises(InvalidArgumentError, match="max_norm must be"):
        replace(SCHEMA, max_norm=0.0)


@pytest.mark.parametrize("max_norm", [None, 1.0, 2])
def test_a_schema_survives_the_way_through_toml(max_norm):
    schema = replace(SCHEMA, max_norm=max_norm)
    again = Schema.from_toml(schema.to_toml())
    assert again == schema
    assert hash(again) == hash(schema)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(names, st.lists(names, min_size=2, unique=True), st.floats(-1e300, 1e300), names)
def test_any_name_category_and_number_survives_the_way_through_toml(city, levels, low, ill):
    if len({city, ill, "x"}) < 3:
        return
    schema = Schema(
        columns=(
            CategoricalColumn(name=city, categories=tuple(levels)),
            NumericColumn(name="x", low=low, high=np.nextafter(low, np.inf)),
        ),
        target=Target(name=ill, classes=tuple(levels)),
    )
    assert Schema.from_toml(schema.to_toml()) == schema


TARGET = '[target]\nname = "y"\nclasses = ["a", "b"]\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[target", "not valid TOML"),
        (TARGET, "the schema has wrong keys: missing columns"),
        (TARGET + "nmae = 3\n[columns.x]", r"\[target\] has wrong keys: unknown nmae"),
        ("columns = 3\n" + TARGET, "columns must be tables"),
        (TARGET + "[columns]\nx = 3", r"\[columns.x\] must be a table"),
        (TARGET + "[columns.x]\nlow = 1", r"\[columns.x\] has wrong keys: missing high"),
        (TARGET + "[columns.x]\nlow = 1\nhigh = 2\nknot = [1.5]", "unknown knot"),
        (TARGET + "[columns.x]\nlow = 1\nhigh = 2\nscale = 'log'", "must be one of linear, log1p"),
        (TARGET + "[columns.x]\nlow = 1\nhigh = 2\nknots = 1.5", "expected a list"),
        (TARGET + "[columns.x]\nlow = '1'\nhigh = 2", "low must be a number"),
        (TARGET + "[columns.x]\ncategories = ['a']\nlow = 1", "unknown low"),
    ],
)
def test_a_wrong_schema_file_is_refused_with_the_place(text, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Schema.from_toml(text)


def test_the_writer_of_toml_agrees_with_pythons_reader():
    document = {"a": 1, "b": [1.5, 'x\n"\x7f\\é😀'], "t": {"u": {"c d": 1e300}, "empty": {}}}
    assert tomllib.loads(toml_of(document)) == document


def test_short_lists_are_written_on_one_line_and_long_ones_are_not():
    document = {"knots": [0.5, 2], "none": [], "names": [f"a name, {i}\n" for i in range(20)]}
    text = toml_of(document)
    assert text.startswith("knots = [0.5, 2]\nnone = []\nnames = [\n")
    assert max(map(len, text.splitlines())) <= 96
    assert tomllib.loads(text) == document


def test_the_writer_of_toml_writes_numpy_numbers_as_numbers():
    assert toml_of({"a": np.float64(0.1), "b": np.int64(3)}) == "a = 0.1\nb = 3\n"


def test_the_writer_of_toml_refuses_what_it_does_not_know():
    with pytest.raises(TypeError, match="not TOML serializable"):
        toml_of({"a": None})


WEEKS = Schema(
    columns=(NumericColumn(name="dose", low=0, high=10),),
    target=NumericTarget(name="weeks", low=20, high=45),
)


def test_a_numeric_target_is_clipped_scaled_and_comes_back():
    frame = pd.DataFrame({"weeks": [20.0, 32.5, 45.0, 99.0, -np.inf]})
    scaled = WEEKS.encode_target(frame)
    assert scaled.tolist() == [-1.0, 0.0, 1.0, 1.0, -1.0]
    assert WEEKS.target.decode(scaled).tolist() == [20.0, 32.5, 45.0, 45.0, 20.0]


def test_a_schema_with_a_numeric_target_survives_toml():
    assert Schema.from_toml(WEEKS.to_toml()) == WEEKS


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("low = 1", r"\[target\] has wrong keys: missing high"),
        ("low = 1\nhigh = 2\nclasses = [1, 2]", r"unknown classes"),
        ("low = 2\nhigh = 2", "low must be below high"),
        ("low = 0\nhigh = inf", "high must be finite"),
    ],
)
def test_a_wrong_numeric_target_is_refused(target, message):
    text = f'[target]\nname = "y"\n{target}\n[columns.x]\nlow = 0\nhigh = 1\n'
    with pytest.raises(InvalidArgumentError, match=message):
        Schema.from_toml(text)


@pytest.mark.parametrize("values", [[1.0, None], ["a", "b"]])
def test_numeric_targets_that_are_missing_or_text_are_refused(values):
    with pytest.raises(InvalidArgumentError, match="weeks"):
        WEEKS.encode_target(pd.DataFrame({"weeks": values}))


def test_what_needs_classes_refuses_a_numeric_target():
    with pytest.raises(InvalidArgumentError, match="must have classes here"):
        _ = WEEKS.class_target
    assert SCHEMA.class_target == SCHEMA.target
