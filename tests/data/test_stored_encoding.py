"""Tables in files become the records that the whole table at once would be."""

import builtins

import numpy as np
import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from data.stored_tables import assert_same, rows
from estimators.tables import ILL, WEEKS, patients
from tacit import InvalidArgumentError
from tacit.data import (
    CategoricalColumn,
    NumericColumn,
    Schema,
    Target,
    encode_table,
    encode_to_folder,
)
from tacit.data.csv import read_csv, to_numbers, typed
from tacit.data.frames import read_frames, whole_units
from tacit.data.record_files import digest_of


@pytest.fixture
def files(tmp_path):
    """The same table as CSV and as Parquet in five row groups."""
    frame = patients(100)
    frame.loc[::7, "dose"] = np.nan
    frame.loc[::9, "city"] = None
    frame["weight"] = np.linspace(0, 1, 100)
    frame["person"] = np.repeat([f"p{i}" for i in range(20)], [1, 2, 3, 4, 15] * 4)
    frame["number"] = np.repeat(np.arange(20), [1, 2, 3, 4, 15] * 4)
    frame.to_csv(tmp_path / "data.csv", index=False)
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=23)
    assert parquet.ParquetFile(tmp_path / "data.parquet").num_row_groups == 5
    return tmp_path


def in_memory(files, schema, **options):
    frame = typed(read_csv(files / "data.csv"), schema)
    frame["weight"] = to_numbers(frame["weight"])
    return encode_table(frame, schema, **options)


def assert_stored(encoded, wanted):
    everything = np.arange(len(wanted.weight))
    assert encoded.records.num_records == len(everything)
    assert_same(encoded.records.read(everything), rows(wanted, everything))


OPTIONS = {
    "rows": {},
    "weights": {"weight": "weight"},
    "units": {"groups": "person", "max_rows": 3},
    "units by number": {"groups": "number", "max_rows": 20, "weight": "weight"},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
@pytest.mark.parametrize("schema", [ILL, WEEKS], ids=["classes", "numbers"])
@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
@pytest.mark.parametrize("chunk_rows", [7, 30, 1000])
def test_a_file_read_in_chunks_gives_the_records_of_the_whole_table(
    files, name, schema, options, chunk_rows
):
    encoded = encode_to_folder(
        [files / name], schema, files / "records", chunk_rows=chunk_rows, **options
    )
    assert_stored(encoded, in_memory(files, schema, **options))
    assert encoded.num_rows == 100


def test_a_parquet_file_may_have_any_name(files):
    (files / "data.parquet").rename(files / "data")
    encoded = encode_to_folder([files / "data"], ILL, files / "records")
    assert_stored(encoded, in_memory(files, ILL))


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_several_files_are_one_table_also_where_a_unit_is_in_two(files, options):
    frame = pd.read_parquet(files / "data.parquet")
    frame.iloc[:33].to_csv(files / "first.csv", index=False)
    frame.iloc[33:].to_parquet(files / "second.parquet")
    tables = [files / "first.csv", files / "second.parquet"]
    if options.get("groups") == "number":
        # Text and numbers that read the same are one id: a CSV file has text only.
        assert frame["number"].iloc[32] == frame["number"].iloc[33]
    encoded = encode_to_folder(tables, ILL, files / "records", chunk_rows=10, **options)
    assert_stored(encoded, in_memory(files, ILL, **options))


CODES = Schema(
    columns=(
        NumericColumn(name="text", low=0, high=10),
        NumericColumn(name="decimal", low=0, high=10),
        NumericColumn(name="flag", low=0, high=1),
        CategoricalColumn(name="code", categories=(1, 2)),
        CategoricalColumn(name="zip", categories=("1067", "10115")),
        CategoricalColumn(name="kind", categories=("a", "b")),
    ),
    target=Target(name="y", classes=(0, 1)),
)


def test_types_come_from_the_schema_whatever_the_file_declares(tmp_path):
    pa = pyarrow
    table = pa.table(
        {
            "text": pa.array(["3", "?", None, " 4.5"]),
            "decimal": pa.array([1, 2, None, 3], pa.decimal128(5, 2)),
            "flag": pa.array([True, None, False, True]),
            "code": pa.array([1, 2, None, 9], pa.int8()),
            "zip": pa.array([1067, 10115, None, 3], pa.int64()),
            "kind": pa.array(["a", None, "", "b"]).dictionary_encode(),
            "y": pa.array([0.0, 1.0, 1.0, 0.0]),
        }
    )
    parquet.write_table(table, tmp_path / "data.parquet", row_group_size=1)
    (tmp_path / "data.csv").write_text(
        "text,decimal,flag,code,zip,kind,y\n"
        "3,1,1,1,1067,a,0\n?,2,,2,10115,,1\n,,0,,,,1\n 4.5,3,1,9,3,b,0\n"
    )
    wanted = encode_table(typed(read_csv(tmp_path / "data.csv"), CODES), CODES)
    assert_stored(encode_to_folder([tmp_path / "data.parquet"], CODES, tmp_path / "a"), wanted)
    assert_stored(encode_to_folder([tmp_path / "data.csv"], CODES, tmp_path / "b"), wanted)


def test_row_groups_that_were_read_are_forgotten(tmp_path):
    frame = pd.DataFrame({"dose": np.random.default_rng(0).uniform(0, 10, 400_000)})
    frame["ill"] = np.where(frame.dose > 5, "yes", "no")
    frame.to_parquet(tmp_path / "data.parquet", row_group_size=10_000)
    schema = Schema(columns=ILL.columns[:1], target=ILL.target)
    before = pyarrow.total_allocated_bytes()
    held = [
        pyarrow.total_allocated_bytes()
        for _ in read_frames(tmp_path / "data.parquet", schema, chunk_rows=10_000)
    ]
    assert len(held) == 40
    assert max(held) - before < 2**20  # all groups together are 3.2 MB


def test_what_its_owner_should_know_is_counted_over_all_chunks(files):
    narrow = Schema(
        columns=(NumericColumn(name="age", low=40, high=50), ILL.columns[2]), target=ILL.target
    )
    outside = int((~pd.read_csv(files / "data.csv").age.between(40, 50)).sum())
    found = {
        encode_to_folder(
            [files / "data.csv"], narrow, files / str(chunk_rows), chunk_rows=chunk_rows
        ).remarks
        for chunk_rows in (9, 100)
    }
    assert found == {
        (f"column 'age': {outside} of 100 values lie outside [40, 50] and are clipped",)
    }


def test_progress_is_told_in_rows(files):
    told = []
    encode_to_folder(
        [files / "data.csv"], ILL, files / "records", chunk_rows=40, on_rows=told.append
    )
    assert told[-1] == 100
    assert told == sorted(told)
    assert len(told) == 3


def write(path, text):
    path.write_text(text)
    return path


def refused(*arguments, **options):
    with pytest.raises(InvalidArgumentError) as found:
        encode_to_folder(*arguments, **options)
    return str(found.value)


def test_a_wrong_number_is_located_in_the_whole_file(tmp_path):
    lines = ["dose,age,city,ill", *["1,20,Oslo,no"] * 10, "much,20,Oslo,no", "1,20,Oslo,no"]
    path = write(tmp_path / "data.csv", "\n".join(lines))
    message = refused([path], ILL, tmp_path / "records", chunk_rows=4)
    assert "data.csv" in message
    assert "the first in row 11" in message
    assert [file.name for file in tmp_path.iterdir()] == ["data.csv"]


def test_an_unknown_label_is_located(tmp_path):
    lines = ["dose,age,city,ill", *["1,20,Oslo,no"] * 10, "1,20,Oslo,perhaps"]
    path = write(tmp_path / "data.csv", "\n".join(lines))
    message = refused([path], ILL, tmp_path / "records", chunk_rows=4)
    assert "data.csv', up to row 11: column 'ill': 1 of" in message


@pytest.mark.parametrize("name", ["data.csv", "data.parquet"])
@pytest.mark.parametrize("option", ["weight", "groups"])
def test_a_column_that_is_missing_is_named_with_its_file(files, name, option):
    more = {"max_rows": 2} if option == "groups" else {}
    message = refused([files / name], ILL, files / "records", **{option: "colour"}, **more)
    assert name in message
    assert "lacks the columns 'colour'" in message


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = write(tmp_path / "data.parquet", "dose,age\n")
    assert f"{str(path)!r}: it must be a Parquet file" in refused([path], ILL, tmp_path / "records")
    missing = tmp_path / "other.parquet"
    assert "No such file" in refused([missing], ILL, tmp_path / "records")


def test_a_parquet_file_without_rows_is_refused(files):
    pd.read_parquet(files / "data.parquet").iloc[:0].to_parquet(files / "none.parquet")
    assert "no rows" in refused([files / "none.parquet"], ILL, files / "records")


@pytest.mark.parametrize(("column", "wanted"), [("dose", "numbers"), ("city", "text")])
def test_a_parquet_column_of_another_type_is_refused(files, column, wanted):
    frame = pd.read_parquet(files / "data.parquet")
    frame[column] = pd.Timestamp("2020-01-01")
    frame.to_parquet(files / "wrong.parquet")
    message = refused([files / "wrong.parquet"], ILL, files / "records")
    assert f"column {column!r} must hold {wanted}, as the schema says; the file declares" in message


def test_without_pyarrow_the_remedy_is_named(files, monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    message = refused([files / "data.parquet"], ILL, files / "records")
    assert "pip install 'tacit[parquet]'" in message


def test_a_unit_that_occurs_again_after_its_rows_ended_is_refused(tmp_path):
    people = ["a", "a", "b", "c", "d", "d", "a"]
    text = "\n".join(["dose,age,city,ill,who", *(f"1,20,Oslo,no,{who}" for who in people)])
    path = write(tmp_path / "data.csv", text)
    for chunk_rows in (1, 3, 100):
        message = refused(
            [path], ILL, tmp_path / "records", groups="who", max_rows=2, chunk_rows=chunk_rows
        )
        assert "1 units of column 'who' occur again" in message
        assert "Sort the table by 'who'" in message


def test_a_row_that_is_nobodys_is_refused(tmp_path):
    path = write(tmp_path / "data.csv", "dose,age,city,ill,who\n1,20,Oslo,no,a\n1,20,Oslo,no,\n")
    message = refused([path], ILL, tmp_path / "records", groups="who", max_rows=2)
    assert "1 of 2 ids are missing" in message


def test_of_a_unit_longer_than_many_chunks_only_the_rows_that_count_are_carried(monkeypatch):
    frames = [
        pd.DataFrame({"who": ["a"] * 10, "dose": range(10 * k, 10 * k + 10)}) for k in range(5)
    ]
    sizes = []

    def concat(parts, join=pd.concat):
        sizes.append(sum(map(len, parts)))
        return join(parts)

    monkeypatch.setattr(pd, "concat", concat)
    (found,) = whole_units(frames, "who", max_rows=4)
    assert list(found.dose) == [0, 1, 2, 3]
    assert sizes == [14] * 4


@pytest.mark.parametrize("options", [{"groups": "person"}, {"max_rows": 2}])
def test_groups_and_their_size_go_together(files, options):
    assert "go together" in refused([files / "data.csv"], ILL, files / "records", **options)


@pytest.mark.parametrize("tables", ["data.csv", []])
def test_tables_are_a_list(tmp_path, tables):
    assert "tables must be a list" in refused(tables, ILL, tmp_path / "records")


def test_a_folder_that_is_there_is_refused_before_anything_is_read(tmp_path):
    encode = [tmp_path / "no such file.csv"], ILL, tmp_path
    assert "never replaced" in refused(*encode)


def test_the_folder_remembers_its_schema(files):
    stored = encode_to_folder([files / "data.csv"], ILL, files / "records").records
    assert stored.schema_digest == digest_of(Schema.from_toml(ILL.to_toml()))
    assert stored.schema_digest != digest_of(WEEKS)


def test_only_equal_schemas_share_a_digest():
    dose, age, city = ILL.columns
    whole = Schema(
        columns=(NumericColumn(name="dose", low=0.0, high=10.0), age, city), target=ILL.target
    )
    assert whole == ILL
    assert digest_of(whole) == digest_of(ILL)
    others = [
        Schema(columns=(age, dose, city), target=ILL.target),
        Schema(columns=ILL.columns, target=ILL.target, max_norm=1.0),
        Schema(columns=(NumericColumn(name="dose", low=0, high=11), age, city), target=ILL.target),
        Schema(columns=ILL.columns, target=Target(name="ill", classes=("yes", "no"))),
    ]
    digests = {digest_of(schema) for schema in (ILL, *others)}
    assert len(digests) == 5
