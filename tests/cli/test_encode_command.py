"""``tacit encode``, and ``tacit fit`` on what it wrote."""

import json
import os
import signal

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file

from cli.tables import ILL, TINY, WEEKS, refused, tacit, write_patients
from tacit.data import encode_table, open_records, write_records
from tacit.data.csv import read_csv, typed
from tacit.inference.run import Charges


@pytest.fixture
def study(tmp_path):
    write_patients(tmp_path)
    return tmp_path


def encode(folder, *more, table="data.csv", code=0):
    return tacit(
        "encode", folder / table, "--schema", folder / "schema.toml",
        "--output", folder / "records", *more, code=code,
    )  # fmt: skip


def fit_arguments(folder, table, *more):
    return (
        "fit", folder / table, "--schema", folder / "schema.toml", "--epsilon", 5,
        "--output", folder / "run", *TINY, *more,
    )  # fmt: skip


def test_the_folder_holds_the_records_of_the_table(study):
    encode(study)
    wanted = encode_table(typed(read_csv(study / "data.csv"), ILL), ILL)
    found = open_records(study / "records").read(np.arange(200))
    np.testing.assert_array_equal(found.x, wanted.x)
    np.testing.assert_array_equal(found.y, wanted.y)


def test_parquet_and_csv_give_the_same_files(study):
    encode(study)
    pd.read_csv(study / "data.csv").to_parquet(study / "data.parquet", row_group_size=64)
    tacit(
        "encode", study / "data.parquet", "--schema", study / "schema.toml",
        "--output", study / "other",
    )  # fmt: skip
    for name in ("x.npy", "y.npy", "weight.npy"):
        one, other = (study / folder / "part-00000" / name for folder in ("records", "other"))
        assert one.read_bytes() == other.read_bytes()
    assert (study / "records/records.json").read_text() == (
        study / "other/records.json"
    ).read_text()


def test_its_owner_is_told_that_the_folder_is_private_and_what_comes_next(study):
    result = encode(study)
    assert "wrote" in result.stdout
    assert "200 records of 200 rows" in result.stdout
    assert "tacit fit" in result.stdout
    assert "may not be published" in " ".join(result.stderr.split())


def test_units_and_weights_are_settled_when_the_table_is_encoded(study):
    result = encode(study, "--groups", "person", "--max-rows", 2, "--weight", "weight", "--json")
    document = json.loads(result.stdout)
    assert document["num_rows"] == 200
    assert document["num_records"] == 100
    assert document["is_private"]
    found = open_records(study / "records").read(np.arange(100))
    assert found.weight.shape == (100, 2)
    assert (found.weight == 0.5).all()


def test_records_are_replaced_only_on_request(study):
    encode(study)
    again = ("encode", study / "data.csv", "--schema", study / "schema.toml")
    assert "holds records already" in refused(*again, "--output", study / "records")
    encode(study, "--overwrite")
    assert "never replaced" in refused(*again, "--output", study)


def test_a_table_that_cannot_be_read_leaves_nothing(study):
    (study / "data.csv").write_text("dose,age\n1,2\n")
    message = refused(
        "encode", study / "data.csv", "--schema", study / "schema.toml",
        "--output", study / "records",
    )  # fmt: skip
    assert "lacks the columns 'city'" in message
    assert sorted(path.name for path in study.iterdir()) == ["data.csv", "schema.toml"]


def test_a_fit_on_the_folder_is_the_fit_on_the_table(study):
    encode(study)
    tacit(*fit_arguments(study, "data.csv", "--seed", 0, "--json"))
    (study / "run").rename(study / "in memory")
    tacit(*fit_arguments(study, "records", "--seed", 0, "--json"))
    one, other = (study / folder / "posterior.safetensors" for folder in ("run", "in memory"))
    found, wanted = load_file(one), load_file(other)
    assert found.keys() == wanted.keys()
    for name, values in wanted.items():
        # Sums over a batch may be taken in another order: a few units of the last place.
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


def test_a_stopped_run_on_people_in_a_folder_goes_on(study, monkeypatch):
    encode(study, "--groups", "person", "--max-rows", 2)
    real = Charges.pay

    def pay(self, start, stop):
        if start == 1:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Charges, "pay", pay)
        tacit(*fit_arguments(study, "records", "--seed", 0), code=130)
    done = json.loads(
        tacit("fit", "--resume", "--output", study / "run", "--seed", 1, "--json").stdout
    )
    assert done["statement"]["releases"] == 4
    assert done["statement"]["unit"] == "one person, with at most 2 rows"
    assert done["statement"]["num_units"] == 100


def test_a_ledger_sees_that_folder_and_table_are_the_same_records(study):
    encode(study)
    ledger = ("--ledger", study / "ledger", "--data-set", "patients")
    tacit(
        "ledger", "create", study / "ledger", "--data-set", "patients",
        "--epsilon", 50, "--delta", "1e-3",
    )  # fmt: skip
    tacit(*fit_arguments(study, "data.csv", "--seed", 0, *ledger))
    result = tacit(*fit_arguments(study, "records", "--seed", 1, "--overwrite", *ledger))
    assert "do not look like" not in result.stderr


def test_a_folder_of_another_schema_is_refused(study):
    encode(study)
    (study / "schema.toml").write_text(WEEKS.to_toml())
    assert "another schema" in refused(*fit_arguments(study, "records"))


def test_a_folder_without_a_schema_is_refused(study):
    records = encode_table(typed(read_csv(study / "data.csv"), ILL), ILL)
    write_records([records], study / "records")
    assert "another schema" in refused(*fit_arguments(study, "records"))


def test_a_folder_that_holds_no_records_is_refused(study):
    (study / "empty").mkdir()
    message = refused(*fit_arguments(study, "empty"))
    assert "not a folder of records" in message
    assert "tacit encode" in message


@pytest.mark.parametrize(
    "more", [("--weight", "weight"), ("--groups", "person", "--max-rows", "2")]
)
def test_what_was_settled_by_encoding_is_not_asked_again(study, more):
    encode(study)
    assert more[0] in refused(*fit_arguments(study, "records", *more))


def test_a_run_is_not_written_among_the_private_records(study):
    encode(study)
    arguments = fit_arguments(study, "records", "--output", study / "records" / "run")
    assert "made to be published" in refused(*arguments)
    assert not (study / "records" / "run").exists()


def test_records_of_one_class_are_refused(study):
    frame = pd.read_csv(study / "data.csv")
    frame["ill"] = "no"
    frame.to_csv(study / "data.csv", index=False)
    encode(study)
    assert "all rows are of one class" in refused(*fit_arguments(study, "records"))
