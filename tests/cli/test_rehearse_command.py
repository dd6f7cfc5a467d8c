"""``tacit rehearse``: a plan on simulated tables; and the warning before a hopeless fit."""

import json
import tomllib

import numpy as np
import pytest

from cli.tables import TINY, refused, tacit, write_patients
from tacit.errors import UtilityWarning
from tacit.estimators import PrivateBayesClassifier
from tacit.studies import read_study


def test_methods_are_compared_and_written(tmp_path):
    options = ("--features", 3, "--records", 300, "--delta", "1e-3", "--steps", 4, "--repeats", 2)
    result = tacit("rehearse", *options, "--method", "sgld, laplace", "-o", tmp_path / "out")
    assert "2 simulated tables of 300 records, epsilon 1; no data was touched" in result.stdout
    assert "accuracy given the true parameters" in " ".join(result.stdout.split())
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


def test_candidates_differ_in_every_setting_and_the_best_is_fitted(tmp_path, monkeypatch):
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    common = ("--schema", "schema.toml", "--records", 200, "--hidden", "none", "--repeats", 1)
    lists = ("--method", "laplace", "--steps", "3,4", "--batch", 100, "--clip-norm", "2x,0.01")
    result = tacit("rehearse", *common, *lists, "--learning-rate", 0.3, "-o", "rehearsal")
    document = json.loads((tmp_path / "rehearsal/rehearsal.json").read_text())
    names = [
        f"laplace, steps {steps}, clip norm {norm}" for steps in (3, 4) for norm in ("2x", 0.01)
    ]
    assert list(document["rehearsals"]) == names
    norms = [each["settings"]["clip_norm"] for each in document["rehearsals"].values()]
    assert norms[1] == norms[3] == 0.01
    assert norms[0] == norms[2] > 0.1
    chosen = document["settings"]
    assert chosen == document["rehearsals"][document["best"]]["settings"]
    options = " ".join(result.stdout.split()).split("options of tacit fit: ")[1].split(" wrote")[0]
    assert "--batch 100" in options
    assert "--learning-rate 0.3" in options
    fit = ("fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "--delta", "1e-3")
    tacit(*fit, "--seed", 0, *options.split(), "-o", "typed")
    tacit(*fit, "--seed", 0, "--rehearsal", "rehearsal", "-o", "run")
    statement = (tmp_path / "run/statement.txt").read_text()
    assert "tuned on simulated records" in " ".join(statement.split())
    recipe = tomllib.loads((tmp_path / "run/study.toml").read_text())
    assert recipe["recipe"] == chosen
    assert recipe["run"]["tuning"] == "simulated"
    # What was typed is the same run, of which nobody knows how its settings were chosen.
    tuning = [
        json.loads((tmp_path / run / "statement.json").read_text())["tuning"]
        for run in ("typed", "run")
    ]
    assert tuning == ["not counted", "simulated"]
    again = read_study("run/study.toml", changes={"num_steps": 7})
    assert again.tuning == "not counted"
    assert read_study("run/study.toml", changes={"output": "new"}).tuning == "simulated"


def test_a_fit_takes_all_settings_from_a_rehearsal_or_none(tmp_path, monkeypatch):
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    fit = ("fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "run")
    (tmp_path / "rehearsal.json").write_text('{"settings": {"method": "luck", "hidden": []}}')
    assert "does not say what was chosen" in refused(*fit, "--rehearsal", "rehearsal.json")
    chosen = {"method": "sgd", "hidden": [], "num_steps": 3, "clip_norm": 1.0}
    (tmp_path / "rehearsal.json").write_text(json.dumps({"settings": chosen}))
    mixed = refused(*fit, "--rehearsal", "rehearsal.json", "--steps", 9)
    assert "leave out --steps" in mixed
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "give --schema"),
        (("--features", 3, "--clip-norm", "wide"), "--clip-norm must name a number, or a factor"),
        (("--features", 3, "--clip-norm", "0x"), "--clip-norm must be a positive"),
        (("--features", 3, "--steps", "1.5"), "--steps must name a whole number"),
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
