"""Arguments: what has a row for each record is private, however it was passed."""

import gc

import jax.numpy as jnp
import numpy as np
import numpyro
import pandas as pd
import pytest

from models.programs.zoo import logistic
from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import signature_of, split_arguments

x = np.arange(8.0).reshape(4, 2)
y = np.arange(4)


def test_rows_are_private_by_position_by_keyword_and_inside_containers():
    split = split_arguments((x, {"age": y}), {"y": [y, None], "n": 10, "name": "a", "fn": abs})
    assert split.num_records == 4
    assert split.names == ("argument 0", "argument 1['age']", "y[0]")
    args, kwargs = split.build([leaf[:1] for leaf in split.records])
    np.testing.assert_array_equal(args[0], x[:1])
    np.testing.assert_array_equal(args[1]["age"], y[:1])
    np.testing.assert_array_equal(kwargs["y"][0], y[:1])
    assert (kwargs["y"][1], kwargs["n"], kwargs["name"], kwargs["fn"]) == (None, 10, "a", abs)


def test_a_public_table_is_constant_and_records_are_not_kept():
    features = jnp.ones((3, 5))
    table = jnp.full((4, 2), 7.25)
    split = split_arguments((table,), {"features": features}, public=("features",))
    build = split.build
    _, kwargs = build([jnp.zeros((1, 2))])
    assert kwargs["features"] is features
    del split
    kept = [cell.cell_contents for cell in build.__closure__]
    assert not any(each is table for each in gc.get_referents(*kept))


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((x,), {"y": y[:3]}, r"y has shape \(3,\) but there are 4 records.*public=\('y',\)"),
        ((x, [1.0, 2.0, 3.0, 4.0]), {}, "list with one number for each of the 4 records"),
        ((x,), {"y": {"a": (1, 2, 3, 4)}}, r"y\['a'\] is a tuple with one number for each"),
        ((x, pd.DataFrame({"a": y})), {}, "y is a DataFrame, which may hold records"),
        ((x, np.array(["a", "b", "c", "d"])), {}, "must hold numbers"),
        ((), {"n": 3}, "no argument is an array"),
        ((x,), {"public": 1}, "public names no argument"),
    ],
)
def test_what_only_the_caller_can_know_is_refused(args, kwargs, message):
    public = ("gs",) if "public" in kwargs else ()
    with pytest.raises(InvalidArgumentError, match=message):
        split_arguments(args, kwargs, public=public, signature=signature_of(logistic))


def test_a_public_table_that_comes_first_is_named_as_what_was_counted():
    with pytest.raises(InvalidArgumentError, match=r"4 is the length of 'table'.*=\('table',\)"):
        split_arguments((), {"table": x, "rows": np.ones((9, 3))})
    split = split_arguments((), {"table": x, "rows": np.ones((9, 3))}, public=("table",))
    assert split.num_records == 9
    # Where the caller gave the number, no argument is to blame for it.
    with pytest.raises(InvalidArgumentError) as refusal:
        split_arguments((x,), {"y": y}, num_records=5)
    assert "is the length of" not in str(refusal.value)


def test_a_string_is_no_collection_of_names():
    with pytest.raises(InvalidArgumentError, match="public must be a collection of names"):
        split_arguments((x,), {"y": y}, public="y")


def test_another_number_of_records_leaves_nothing_private():
    with pytest.raises(InvalidArgumentError, match="may be a public table or a part of the rec"):
        split_arguments((x,), {"y": y}, num_records=5)


def test_handlers_do_not_hide_a_programs_signature():
    wrapped = numpyro.handlers.block(numpyro.handlers.scale(scale=2.0)(logistic), hide=["a"])
    assert list(signature_of(wrapped).parameters) == ["x", "y", "num_records"]
