"""Records on disk: rows come back as they were, in the order asked for, and nothing else does."""

import json
import os
import sys
import threading
import tracemalloc

import numpy as np
import pytest

from data.stored_tables import assert_same, rows, table, units
from tacit import InvalidArgumentError, TacitError, native
from tacit.data import open_records, write_records
from tacit.data.record_source import map_arrays


@pytest.mark.parametrize("records", [table(50), units()], ids=["rows", "units"])
@pytest.mark.parametrize("part_size", [1000, 7, 1])
def test_records_come_back_exactly_from_any_number_of_parts(tmp_path, records, part_size):
    stored = write_records([records], tmp_path / "records", part_size=part_size)
    num_records = len(records.weight)
    assert stored.num_records == num_records
    assert len(stored.parts) == -(-num_records // part_size)
    assert_same(stored.read(np.arange(num_records)), rows(records, np.arange(num_records)))


def test_rows_come_in_the_order_asked_for_and_as_often(tmp_path):
    records = table(40)
    stored = write_records([records], tmp_path / "records", part_size=9)
    asked = np.array([39, 0, 8, 9, 9, 38, 1, 39, 17], np.int32)
    assert_same(stored.read(asked), rows(records, asked))


def test_many_rows_keep_their_order(tmp_path):
    records = table(3000)
    stored = write_records([records], tmp_path / "records", part_size=1100)
    asked = np.random.default_rng(0).integers(0, 3000, 2000)
    assert_same(stored.read(asked), rows(records, asked))


def test_one_record_is_described_without_a_value(tmp_path):
    stored = write_records([units()], tmp_path / "records")
    assert stored.record.x["scan"].shape == (3, 2, 2)
    assert stored.record.x["scan"].dtype == np.int32
    assert stored.record.mask.shape == (3,)
    assert repr(stored) == f"StoredRecords({stored.num_records} records, 1 parts)"


def test_reading_nothing_gives_no_rows(tmp_path):
    stored = write_records([table(5)], tmp_path / "records")
    assert stored.read([]).x.shape == (0, 3)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 5], r"0\.\.4"),
        ([-1], r"0\.\.4"),
        ([[0]], "vector"),
        ([0.0], "whole numbers"),
        ([True], "whole numbers"),
    ],
)
def test_a_number_that_is_no_record_is_refused(indices, message):
    stored = map_arrays(np.zeros((5, 1), np.float32), np.zeros(5, np.int32))
    with pytest.raises(InvalidArgumentError, match=message):
        stored.read(np.array(indices))


def test_threads_read_at_once(tmp_path):
    records = table(5000)
    stored = write_records([records], tmp_path / "records", part_size=1024)
    wrong = []

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(20):
            asked = rng.integers(0, 5000, 700)
            if not np.array_equal(stored.read(asked).x, np.asarray(records.x)[asked]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("num_columns", [1, 3, 5000, 20_000])
@pytest.mark.parametrize("is_native", [True, False])
def test_rows_near_and_far_are_those_of_the_array(tmp_path, num_columns, is_native, monkeypatch):
    if is_native and not native.is_loaded():
        pytest.skip("the native kernel was not built")
    monkeypatch.setattr(native, "is_loaded", lambda: is_native)
    rng = np.random.default_rng(0)
    num_rows = 2**20 // num_columns
    values = rng.normal(size=(num_rows, num_columns)).astype(np.float32)
    np.save(tmp_path / "x.npy", values)
    stored = map_arrays(np.load(tmp_path / "x.npy", mmap_mode="r"), np.zeros(num_rows, np.int32))
    close = np.arange(num_rows - 40, num_rows)  # to the end of the file
    for asked in (close, np.repeat(close, 9), rng.integers(0, num_rows, 3000), close[:0]):
        np.testing.assert_array_equal(stored.read(asked).x, values[asked], strict=True)


def sparse(path, num_records, num_columns):
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(num_records, num_columns))
    return np.load(path, mmap_mode="r")


def resident():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":") for line in status)
    return int(lines["RssFile"].split()[0]) * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="the system says how much is resident")
def test_reading_takes_memory_for_what_is_read_only(tmp_path):
    x = sparse(tmp_path / "x.npy", 1_000_000, 50)  # 200 MB
    stored = map_arrays(x, np.broadcast_to(np.int32(0), (1_000_000,)))
    asked = np.random.default_rng(0).integers(0, 1_000_000, 4096)
    stored.read(asked)
    before = resident()
    tracemalloc.start()
    found = stored.read(asked)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    own = found.x.nbytes + found.y.nbytes + found.weight.nbytes
    assert peak < 3 * own + 2**20  # the bytes as read, the rows, and their places
    assert resident() - before < 2**22  # all of the table would be 200 MB


def mapped(path, mode="r"):
    """Ten rows after a header of odd length."""
    values = np.arange(20, dtype=np.float32)
    path.write_bytes(b"header!" + values.tobytes())
    return np.memmap(path, np.float32, mode, offset=7, shape=(10, 2))


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x,
        lambda x: x[3:],
        lambda x: x[2:9:3],
        lambda x: x[::-1],
        lambda x: x[:, ::-1],
        lambda x: x[:, 1:],
        lambda x: np.asarray(x)[4:],
        lambda x: x.reshape(5, 2, 2)[1:],
        np.asfortranarray,
    ],
)
@pytest.mark.parametrize("mode", ["r", "r+", "c"])
def test_any_view_of_a_map_gives_its_own_rows(tmp_path, view, mode):
    x = view(mapped(tmp_path / "x", mode))
    asked = np.array([len(x) - 1, 0, 1])
    stored = map_arrays(x, np.zeros(len(x), np.int32))
    np.testing.assert_array_equal(stored.read(asked).x, np.asarray(x)[asked], strict=True)


def test_values_that_are_in_no_file_are_read_from_the_map(tmp_path):
    x = mapped(tmp_path / "x", "c")
    x[2] = 7.0
    stored = map_arrays(x, np.zeros(10, np.int32))
    assert stored.read([2]).x.tolist() == [[7.0, 7.0]]


def test_values_that_were_just_written_are_read(tmp_path):
    x = mapped(tmp_path / "x", "r+")
    stored = map_arrays(x, np.zeros(10, np.int32))
    x[2] = 7.0
    assert stored.read([2]).x.tolist() == [[7.0, 7.0]]


def test_a_file_that_is_cut_while_it_is_in_use_is_an_error_and_no_crash(folder):
    stored = open_records(folder)
    path = folder / "part-00001" / "x.npy"
    os.truncate(path, path.stat().st_size - 4)
    with pytest.raises(TacitError, match=r"x\.npy became shorter"):
        stored.read([15])


@pytest.mark.skipif(sys.platform != "linux", reason="the system says which files are open")
def test_files_are_closed_when_nobody_needs_them(folder):
    before = len(os.listdir("/proc/self/fd"))
    stored = open_records(folder)
    assert len(os.listdir("/proc/self/fd")) > before
    del stored
    assert len(os.listdir("/proc/self/fd")) == before


def test_arrays_without_weights_count_each_row_once():
    stored = map_arrays(np.zeros((3, 1), np.float32), np.zeros(3, np.int32))
    assert stored.read([0, 2]).weight.tolist() == [1.0, 1.0]
    mask = np.array([[True, False]] * 3)
    x = np.zeros((3, 2, 1), np.float32)
    assert map_arrays(x, np.zeros((3, 2), np.int32), mask=mask).read([1]).weight.shape == (1, 2)


F32, I32 = np.float32, np.int32


@pytest.mark.parametrize(
    ("x", "y", "weight", "message"),
    [
        (np.zeros((3, 1)), np.zeros(3, I32), None, "x must be of dtype float32 or int32"),
        (np.zeros((3, 1), F32), np.zeros(3), None, "y must be of dtype float32 or int32"),
        (np.zeros((3, 1), F32), np.zeros(3, I32), np.zeros(3), "weight must be of dtype float32"),
        (np.zeros((2, 1), F32), np.zeros(3, I32), None, "x must have one entry"),
        (np.zeros((3, 1), F32), np.zeros(3, I32), np.zeros((3, 1), F32), "weight must have"),
        (np.zeros((0, 1), F32), np.zeros(0, I32), None, "at least one record"),
        ([[0.0]], np.zeros(1, I32), None, "x must be an array or a dictionary"),
        ({"a/b": np.zeros((1, 1), F32)}, np.zeros(1, I32), None, "letters, digits"),
        ({}, np.zeros(1, I32), None, "empty tree"),
    ],
)
def test_arrays_that_are_no_table_are_refused(x, y, weight, message):
    with pytest.raises(InvalidArgumentError, match=message):
        map_arrays(x, y, weight=weight)


def test_arrays_on_a_device_are_refused():
    records = table(3)
    with pytest.raises(InvalidArgumentError, match="as_records"):
        map_arrays(records.x, np.zeros(3, np.int32))


@pytest.fixture
def folder(tmp_path):
    write_records([table(20)], tmp_path / "records", part_size=8)
    return tmp_path / "records"


def changed(folder, change):
    path = folder / "records.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def test_a_folder_without_records_says_how_to_make_one(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"no records\.json.*tacit encode"):
        open_records(tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"no records\.json"):
        open_records(tmp_path / "nowhere")


def test_a_truncated_file_is_named(folder):
    path = folder / "part-00001" / "x.npy"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(TacitError, match=r"part-00001/x\.npy .*truncated.*encode the table again"):
        open_records(folder)


def test_an_empty_file_is_named(folder):
    (folder / "part-00000" / "y.npy").write_bytes(b"")
    with pytest.raises(TacitError, match=r"part-00000/y\.npy .*truncated"):
        open_records(folder)


def test_a_file_that_would_run_code_is_not_opened(folder):
    np.save(folder / "part-00000" / "y.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(TacitError, match=r"part-00000/y\.npy "):
        open_records(folder)


def test_a_missing_part_is_named(folder):
    (folder / "part-00002").rename(folder / "part-2")
    with pytest.raises(TacitError, match=r"part-00002/x\.npy .*missing.*Copy the folder again"):
        open_records(folder)


@pytest.mark.parametrize(
    "other", [np.zeros((8, 3)), np.zeros((8, 2), np.float32), np.zeros((7, 3), np.float32)]
)
def test_a_file_of_another_kind_or_size_is_named(folder, other):
    np.save(folder / "part-00000" / "x.npy", other)
    with pytest.raises(TacitError, match=r"part-00000/x\.npy .* instead of float32 of \(8, 3\)"):
        open_records(folder)


@pytest.mark.parametrize("version", [0, 2, None])
def test_another_version_is_refused_with_the_remedy(folder, version):
    changed(folder, lambda document: document.update(version=version))
    with pytest.raises(TacitError, match=r"records\.json is of version .* Encode the table again"):
        open_records(folder)


def test_a_changed_description_is_noticed(folder):
    changed(folder, lambda document: document["parts"].pop())
    with pytest.raises(TacitError, match=r"records\.json is damaged: it was changed"):
        open_records(folder)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "other"}', "\udcff"])
def test_a_description_of_something_else_is_refused(folder, text):
    (folder / "records.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(TacitError, match=r"records\.json is damaged"):
        open_records(folder)


def test_the_description_says_that_the_folder_is_private_and_holds_no_value(folder):
    document = json.loads((folder / "records.json").read_text())
    assert "private records" in document["private"]
    assert set(document) == {
        "format", "private", "version", "num_records", "leaves", "parts", "schema_digest", "digest",
    }  # fmt: skip
