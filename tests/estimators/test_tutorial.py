"""The tutorial about tables runs, and the measured defaults are those of the document."""

import json
import math
import warnings
from pathlib import Path

from examples import estimator_defaults
from examples.tutorials import table

from tacit import PrivacyWarning

ROOT = Path(__file__).parents[2]


def test_the_tutorial_runs_on_a_part_of_the_table(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)  # it is seeded here
        found = table.run(tmp_path, num_records=2000, random_state=0)
    # Nearly four in five earn less; 2000 records at epsilon 1 are enough to see a little more.
    assert found["accuracy"] > 0.77
    assert found["accuracy_where_sure"] > found["accuracy"]
    assert 0.98 < found["epsilon"] <= 1.0
    assert (tmp_path / "posterior.safetensors").exists()


def rows():
    return json.loads((ROOT / "docs/pictures/estimators.json").read_text())


def test_the_measured_defaults_are_the_table_of_the_document():
    document = (ROOT / "docs/scikit-learn.md").read_text(encoding="utf-8")
    assert estimator_defaults.table(rows()) in document
    assert [row["table"] for row in rows()] == list(estimator_defaults.TABLES)


def test_the_measured_defaults_reach_what_was_asked_of_them():
    found = {row["table"]: row for row in rows()}
    adult = found["Adult, public schema"]
    assert adult["accuracy"] >= 0.84
    assert adult["ece"] <= 0.02
    assert adult["accuracy_without_privacy"] - adult["accuracy"] <= 0.015
    assert found["breast cancer, public bounds"]["accuracy"] >= 0.92
    assert found["digits, public bounds"]["accuracy"] >= 0.85
    assert all(row["num_seeds"] == 5 for row in rows())


def test_the_measurement_can_be_repeated_in_small():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        row = estimator_defaults.measure("digits, public bounds", num_seeds=1, num_steps=3)
    assert all(math.isfinite(value) for name, value in row.items() if name != "table")
