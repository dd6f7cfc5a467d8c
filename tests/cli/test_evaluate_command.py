"""``tacit evaluate``: exact figures on public records, noisy and charged ones on private ones."""

import json

import numpy as np
import pytest

from cli.tables import ILL, refused, tacit
from tacit.errors import InvalidArgumentError
from tacit.metrics.uncertainty import ClassificationUncertainty
from tacit.privacy.budget import Budget
from tacit.privacy.ledger import LedgerFile
from tacit.studies import load_fitted_table
from tacit.studies.private_evaluation import Groups, evaluate_privately
from tacit.studies.table_fit import FittedTable

KEYS = {"kind", "data", "metrics", "reliability", "uncertainty", "selective", "subgroups"}


def evaluation(folder, *options):
    told = json.loads(
        tacit("evaluate", folder / "run", folder / "data.csv", *options, "--json").stdout
    )
    assert set(told) == KEYS
    return told


def test_public_records_give_exact_figures_with_intervals(classes):
    found = evaluation(classes, "--public")
    assert json.loads((classes / "run/evaluation.json").read_text()) == found
    assert found["data"] == {
        "name": "data.csv", "num_records": 200, "public": True, "statement": None,
    }  # fmt: skip
    predicted = load_fitted_table(classes / "run").predict(_frame(classes))
    right = predicted.probabilities.argmax(axis=1) == ILL.encode_target(_frame(classes))
    assert found["metrics"]["accuracy"]["value"] == pytest.approx(right.mean())
    for interval in found["metrics"].values():
        assert interval["low"] <= interval["value"] <= interval["high"]
    assert sum(row["count"] for row in found["reliability"]) == 200
    assert sum(found["uncertainty"]["epistemic"]["counts"]) == 200
    assert found["selective"][-1]["accuracy"] == pytest.approx(right.mean())


def _frame(folder):
    from tacit.data.csv import read_csv, typed

    return typed(read_csv(folder / "data.csv"), ILL)


def test_groups_have_figures_of_their_own(classes):
    groups = evaluation(classes, "--public", "--by", "city")["subgroups"]
    assert [(row["column"], row["value"]) for row in groups] == [("city", "Oslo"), ("city", "Rome")]
    assert sum(row["num_records"] for row in groups) == 200
    assert all({"accuracy", "ece"} <= set(row["metrics"]) for row in groups)


def test_numbers_are_evaluated_in_the_users_units(numbers):
    found = evaluation(numbers, "--public")
    assert found["kind"] == "regression"
    assert 1 < found["metrics"]["rmse"]["value"] < 20
    assert 0 <= found["metrics"]["coverage_90"]["value"] <= 1


def test_without_a_word_exact_figures_are_shown_and_not_written(classes):
    result = tacit("evaluate", classes / "run", classes / "data.csv")
    assert "for the owner's eyes only" in result.stdout
    assert "Not written to the run" in result.stdout
    assert not (classes / "run/evaluation.json").exists()


def test_the_owner_may_keep_exact_figures_that_are_marked(classes):
    tacit("evaluate", classes / "run", classes / "data.csv", "--owner-only")
    written = json.loads((classes / "run/evaluation.json").read_text())
    assert written["data"]["public"] is False
    assert "NOT covered" in written["data"]["statement"]
    tacit("report", classes / "run")
    assert "for the owner" in (classes / "run/report.html").read_text()


def test_private_records_are_charged_to_the_ledger(classes):
    path = classes / "people.ledger"
    tacit("ledger", "create", path, "--data-set", "test", "--epsilon", 2, "--delta", 1e-3)
    account = ("--ledger", path, "--data-set", "test")
    found = evaluation(classes, "--epsilon", 1, *account, "--by", "city")
    ledger = LedgerFile.open(path).data_set("test")
    assert 0.9 < ledger.spent <= 2
    statement = found["data"]["statement"]
    assert 0.8 < statement["epsilon"] <= 1.0
    assert statement["releases"] == 1
    assert statement["delta"] == 1e-3  # that of the ledger
    assert found["data"]["public"] is False
    evaluation(classes, "--epsilon", 1.9, *account)  # takes what is left, with some more noise
    assert 1.9 < ledger.spent <= 2
    message = refused("evaluate", classes / "run", classes / "data.csv", "--epsilon", 1, *account)
    assert "too little left" in message
    assert "Nothing was spent" in message


def test_people_are_the_unit_where_rows_have_owners(classes):
    found = evaluation(classes, "--epsilon", 1, "--delta", 1e-3, "--groups", "person")
    assert found["data"]["num_records"] == 100
    assert found["data"]["statement"]["unit"] == "one person, with all their rows"


def test_numbers_are_evaluated_privately(numbers):
    found = evaluation(numbers, "--epsilon", 5, "--delta", 1e-3, "--by", "city")
    assert set(found["metrics"]) == {"rmse", "coverage_90"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--public", "--epsilon", 1], "say one of"),
        (["--owner-only", "--public"], "say one of"),
        (["--epsilon", 0], "--epsilon must be a positive"),
        (["--epsilon", 1, "--delta", 2], "--delta must lie in"),
        (["--delta", 1e-5], "--delta needs --epsilon"),
        (["--public", "--groups", "person"], "--groups needs --epsilon"),
        (["--epsilon", 1, "--ledger", "x"], "go together"),
        (["--epsilon", 1, "--by", "person"], "which values occur is private"),
        (["--epsilon", 1, "--groups", "x"], "lacks the columns 'x'"),
        (["--by", "x"], "lacks the columns 'x'"),
        (["--by", "dose"], "groups need at most 50"),
        (["--epsilon", 1, "--seed", -3], "--seed must be"),
    ],
)
def test_options_that_make_no_sense_are_refused(classes, options, message):
    error = refused("evaluate", classes / "run", classes / "data.csv", *options)
    assert message in error
    assert not (classes / "run/evaluation.json").exists()


def test_unknown_labels_are_counted_not_shown(classes):
    (classes / "new.csv").write_text("dose,age,city,ill\n3,40,Oslo,perhaps\n4,40,Rome,no\n")
    error = refused("evaluate", classes / "run", classes / "new.csv", "--public")
    assert "1 of 2 labels are not among the classes" in error
    assert "perhaps" not in error


def test_a_run_that_diverged_is_named_before_anything_is_spent(classes, monkeypatch):
    found, _ = synthetic(3, seed=0)
    lost = found._replace(mutual_information=np.full(3, np.nan))
    monkeypatch.setattr(FittedTable, "predict", lambda *_: lost)
    error = refused("evaluate", classes / "run", classes / "data.csv", "--epsilon", 1)
    assert "its fit diverged" in error


# What is released about private records


def synthetic(num_records, seed):
    rng = np.random.default_rng(seed)
    p = rng.uniform(0.05, 0.95, num_records)
    labels = (rng.uniform(size=num_records) < p).astype(int)
    probabilities = np.stack([1 - p, p], axis=1)
    entropy = -(probabilities * np.log(probabilities)).sum(axis=1)
    nothing = np.zeros(num_records)
    found = ClassificationUncertainty(
        probabilities, entropy, entropy, nothing, probabilities, probabilities, probabilities
    )
    return found, labels


def test_private_figures_are_the_exact_ones_up_to_stated_noise():
    found, labels = synthetic(20_000, seed=0)
    sex = Groups(("f", "m", "(other)"), np.arange(20_000) % 2)
    document, statement = evaluate_privately(
        found, labels, budget=Budget(1.0, 1e-6), by={"sex": sex}, seed=1
    )
    right = np.mean(found.probabilities.argmax(axis=1) == labels)
    own = document["metrics"]["accuracy"]
    # Noise: multiplier 4.2, norm sqrt(11), 20000 records, so a standard deviation of 0.0007.
    assert own["value"] == pytest.approx(right, abs=5 * 0.0007)
    assert own["low"] < right < own["high"]
    # Calibrated by construction; one seed in forty would put the end of its interval above zero.
    assert document["metrics"]["ece"]["low"] == 0
    halves = {row["value"]: row for row in document["subgroups"]}
    assert set(halves) == {"f", "m"}  # nobody is another
    assert halves["f"]["num_records"] == pytest.approx(10_000, abs=5 * 14)
    assert 0.95 < statement.epsilon <= 1.0
    coverages = [row["coverage"] for row in document["selective"]]
    assert coverages == sorted(coverages)


def test_one_record_adds_a_vector_within_the_norm_that_is_charged(monkeypatch):
    seen = {}

    def spy(vectors, *, max_norm, **_):
        seen["excess"] = np.linalg.norm(vectors, axis=1).max() - max_norm
        raise InvalidArgumentError("seen")

    monkeypatch.setattr("tacit.studies.private_evaluation.noisy_sums", spy)
    found, labels = synthetic(500, seed=1)
    with pytest.raises(InvalidArgumentError, match="seen"):
        evaluate_privately(found, 1 - labels, budget=Budget(1.0, 1e-6))
    # Were it larger, the engine's clip would bend the figures; privacy holds in any case.
    assert seen["excess"] <= 0
