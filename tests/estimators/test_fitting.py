import json
import tomllib
import warnings
from dataclasses import replace

import numpy as np
import pytest

from estimators.tables import ILL, WEEKS, patients
from tacit import Budget, PrivacyWarning
from tacit.data import encode_table
from tacit.errors import BudgetExceededError, InvalidArgumentError, TacitError
from tacit.inference.method import table_methods
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import Cost, count_releases
from tacit.privacy.sampling import FullBatch
from tacit.privacy.statement.fields import checksum
from tacit.studies import Recipe, fit_table, load_fitted_table, prepare
from tacit.studies.preparation import TableFacts, completed

BUDGET = Budget(epsilon=5.0, delta=1e-3)
TRAIN, TEST = patients(), patients(seed=1)


def fitted(schema, *, frame=TRAIN, budget=BUDGET, recipe=None, **arguments):
    records = encode_table(frame, schema)
    prepared = prepare(schema, recipe, num_records=len(frame), budget=budget)
    return fit_table(records, prepared, seed=0, **arguments)


@pytest.fixture(scope="module")
def of_classes():
    return fitted(ILL)


@pytest.fixture(scope="module")
def of_numbers():
    return fitted(WEEKS)


def test_a_default_fit_learns_classes(of_classes):
    labels = ILL.encode_target(TEST)
    probabilities = of_classes.predict(TEST).probabilities
    # The rate of the rule that knows the truth is about .92; its standard error is .02.
    assert np.mean(probabilities.argmax(axis=1) == labels) > 0.8


def test_a_default_fit_learns_numbers_in_the_users_units(of_numbers):
    found = of_numbers.predict(TEST)
    error = np.sqrt(np.mean((found.mean - TEST.weeks) ** 2))
    # The noise has standard deviation 2 and the target 6.
    assert error < 4
    assert 1 < np.sqrt(found.total_variance.mean()) < 10
    np.testing.assert_allclose(
        found.total_variance, found.aleatoric_variance + found.epistemic_variance, rtol=1e-5
    )


def test_the_statement_is_of_what_was_run_and_within_the_budget(of_classes):
    assert 4.9 < of_classes.statement["epsilon"] <= 5.0
    assert of_classes.fit.plan == of_classes.prepared.plan
    assert of_classes.progress[-1].step == of_classes.prepared.recipe.num_steps
    assert of_classes.progress[-1].epsilon <= 5.0


@pytest.mark.parametrize("which", ["of_classes", "of_numbers"])
def test_a_saved_run_predicts_the_same_and_holds_no_record(which, tmp_path, request):
    table = request.getfixturevalue(which)
    with pytest.warns(PrivacyWarning, match="INSECURE"):
        table.save(tmp_path)
    loaded = load_fitted_table(tmp_path)
    for ours, theirs in zip(loaded.predict(TEST), table.predict(TEST), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert loaded.schema == table.schema
    assert loaded.statement_text == table.statement_text
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {"study.toml", "schema.toml", "statement.json", "progress.json"}
    sealed = json.loads((tmp_path / "statement.json").read_text())
    assert sealed == dict(table.statement) | {"sha256": checksum(table.statement)}
    assert "PRIVACY STATEMENT" in (tmp_path / "statement.txt").read_text()
    study = tomllib.loads((tmp_path / "study.toml").read_text())
    assert study["budget"]["epsilon"] == 5.0
    assert study["recipe"]["hidden"] == list(table.prepared.recipe.hidden)
    held = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    rows = np.asarray(encode_table(TRAIN, table.schema).x)
    assert not any(row.tobytes() in held for row in rows)


def test_a_folder_that_is_no_run_is_named(tmp_path):
    with pytest.raises(TacitError, match=r"schema\.toml is missing"):
        load_fitted_table(tmp_path)


@pytest.mark.parametrize("method", table_methods())
def test_every_method_is_prepared_within_the_budget(method):
    prepared = prepare(ILL, Recipe(method=method), num_records=200, budget=BUDGET)
    assert 4.9 < BUDGET.spent(prepared.plan.cost) <= 5.0
    free = prepare(ILL, Recipe(method=method), num_records=200, budget=Budget.non_private())
    assert np.isinf(Budget(epsilon=1.0, delta=0.1).spent(free.plan.cost))


def test_the_recipe_is_followed():
    recipe = Recipe(
        method="sgld",
        hidden=(3,),
        num_steps=7,
        batch_size=50,
        clip_norm=0.5,
        learning_rate=0.1,
        prior_std=2.0,
    )
    prepared = prepare(ILL, recipe, num_records=200, budget=BUDGET)
    assert prepared.recipe == recipe
    release = prepared.plan.method.release
    assert (release.clip_norm, release.sampling.rate) == (0.5, 0.25)
    assert sum(count_releases(prepared.plan.cost).values()) == 7
    assert prepared.model.spec["network"]["hidden"] == [3]


def test_a_batch_of_all_records_is_no_sample():
    prepared = prepare(ILL, Recipe(batch_size=9999), num_records=200, budget=BUDGET)
    assert prepared.plan.method.release.sampling == FullBatch(num_records=200)


def test_defaults_follow_from_public_facts_alone():
    facts = TableFacts(num_records=300, num_features=7, num_classes=2, epsilon=1.0)
    assert completed(Recipe(), facts) == completed(Recipe(), replace(facts))
    assert completed(Recipe(), replace(facts, num_records=30_000)).hidden == (32,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "adam"}, "method must be one of .*sgld"),
        ({"hidden": [3]}, "hidden must be a tuple"),
        ({"hidden": (0,)}, r"hidden\[0\] must be"),
        ({"num_steps": 0}, "num_steps must be"),
        ({"clip_norm": -1.0}, "clip_norm must be"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        Recipe(**arguments)


def test_what_was_spent_before_is_counted_and_leaves_less():
    plain = prepare(ILL, num_records=200, budget=BUDGET)
    after = prepare(
        ILL,
        num_records=200,
        budget=BUDGET,
        spent=Cost(plain.plan.method.release.cost_of(2.0), is_secure=True),
    )
    assert BUDGET.spent(after.plan.cost) <= 5.0
    noises = [p.plan.method.release.noise_multiplier for p in (plain, after)]
    assert noises[0] < noises[1]


def test_a_ledger_is_charged_for_the_whole_run_and_can_refuse():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        small = InMemoryLedger(budget=Budget(epsilon=1.0, delta=1e-3))
    with pytest.raises(BudgetExceededError):
        fitted(ILL, ledger=small)
