"""``tacit audit``: from the outside, on made-up records, on a run, and on a broken engine."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from audit.bugs import plant_bug
from tacit import cli
from tacit.data import NumericColumn, Schema, Target, encode_table
from tacit.errors import TacitError
from tacit.privacy.budget import Budget
from tacit.studies import Recipe, fit_table, prepare

SCHEMA = Schema(
    columns=(NumericColumn(name="x", low=-1, high=1), NumericColumn(name="z", low=-1, high=1)),
    target=Target(name="y", classes=("no", "yes")),
)


def tacit(*arguments):
    return CliRunner().invoke(cli.app, ["audit", *arguments])


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.uniform(-1, 1, (60, 2)), columns=["x", "z"])
    frame["y"] = np.where(frame["x"] > 0, "yes", "no")
    frame.to_csv(folder / "data.csv", index=False)
    recipe = Recipe(num_steps=4, batch_size=60)
    budget = Budget(epsilon=1.0, delta=1e-5)
    prepared = prepare(SCHEMA, recipe, num_records=60, budget=budget)
    with pytest.warns(match="INSECURE"):
        fit_table(encode_table(frame, SCHEMA), prepared, seed=0).save(folder)
    return folder


def test_an_honest_method_passes_with_exit_code_0_as_the_document_shows():
    document = (Path(__file__).parents[2] / "docs/audit.md").read_text(encoding="utf-8")
    command, shown = re.search(r"^\$ tacit audit (.*?)\n(.*?)^```", document, re.M | re.S).groups()
    result = tacit(*command.split())
    assert result.exit_code == 0
    assert result.stdout == shown


def test_a_broken_engine_fails_with_exit_code_1(monkeypatch):
    plant_bug(monkeypatch, "noise ten times too small")
    result = tacit("--canaries", "300", "--method", "sgd", "--seed", "1", "--json")
    assert result.exit_code == 1
    document = json.loads(result.stdout)
    assert document["verdict"].startswith("VIOLATION: the ")
    assert "epsilon is at least" in document["verdict"]
    assert document["details"]["releases"][0]["verdict"].startswith("VIOLATION")


def test_a_run_is_audited_with_its_own_settings_and_keeps_the_result(run):
    result = tacit(str(run), "--seed", "1", "--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document == json.loads((run / "audit.json").read_text())
    assert document["data"]["public"] is True
    # As many canaries as the run has records, and the epsilon that it claims.
    assert document["details"]["run"]["num_canaries"] == 60
    assert document["details"]["same_cost_as_run"] is True
    statement = json.loads((run / "statement.json").read_text())
    assert document["claimed"]["epsilon"] == pytest.approx(statement["epsilon"], abs=0.01)


def test_models_of_a_runs_own_table_are_attacked_and_the_result_is_private(run):
    result = tacit(str(run), "--table", str(run / "data.csv"), "--shadows", "4", "--seed", "1")
    assert result.exit_code == 0
    assert "Do not publish the result" in result.stdout
    assert "calibrated anew" not in result.stdout
    assert json.loads((run / "audit.json").read_text())["data"]["public"] is False


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "method must be one of "),
        (["--epsilon", "0"], "--epsilon must be"),
        (["--delta", "1"], "--delta must lie"),
        (["--canaries", "0"], "--canaries must be"),
        (["--confidence", "1"], "--confidence must lie"),
        (["--seed", "-1"], "--seed must be"),
        (["--table", "x.csv"], "--table needs the folder"),
        (["nowhere"], "cannot be read (No such file or directory)"),
        (["nowhere", "--epsilon", "1"], "the run has its own"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(arguments, message):
    error = tacit(*arguments).exception
    assert isinstance(error, TacitError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_table_that_cannot_be_read_is_named(run, tmp_path):
    error = tacit(str(run), "--table", str(tmp_path / "no.csv")).exception
    assert isinstance(error, TacitError)
    assert "no.csv' must be a CSV file" in str(error)
    (tmp_path / "empty.csv").write_text("")
    assert "it is empty" in str(tacit(str(run), "--table", str(tmp_path / "empty.csv")).exception)


def test_a_study_that_does_not_say_what_was_run_is_named(run, tmp_path):
    for name in ("schema.toml", "study.toml"):
        (tmp_path / name).write_text((run / name).read_text())
    (tmp_path / "study.toml").write_text("num_records = 60\n")
    error = tacit(str(tmp_path)).exception
    assert isinstance(error, TacitError)
    assert "'recipe' is missing or wrong" in str(error)
