"""The fingerprint of a table does not depend on where the table is."""

import numpy as np
import pytest

from tacit.data import as_records
from tacit.data.record_source import map_arrays
from tacit.privacy.ledger.file import fingerprint_of
from tacit.tables import OnHost

SALT = b"salt"


def on_host(x, y=None):
    y = np.zeros(len(x), np.int32) if y is None else y
    return OnHost(map_arrays(np.asarray(x, np.float32), y))


def test_a_table_on_the_host_looks_as_it_does_in_memory():
    x = np.arange(12.0).reshape(6, 2)
    in_memory = fingerprint_of(as_records(x, np.zeros(6, int)), salt=SALT)
    assert in_memory is not None
    assert fingerprint_of(on_host(x), salt=SALT) == in_memory
    assert fingerprint_of(on_host(x + 1), salt=SALT) != in_memory
    assert fingerprint_of(on_host(x), salt=b"other") != in_memory


class Counting:
    """A source that tells how many rows were read of it."""

    def __init__(self, source):
        self.source, self.num_read = source, 0
        self.num_records, self.record = source.num_records, source.record

    def read(self, indices):
        self.num_read += len(indices)
        return self.source.read(indices)


@pytest.fixture
def _all_tables_are_large(monkeypatch):
    monkeypatch.setattr("tacit.privacy.ledger.file._LARGEST_READ_WHOLE", 0)


@pytest.mark.usefixtures("_all_tables_are_large")
def test_of_a_large_table_some_rows_are_looked_at():
    x = np.arange(20_000.0)[:, None]
    source = Counting(on_host(x).source)
    print_of_all = fingerprint_of(OnHost(source), salt=SALT)
    assert source.num_read == 4096
    assert fingerprint_of(on_host(x), salt=SALT) == print_of_all
    assert fingerprint_of(on_host(x + 1), salt=SALT) != print_of_all
    assert fingerprint_of(on_host(x[:-1]), salt=SALT) != print_of_all


@pytest.mark.usefixtures("_all_tables_are_large")
def test_a_table_of_another_size_looks_different_even_where_all_rows_are_alike():
    short, long = (fingerprint_of(on_host(np.zeros((n, 1))), salt=SALT) for n in (5000, 5001))
    assert short != long
