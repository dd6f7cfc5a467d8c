"""``tacit fit``: a run that may be published, that can be stopped, and that nothing can spoil."""

import errno
import json
import os
import re
import signal
import tomllib
from pathlib import Path

import numpy as np
import pytest

from cli.tables import ILL, TINY, invoke, refused, tacit, write_patients
from tacit.data import Schema, encode_table
from tacit.errors import BudgetExceededError
from tacit.inference.run import Charges
from tacit.privacy.ledger import LedgerFile
from tacit.studies import Recipe, load_fitted_table, read_study, run_folder

RUN_FILES = {
    "study.toml", "schema.toml", "posterior.safetensors", "posterior.json", "statement.json",
    "statement.txt", "progress.json", "checkpoint.safetensors", "checkpoint.json",
    "coefficients.csv",
}  # fmt: skip


@pytest.fixture
def table(tmp_path, monkeypatch):
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fit(*options, code=0, table="data.csv"):
    return tacit("fit", table, "--schema", "schema.toml", "--seed", 0, *TINY, *options, code=code)


@pytest.fixture
def no_fit(monkeypatch):
    """Nothing may be spent: the fit itself must not begin."""

    def must_not(*_, **__):
        raise AssertionError("the fit began")

    monkeypatch.setattr("tacit.studies.execution.fit_table", must_not)


def test_a_run_holds_what_the_contract_says_and_no_more(classes):
    assert {path.name for path in (classes / "run").iterdir()} == RUN_FILES
    statement = json.loads((classes / "run/statement.json").read_text())
    assert 4.9 < statement["epsilon"] <= 5.0
    progress = json.loads((classes / "run/progress.json").read_text())
    assert [moment["step"] for moment in progress] == [1, 2, 3, 4]
    assert progress[-1]["epsilon"] == pytest.approx(statement["epsilon"], abs=2e-3)
    assert Schema.from_toml((classes / "run/schema.toml").read_text()) == ILL


def test_the_study_of_a_run_is_as_executed(classes):
    study = tomllib.loads((classes / "run/study.toml").read_text())
    assert study["num_records"] == 200
    assert study["budget"] == {"epsilon": 5.0, "delta": 1e-3, "accountant": "PLD"}
    assert study["recipe"]["hidden"] == []
    assert study["recipe"]["num_steps"] == 4
    assert study["recipe"]["clip_norm"] > 0  # was open and is filled in
    assert study["data"]["target"] == "ill"


def test_a_run_can_be_loaded_audited_and_verified(classes):
    assert load_fitted_table(classes / "run").schema == ILL
    told = tacit("statement", classes / "run", "--verify", code=1).output
    assert "INSECURE" in told  # it was seeded here; epsilon itself is right
    assert "too small" not in told


def test_the_executed_study_runs_again_and_options_override_it(classes, monkeypatch):
    monkeypatch.chdir(classes)
    write_patients(classes)
    again = json.loads(
        tacit(
            "fit", "--study", "run/study.toml", "--epsilon", 4, "-o", "other", "--json"
        ).stdout
    )  # fmt: skip
    assert 3.9 < again["statement"]["epsilon"] <= 4.0
    assert again["output"] == "other"
    study = tomllib.loads((classes / "other/study.toml").read_text())
    assert study["budget"]["epsilon"] == 4.0
    assert study["recipe"]["num_steps"] == 4


def test_the_study_of_the_document_can_be_run(tmp_path):
    document = Path(__file__).parents[2] / "docs/command-line.md"
    text = re.search(r"```toml\n(.*?)```", document.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "study.toml").write_text(text)
    study = read_study(tmp_path / "study.toml")
    assert study.recipe == Recipe(method="sgld", hidden=(32,), num_steps=400)
    assert (study.epsilon, study.delta) == (1.0, 1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[recipe]\nstep = 4\n", "unknown keys: recipe.step"),
        ("[budgets]\nepsilon = 1\n", "unknown keys: budgets"),
        ("[budget]\nepsilon = 'one'\n", "budget.epsilon must be a number; got 'one'"),
        ("[recipe]\nhidden = 32\n", "recipe.hidden must be a list"),
        ("[recipe]\nhidden = ['a']\n", "hidden[0] must be a whole number"),
        ("[budget]\naccountant = 'GDP'\n", "budget.accountant must be PLD"),
        ("recipe = 3\n", "recipe must be a table"),
        ("[recipe\n", "not valid TOML"),
        ("num_records = -1\n", "num_records must be a whole number"),
        ("num_records = 7\n", "was executed on 7 records, and the table has 200"),
    ],
)
def test_a_wrong_study_is_named(table, no_fit, text, message):
    (table / "study.toml").write_text(text)
    assert message in refused(
        "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "run",
        "--study", "study.toml",
    )  # fmt: skip
    assert not (table / "run").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", 0], "--epsilon must be a positive number; got 0"),
        (["--epsilon", -1], "--epsilon must be a positive number"),
        (["--epsilon", "nan"], "--epsilon must be a number; got NaN"),
        (["--epsilon", "inf"], "--non-private"),
        (["--epsilon", 1, "--delta", 1], "--delta must lie in (0, 1)"),
        (["--epsilon", 1, "--non-private"], "not both"),
        ([], "give --epsilon, or a --ledger"),
        (["--epsilon", 1, "--method", "adam"], "--method must be one of "),
        (["--epsilon", 1, "--hidden", "wide"], "--hidden must be widths"),
        (["--epsilon", 1, "--hidden", 10**12], "--hidden must be widths of at most"),
        (["--epsilon", 1, "--steps", 0], "--steps must be a whole number"),
        (["--epsilon", 1, "--batch", 0], "--batch must be a whole number"),
        (["--epsilon", 1, "--seed", -1], "--seed must be a whole number"),
        (["--epsilon", 1, "--target", "age"], "the schema's target is 'ill'"),
        (["--epsilon", 1, "--groups", "person"], "--groups and --max-rows go together"),
        (["--epsilon", 1, "--groups", "nobody", "--max-rows", 2], "lacks the columns 'nobody'"),
        (["--epsilon", 1, "--weight", "nothing"], "lacks the columns 'nothing'"),
        (["--epsilon", 1, "--weight", "dose"], "weight must lie in"),
        (["--epsilon", 1, "--weight", "weight", "--max-weight", 0], "--max-weight must be"),
        (["--epsilon", 1, "--ledger", "x"], "--ledger and --data-set go together"),
        (["--epsilon", 1, "--ledger", "x", "--data-set", "y"], "there is no ledger"),
        (["--non-private", "--ledger", "x", "--data-set", "y"], "leave out --ledger"),
        (["--epsilon", 1, "--resume"], "--resume goes on with the run's own study.toml"),
    ],
)  # fmt: skip
def test_a_wrong_option_is_refused_before_anything_is_spent(table, no_fit, options, message):
    error = refused("fit", "data.csv", "--schema", "schema.toml", "-o", "run", *options)
    assert message in error
    assert not (table / "run").exists()


def test_a_fit_says_what_it_needs(table, no_fit):
    assert "give the CSV file" in refused("fit", "--epsilon", 1, "-o", "run")
    assert "a folder for the run: --output" in refused("fit", "data.csv", "--epsilon", 1)
    error = refused("fit", "data.csv", "--epsilon", 1, "-o", "run")
    assert "--schema" in error
    assert "tacit schema" in error


def test_a_run_is_not_replaced_unless_told(classes, monkeypatch):
    monkeypatch.chdir(classes)
    before = (classes / "run/posterior.safetensors").read_bytes()
    (classes / "run/report.html").write_text("old")
    error = refused("fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "run")
    assert "holds a run already" in error
    assert "--overwrite" in error
    assert (classes / "run/posterior.safetensors").read_bytes() == before
    fit("--epsilon", 1, "-o", "run", "--overwrite")
    assert (classes / "run/posterior.safetensors").read_bytes() != before
    assert not (classes / "run/report.html").exists()  # it was of the other run


def test_an_old_run_stays_when_its_replacement_is_refused(classes, monkeypatch):
    monkeypatch.chdir(classes)
    before = {path.name: path.read_bytes() for path in (classes / "run").iterdir()}

    def refuse(*_, **__):
        raise BudgetExceededError("too dear")

    monkeypatch.setattr(Charges, "begin", refuse)
    error = refused(
        "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "run", "--overwrite"
    )
    assert error == "too dear"
    assert {path.name: path.read_bytes() for path in (classes / "run").iterdir()} == before


def test_without_privacy_nothing_is_promised_and_it_is_said(table):
    result = fit("--non-private", "-o", "run")
    assert "NOT PRIVATE" in result.stdout
    assert "Publish nothing of it" in result.stderr
    progress = json.loads((table / "run/progress.json").read_text())
    assert progress[-1]["epsilon"] == "infinity"
    assert "NOT PRIVATE" in (tacit("report", "run"), (table / "run/report.html").read_text())[1]


def test_people_are_protected_where_rows_have_owners(table):
    found = json.loads(
        fit("--epsilon", 5, "--groups", "person", "--max-rows", 2, "--weight", "weight",
            "-o", "run", "--json").stdout
    )  # fmt: skip
    assert found["statement"]["unit"] == "one person, with at most 2 rows"
    assert found["statement"]["num_units"] == 100
    error = refused("evaluate", "run", "data.csv", "--epsilon", 1)
    assert "--groups" in error


# Ctrl-C


def interrupt_after(monkeypatch, num_chunks):
    """Presses Ctrl-C while a chunk runs."""
    real, seen = Charges.pay, []

    def pay(self, start, stop):
        seen.append(start)
        if len(seen) == num_chunks:
            os.kill(os.getpid(), signal.SIGINT)
        real(self, start, stop)

    monkeypatch.setattr(Charges, "pay", pay)


def test_ctrl_c_keeps_what_was_paid_for_and_the_run_goes_on(table, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        result = fit("--epsilon", 5, "-o", "run", code=130)
    assert "stopped after 2 of 4 steps; epsilon 5.000" in result.stderr
    assert "tacit fit --resume --output run" in result.stderr
    assert not (table / "run/posterior.json").exists()
    assert [m["step"] for m in json.loads((table / "run/progress.json").read_text())] == [1, 2]
    done = json.loads(tacit("fit", "--resume", "-o", "run", "--seed", 1, "--json").stdout)
    assert 4.9 < done["statement"]["epsilon"] <= 5.0
    assert done["statement"]["releases"] == 4
    assert {path.name for path in (table / "run").iterdir()} == RUN_FILES
    progress = json.loads((table / "run/progress.json").read_text())
    assert [moment["step"] for moment in progress] == [1, 2, 3, 4]
    assert "Nothing is left" in refused("fit", "--resume", "-o", "run")


def test_an_interrupted_run_tells_programs_how_to_go_on(table, monkeypatch):
    interrupt_after(monkeypatch, 1)
    before = signal.getsignal(signal.SIGINT)
    told = json.loads(fit("--epsilon", 5, "-o", "run", "--json", code=130).stdout)
    assert told["interrupted"]
    assert told["step"] == 1
    # What was stopped by looking costs what all declared steps cost.
    assert 4.9 < told["epsilon"] <= 5.0
    assert told["resume"] == "tacit fit --resume --output run"
    assert signal.getsignal(signal.SIGINT) is before


# The ledger


@pytest.fixture
def ledger(table):
    tacit("ledger", "create", "people.ledger", "--data-set", "patients", "--epsilon", 3,
          "--delta", 1e-3)  # fmt: skip
    return LedgerFile.open(table / "people.ledger").data_set("patients")


LEDGER = ("--ledger", "people.ledger", "--data-set", "patients")


def test_a_fit_without_an_epsilon_spends_what_the_ledger_has_left(ledger):
    fit("--epsilon", 1, *LEDGER, "-o", "first")
    spent = ledger.spent
    assert 0.9 < spent < 3
    found = json.loads(fit(*LEDGER, "-o", "second", "--json").stdout)
    assert 0.97 * 3 < ledger.spent <= 3
    assert found["statement"]["epsilon"] < 3
    assert "too little" in (error := refused(
        "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, *LEDGER, "-o", "third", *TINY
    )) or "no noise" in error  # fmt: skip


def test_a_run_that_needs_more_noise_for_its_ledger_says_so(ledger):
    result = fit("--epsilon", 2.95, *LEDGER, "-o", "near", "--json")
    assert "times the noise" in result.stderr
    assert json.loads(result.stdout)["statement"]["epsilon"] < 2.95
    assert 0.97 * 3 < ledger.spent <= 3


def test_a_run_on_a_ledger_resumes_with_the_noise_that_it_began_with(ledger, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        fit("--epsilon", 3, *LEDGER, "-o", "run", code=130)
    study = tomllib.loads(Path("run/study.toml").read_text())
    assert study["run"]["noise_scale"] > 1  # a filter counts stricter than PLD
    tacit("fit", "--resume", "-o", "run", "--seed", 1)
    assert 0.97 * 3 < ledger.spent <= 3


def test_a_ledger_that_refuses_on_the_way_leaves_a_run_that_can_go_on(table, monkeypatch):
    real = Charges.pay

    def pay(self, start, stop):
        if start == 2:
            raise BudgetExceededError("others were faster")
        real(self, start, stop)

    with monkeypatch.context() as patched:
        patched.setattr(Charges, "pay", pay)
        result = invoke("fit", "data.csv", "--schema", "schema.toml", "--epsilon", 5, "-o", "run",
                        "--seed", 0, *TINY)  # fmt: skip
    assert str(result.exception) == "others were faster"
    told = " ".join(result.stderr.split())
    assert "2 steps are paid for and kept" in told
    assert "go on with --resume" in told
    tacit("fit", "--resume", "-o", "run", "--seed", 1)


# The disk


def test_a_folder_that_cannot_be_made_is_named_and_nothing_is_spent(table, no_fit):
    (table / "file").write_text("")
    error = refused(
        "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "file/run", *TINY
    )
    assert "--output must be a folder that can be made" in error


def test_a_full_disk_is_noticed_before_anything_is_spent(table, no_fit, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder.tempfile, "TemporaryFile", full)
    error = refused(
        "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 1, "-o", "run", *TINY
    )
    assert "No space left on device" in error
    assert "Nothing was spent" in error


def test_a_disk_that_fills_up_on_the_way_keeps_the_last_checkpoint(table, monkeypatch):
    real, calls = run_folder.save_checkpoint, []

    def fills_up(checkpoint, folder):
        calls.append(checkpoint.step)
        if len(calls) == 3:
            monkeypatch.setattr("tacit._artefact.os.fsync", full)
        real(checkpoint, folder)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(run_folder, "save_checkpoint", fills_up)
        result = invoke(
            "fit", "data.csv", "--schema", "schema.toml", "--epsilon", 5, "-o", "run",
            "--seed", 0, *TINY,
        )  # fmt: skip
    assert "No space left" in str(result.exception)
    monkeypatch.undo()
    monkeypatch.chdir(table)
    found = tacit("fit", "--resume", "-o", "run", "--seed", 1, "--json")
    assert json.loads(found.stdout)["statement"]["releases"] == 4


def test_what_a_run_writes_holds_no_record(classes):
    write_patients(classes)
    frame = write_patients(classes)
    records = encode_table(frame, ILL)
    rows = np.asarray(records.x)[:5]
    stored = b"".join(path.read_bytes() for path in (classes / "run").iterdir())
    assert all(row.tobytes() not in stored for row in rows)
    assert all(str(value).encode() not in stored for value in frame.dose[:20])


def test_a_fit_says_what_its_intervals_are(table):
    told = fit("--epsilon", 5, "-o", "run").stdout
    facts = load_fitted_table(table / "run").posterior.intervals
    for name, text in facts.rows:
        assert f"{name}: {text}" in told
    assert "coefficients.csv" in told


def test_programs_are_told_what_the_intervals_are(table):
    told = json.loads(fit("--epsilon", 5, "-o", "run", "--json").stdout)
    facts = load_fitted_table(table / "run").posterior.intervals
    assert told["intervals"] == {"is_corrected": facts.is_corrected, "caveats": list(facts.caveats)}
