"""The application layer from Python: all that the command does, and not a word printed."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import tacit.studies
from cli.tables import write_patients
from tacit import Budget, LedgerFile, PrivacyWarning
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.posterior import predict
from tacit.privacy.calibration import noise_within
from tacit.privacy.filters import RDPFilter
from tacit.studies import (
    Recipe,
    Study,
    Terms,
    certify_run,
    evaluate_run,
    execute,
    load_fitted_table,
    prepare,
    read_study,
    resume,
)
from tacit.studies.execution import Interrupted
from tacit.studies.preparation import budget_left
from tacit.studies.run_folder import read_run
from tacit.studies.study import read_schema

RECIPE = Recipe(hidden=(), num_steps=4, clip_norm=1.0)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    write_patients(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(**changes):
    fields = {"epsilon": 5.0, "delta": 1e-3, "seed": 0, "recipe": RECIPE, **changes}
    return Study(table=Path("data.csv"), schema=Path("schema.toml"), output=Path("run"), **fields)


def insecure():
    return pytest.warns(PrivacyWarning, match="INSECURE")


def test_a_program_fits_evaluates_and_certifies_and_nothing_is_printed(folder, capsys):
    with insecure():
        fitted = execute(study())
    assert 4.9 < fitted.statement["epsilon"] <= 5.0
    found = evaluate_run("run", "data.csv", terms=Terms(public=True), by=["city"])
    assert 0 <= found["metrics"]["accuracy"]["value"] <= 1
    certificate = certify_run("run", "data.csv", radii=[0.01], terms=Terms(owner_only=True))
    assert [point["radius"] for point in certificate["points"]] == [0.0, 0.01]
    documents = read_run("run")
    assert documents.evaluation == found
    assert documents.certificate == certificate
    assert load_fitted_table("run").schema == read_schema(Path("schema.toml"))
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


def test_figures_without_terms_are_returned_and_not_written(folder):
    with insecure():
        execute(study())
    found = evaluate_run("run", "data.csv")
    assert "owner's eyes" in found["data"]["statement"]
    assert not (folder / "run/evaluation.json").exists()


def test_a_program_stops_a_run_where_it_likes_and_goes_on(folder):
    told = []

    def stop(*, step, num_steps, epsilon):
        told.append((step, num_steps, epsilon > 0))
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        execute(study(), progress=stop)
    assert told == [(0, 4, False), (1, 4, True), (2, 4, True)]
    assert (stopped.value.step, stopped.value.num_steps) == (2, 4)
    assert stopped.value.output == Path("run")
    assert 4.9 < stopped.value.epsilon <= 5.0  # all that was declared: it was stopped by looking
    with insecure():
        fitted = resume("run", seed=1)
    assert fitted.statement["releases"] == 4
    steps = [moment["step"] for moment in json.loads((folder / "run/progress.json").read_text())]
    assert steps == [1, 2, 3, 4]


def test_draws_are_written_to_the_folder_in_half_precision_and_a_run_goes_on_with_them(folder):
    recipe = Recipe(hidden=(40,), num_steps=6, clip_norm=1.0)

    def stop(*, step, num_steps, epsilon):
        del num_steps, epsilon
        if step == 5:
            raise KeyboardInterrupt

    states, wanted = folder / "run/retained.states", study(recipe=recipe, half_precision=True)
    with insecure():
        whole = execute(wanted).posterior
    assert whole.num_kept == 3
    content = states.read_bytes()
    before = predict(load_fitted_table("run").posterior, np.zeros((1, 7)))
    with pytest.raises(Interrupted):
        execute(wanted, overwrite=True, progress=stop)
    assert not (folder / "run/posterior.json").exists()
    with insecure():
        resumed = resume("run", seed=0).posterior
    # Same seed, same noise: all of it comes back.
    assert states.read_bytes() == content
    assert resumed.rounding.largest == pytest.approx(whole.rounding.largest)
    after = predict(load_fitted_table("run").posterior, np.zeros((1, 7)))
    np.testing.assert_array_equal(after.probabilities, before.probabilities)
    with insecure():
        execute(study(recipe=recipe), overwrite=True)
    assert not states.exists()
    assert load_fitted_table("run").posterior.rounding is None


def test_a_study_is_read_as_it_was_written(folder):
    before = study(groups="person", max_rows=2, num_records=100, half_precision=True)
    (folder / "study.toml").write_text(before.to_toml())
    assert read_study("study.toml") == before
    changed = read_study("study.toml", changes={"epsilon": math.inf, "num_steps": 7})
    assert not changed.is_private
    assert changed.recipe.num_steps == 7
    assert changed.groups == "person"


def test_what_a_ledger_has_left_can_be_looked_at_and_spent(folder):
    book = LedgerFile.create(folder / "people.ledger")
    book.register("patients", RDPFilter.of_budget(epsilon=3.0, delta=1e-3))
    account = {"ledger": folder / "people.ledger", "data_set": "patients"}
    with insecure():
        execute(study(epsilon=1.0, **account))
    ledger = book.data_set("patients")
    facts = {"num_records": 200, "ledger": ledger}
    schema = read_schema(Path("schema.toml"))
    left = budget_left(schema, RECIPE, **facts)
    assert 3 - ledger.spent < left.epsilon < 3  # costs of several runs are less than their sum
    prepared = prepare(schema, RECIPE, budget=left, **facts)
    assert ledger.budget().allows(prepared.plan.cost)
    with insecure():
        execute(study(epsilon=None, **account), overwrite=True)
    assert 0.97 * 3 < ledger.spent <= 3
    with pytest.raises(BudgetExceededError):
        prepare(schema, RECIPE, budget=left, **facts)


def test_noise_is_enough_for_a_budget_and_for_a_ledger(folder):
    schema = read_schema(Path("schema.toml"))
    book = LedgerFile.create(folder / "people.ledger")
    book.register("patients", RDPFilter.of_budget(epsilon=1.0, delta=1e-3))
    ledger, budget = book.data_set("patients"), Budget(1.0, 1e-3)
    alone = prepare(schema, RECIPE, num_records=200, budget=budget)
    both = prepare(schema, RECIPE, num_records=200, budget=budget, ledger=ledger)
    assert alone.noise_scale == 1
    assert both.noise_scale > 1
    assert budget.allows(both.plan.cost)
    assert ledger.budget().allows(both.plan.cost)
    assert not ledger.budget().allows(alone.plan.cost)
    again = prepare(schema, RECIPE, num_records=200, budget=budget, noise_scale=both.noise_scale)
    assert again.plan.cost == both.plan.cost
    assert noise_within(lambda noise: alone.plan.cost, Budget.non_private(), None).noise == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a positive number"),
        ({"delta": 2.0}, r"delta must lie in \(0, 1\)"),
        ({"groups": "person"}, "`groups` and `max_rows` go together"),
        ({"ledger": Path("x")}, "`ledger` and `data_set` go together"),
        ({"epsilon": None}, "give `epsilon`, or a `ledger`"),
        ({"max_weight": 1e9}, "max_weight must be at most"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_an_error_names_the_argument(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        study(**changes)


@pytest.mark.parametrize("path", sorted(Path(tacit.studies.__file__).parent.glob("*.py")), ids=str)
def test_the_layer_neither_prints_nor_speaks_of_options(path):
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"(?<!-)--[a-z]", text)
    assert not re.search(r"\b(print|echo|Console)\(", re.sub(r">>>.*", "", text))
