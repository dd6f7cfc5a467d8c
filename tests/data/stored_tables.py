"""Small tables to be stored, and whether two are the same."""

import numpy as np

from tacit.data import as_records
from tacit.typing import Record


def table(num_records, num_columns=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_records, num_columns))
    return as_records(x, rng.integers(0, 2, num_records), weight=rng.uniform(size=num_records))


def units(num_rows=20, max_rows=3):
    rng = np.random.default_rng(1)
    return as_records(
        {"dose": rng.normal(size=(num_rows, 2)), "scan": rng.integers(0, 9, (num_rows, 2, 2))},
        rng.integers(0, 2, num_rows),
        groups=rng.integers(0, 8, num_rows),
        max_rows=max_rows,
    )


def rows(records, indices):
    def take(leaf):
        return np.asarray(leaf)[indices]

    x = records.x
    x = {name: take(leaf) for name, leaf in x.items()} if isinstance(x, dict) else take(x)
    mask = None if records.mask is None else take(records.mask)
    return Record(x, take(records.y), take(records.weight), mask)


def assert_same(found, wanted):
    assert type(found) is Record
    if isinstance(wanted.x, dict):
        assert list(found.x) == list(wanted.x)
        for name in wanted.x:
            np.testing.assert_array_equal(found.x[name], wanted.x[name], strict=True)
    else:
        np.testing.assert_array_equal(found.x, wanted.x, strict=True)
    for name in ("y", "weight", "mask"):
        if getattr(wanted, name) is None:
            assert getattr(found, name) is None
        else:
            np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), strict=True)
