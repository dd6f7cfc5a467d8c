"""``tacit predict``: rows in, probabilities and their doubts out."""

import io
import json

import numpy as np
import pandas as pd
import pytest

from cli.tables import patients, refused, tacit
from tacit.studies import load_fitted_table


def test_classes_come_with_probabilities_and_both_kinds_of_uncertainty(classes):
    out = tacit("predict", classes / "run", classes / "data.csv", "--keep", "person").stdout
    table = pd.read_csv(io.StringIO(out))
    assert list(table.columns) == [
        "person", "prediction", "confidence", "probability(no)", "probability(yes)", "aleatoric",
        "epistemic",
    ]  # fmt: skip
    assert len(table) == 200
    np.testing.assert_allclose(table["probability(no)"] + table["probability(yes)"], 1, atol=1e-5)
    best = np.where(table["probability(yes)"] > table["probability(no)"], "yes", "no")
    assert (table.prediction == best).all()
    assert (table[["aleatoric", "epistemic"]] >= 0).all(axis=None)
    direct = load_fitted_table(classes / "run").predict(patients(seed=1))
    np.testing.assert_allclose(table["probability(yes)"], direct.probabilities[:, 1], rtol=1e-5)


def test_numbers_come_with_intervals_in_the_users_units(numbers):
    out = tacit("predict", numbers / "run", numbers / "data.csv", "--level", 0.5).stdout
    table = pd.read_csv(io.StringIO(out))
    assert (table.low < table.prediction).all()
    assert (table.prediction < table.high).all()
    # Half of a Gaussian lies within 0.674 standard deviations.
    np.testing.assert_allclose(table.high - table.prediction, 0.6745 * table["std"], rtol=1e-3)
    np.testing.assert_allclose(
        table["std"] ** 2, table.aleatoric**2 + table.epistemic**2, rtol=1e-4
    )


def test_a_file_is_written_and_what_it_tells_is_said(classes):
    out = classes / "out.csv"
    result = tacit("predict", classes / "run", classes / "data.csv", "-o", out)
    assert len(pd.read_csv(out)) == 200
    assert "200 predictions" in result.stdout
    assert "does not cover" in result.stderr


def test_the_target_is_not_needed_and_programs_get_json(classes):
    frame = patients(3).drop(columns=["ill", "weeks"])
    frame.to_csv(classes / "new.csv", index=False)
    found = json.loads(tacit("predict", classes / "run", classes / "new.csv", "--json").stdout)
    assert len(found["predictions"]) == 3
    assert set(found["predictions"][0]) >= {"prediction", "aleatoric", "epistemic"}


def test_odd_rows_are_predicted_and_their_owner_is_told(classes):
    (classes / "new.csv").write_text("dose,age,city\n99,40,Paris\n?,,Oslo\n3,40,Rome\n")
    result = tacit("predict", classes / "run", classes / "new.csv")
    assert len(result.stdout.splitlines()) == 4
    assert "'dose': 1 of 3 values lie outside [0, 10]" in result.stderr
    assert "'city': 1 of 3 values are not among its categories" in result.stderr
    assert "not for publication" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"age,city\n40,Oslo\n", "lacks the columns 'dose'"),
        (b"dose,age,city\nmuch,40,Oslo\n", "'dose' must hold finite numbers; 1 of 1 values"),
        (b"dose,age,city\n3,inf,Oslo\n", "'age' must hold finite numbers"),
        (b"dose,age,city\n3,1e999,Oslo\n", "'age' must hold finite numbers"),
        (b"dose,dose,age,city\n3,3,40,Oslo\n", "repeats the columns 'dose'"),
        (b"", "it is empty"),
        (b"dose,age,city\n", "no rows"),
        (b"dose,age,city\n3,40,Oslo,5\n", "Expected 3 fields in line 2, saw 4"),
        (b"dose,age,city\n3,40,M\xfcnchen\n", "is not UTF-8 text"),
        (b"dose,age,\n3,40,Oslo\n", "must name every column"),
    ],
)
def test_a_wrong_table_is_named(classes, text, message):
    (classes / "new.csv").write_bytes(text)
    assert message in refused("predict", classes / "run", classes / "new.csv")


def test_wrong_places_are_named(classes, tmp_path):
    data = classes / "data.csv"
    assert "is not a run" in refused("predict", tmp_path / "nothing", data)
    assert "No such file" in refused("predict", classes / "run", tmp_path / "nothing.csv")
    assert "Is a directory" in refused("predict", classes / "run", tmp_path)
    assert "the table itself" in refused("predict", classes / "run", data, "-o", data)
    assert "lacks the columns 'x'" in refused("predict", classes / "run", data, "--keep", "x")
    assert "--level must lie in" in refused("predict", classes / "run", data, "--level", 1)
    error = refused("predict", classes / "run", data, "-o", tmp_path / "no" / "out.csv")
    assert "cannot be written (No such file or directory)" in error
    (classes / "run/posterior.safetensors").write_bytes(b"x")
    assert "altered or cut short" in refused("predict", classes / "run", data)
