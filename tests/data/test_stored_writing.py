"""Writing records: in chunks, in full or not at all, and never over something else."""

import errno
import os
import stat

import numpy as np
import pytest

from data.stored_tables import assert_same, rows, table, units
from tacit import InvalidArgumentError, TacitError
from tacit.data import open_records, write_records
from tacit.data.record_files import GrowingArray
from tacit.typing import Record


def chunked(records, sizes):
    start = 0
    for size in sizes:
        yield rows(records, slice(start, start + size))
        start += size


@pytest.mark.parametrize("sizes", [[50], [1, 49], [10] * 5, [3, 30, 17]])
def test_how_records_are_cut_into_chunks_leaves_no_trace(tmp_path, sizes):
    records = table(50)
    stored = write_records(chunked(records, sizes), tmp_path / "records", part_size=16)
    assert [len(part["y"]) for part in stored.parts] == [16, 16, 16, 2]
    assert_same(stored.read(np.arange(50)), rows(records, np.arange(50)))


def test_the_files_are_plain_numpy_arrays(tmp_path):
    records = table(5)
    write_records(chunked(records, [2, 3]), tmp_path / "records")
    np.testing.assert_array_equal(np.load(tmp_path / "records/part-00000/x.npy"), records.x)
    np.testing.assert_array_equal(np.load(tmp_path / "records/part-00000/y.npy"), records.y)


def test_a_file_keeps_its_header_when_it_grows_by_orders_of_magnitude(tmp_path):
    path = tmp_path / "y.npy"
    growing = GrowingArray(path, np.zeros((), np.int32))
    for _ in range(10):
        growing.append(np.ones(100_001, np.int32))
    growing.finish()
    assert np.load(path).sum() == 1_000_010


def test_only_the_owner_may_read_the_folder(tmp_path):
    write_records([table(3)], tmp_path / "records")
    assert stat.S_IMODE((tmp_path / "records").stat().st_mode) == 0o700


def failing(error):
    yield rows(table(5), slice(None))
    raise error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("no"), OSError(5, "read")])
def test_writing_that_is_interrupted_leaves_nothing(tmp_path, error):
    with pytest.raises(type(error)):
        write_records(failing(error), tmp_path / "records")
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays_until_the_new_folder_is_complete(tmp_path):
    write_records([table(3)], tmp_path / "records")
    with pytest.raises(KeyboardInterrupt):
        write_records(failing(KeyboardInterrupt()), tmp_path / "records", overwrite=True)
    assert open_records(tmp_path / "records").num_records == 3
    write_records([table(4)], tmp_path / "records", overwrite=True)
    assert open_records(tmp_path / "records").num_records == 4
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_of_records_is_replaced_only_on_request(tmp_path):
    write_records([table(3)], tmp_path / "records")
    with pytest.raises(InvalidArgumentError, match="holds records already"):
        write_records([table(4)], tmp_path / "records")


@pytest.mark.parametrize("overwrite", [False, True])
def test_another_folder_is_never_replaced(tmp_path, overwrite):
    (tmp_path / "thesis").mkdir()
    with pytest.raises(InvalidArgumentError, match="never replaced"):
        write_records([table(3)], tmp_path / "thesis", overwrite=overwrite)


def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(GrowingArray, "append", full)
    with pytest.raises(TacitError, match="No space left on device"):
        write_records([table(3)], tmp_path / "records")
    assert list(tmp_path.iterdir()) == []


def with_changed(**changes):
    plain = rows(table(4), slice(None))
    return plain._replace(**changes)


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (with_changed(weight=np.full(4, 2, np.float32)), "max_weight=1.0.; 4 of 4"),
        (with_changed(weight=np.full(4, np.nan, np.float32)), "max_weight=1.0.; 4 of 4"),
        (with_changed(x=np.full((4, 3), np.inf, np.float32)), "x must be finite; 4 of 4"),
        (with_changed(y=np.array([0, np.nan, 0, 0], np.float32)), "y must be finite; 1 of 4"),
        (with_changed(x=np.zeros((4, 3))), "x must be of dtype float32 or int32; got float64"),
        (with_changed(x=np.zeros((3, 3), np.float32)), "x must have one entry"),
        (with_changed(x=np.zeros((4, 2), np.float32)), "all chunks must have records of one kind"),
    ],
)
def test_each_chunk_is_checked_as_a_table_in_memory_would_be(tmp_path, chunk, message):
    with pytest.raises(InvalidArgumentError, match=message):
        write_records([table(4), chunk], tmp_path / "records")
    assert list(tmp_path.iterdir()) == []


def test_rows_that_are_not_finite_are_written_on_request(tmp_path):
    chunk = with_changed(x=np.full((4, 3), np.nan, np.float32))
    stored = write_records([chunk], tmp_path / "records", allow_non_finite=True)
    assert np.isnan(stored.read([0]).x).all()


def test_rows_and_units_do_not_mix(tmp_path):
    with pytest.raises(InvalidArgumentError, match="one kind"):
        write_records([units(), rows(units(max_rows=2), slice(None))], tmp_path / "records")


def test_nothing_to_write_is_an_error(tmp_path):
    with pytest.raises(InvalidArgumentError, match="at least one record"):
        write_records([], tmp_path / "records")


def test_inputs_without_names_cannot_be_stored(tmp_path):
    one = np.zeros(1, np.float32)
    with pytest.raises(InvalidArgumentError, match="Give each array a name"):
        write_records([Record((one, one), one, one)], tmp_path / "records")
