"""``tacit rehearse``: a plan on simulated tables; and the warning before a hopeless fit."""

import json

import numpy as np
import pytest

from cli.tables import TINY, refused, tacit, write_patients
from tacit.errors import UtilityWarning
from tacit.estimators import PrivateBayesClassifier


def test_methods_are_compared_and_written(tmp_path):
    options = ("--features", 3, "--records", 300, "--delta", "1e-3", "--steps", 4, "--repeats", 2)
    result = tacit("rehearse", *options, "--method", "sgld, laplace", "-o", tmp_path / "out")
    assert "2 simulated tables of 300 records, epsilon 1; no data was touched" in result.stdout
    assert "accuracy of who knows the truth" in " ".join(result.stdout.split())
    document = json.loads((tmp_path / "out/rehearsal.json").read_text())
    assert set(document["rehearsals"]) == {"sgld", "laplace"}
    assert document["best"] in document["rehearsals"]
    assert f"the smallest negative log likelihood has {document['best']}" in result.stdout
    png = (tmp_path / "out/rehearsal.png").read_bytes()
    assert png.startswith(b"\x89PNG")


def test_it_prints_json(tmp_path):
    write_patients(tmp_path)
    schema = ("--schema", tmp_path / "schema.toml", "--records", 200)
    result = tacit("rehearse", *schema, *TINY, "--repeats", 1, "--json")
    found = json.loads(result.stdout)["rehearsals"]["sgld"]
    assert found["num_records"] == 200
    assert 0 <= found["measures"]["accuracy"]["mean"] <= 1
    assert found["measures"]["accuracy"]["error"] is None


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give --schema"),
        (("--features", 3, "--method", ","), "--method must name a method"),
        (("--features", 3, "--method", "luck"), "method"),
        (("--features", 3, "--repeats", 0), "repeats"),
        (("--features", 3, "--epsilon", 0), "epsilon"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_in_one_line(options, told):
    assert told in refused("rehearse", "--records", 100, *options)


def test_a_hopeless_fit_says_so_before_it_begins(tmp_path, monkeypatch):
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    fit = ("fit", "data.csv", "--schema", "schema.toml", "--seed", 0, *TINY, "--output")
    hopeless = tacit(*fit, "one", "--epsilon", "1e-9")
    assert "this budget can hardly work: at epsilon 1e-09" in hopeless.stderr
    assert "hardly work" not in tacit(*fit, "two", "--epsilon", 5).stderr


def test_estimators_say_so_too():
    model = PrivateBayesClassifier(
        epsilon=1e-9, bounds=(-1, 1), classes=(0, 1), num_steps=2, random_state=0
    )
    with pytest.warns(UtilityWarning, match="can hardly work"):
        model.fit(np.zeros((50, 2)), np.arange(50) % 2)
