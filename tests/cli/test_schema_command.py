"""``tacit schema`` and ``tacit plan``: what comes before a fit."""

import json

import numpy as np
import pandas as pd
import pytest

from cli.tables import ILL, refused, tacit, write_patients
from tacit.data import CategoricalColumn, NumericColumn, NumericTarget, Schema, Target
from tacit.data.columns import Scale
from tacit.data.csv import read_csv, typed
from tacit.data.draft import rounded_range


@pytest.fixture
def people(tmp_path):
    rng = np.random.default_rng(0)
    n = 300
    frame = pd.DataFrame(
        {
            "id": np.arange(5000, 5000 + n),
            "name": [f"person number {i}" for i in range(n)],
            "age": rng.integers(17, 91, n).astype(str),
            "city": rng.choice(["Oslo", "Rome"], n),
            "children": rng.integers(0, 4, n),
            "gain": np.where(rng.uniform(size=n) < 0.05, 9e4, rng.uniform(0, 50, n)),
            "remark": [" ".join(rng.choice(["long", "text", "words"], 20)) for _ in range(n)],
            "nothing": "",
            "ill": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[3, "age"] = "?"
    frame.to_csv(tmp_path / "people.csv", index=False)
    return tmp_path / "people.csv"


def test_a_draft_says_that_it_is_one_on_screen_and_in_the_file(people, tmp_path):
    result = tacit("schema", people, "--target", "ill", "-o", tmp_path / "s.toml")
    text = (tmp_path / "s.toml").read_text()
    assert text.startswith("# A DRAFT. It was made by looking at the records")
    assert "A DRAFT. It was made by looking at the records" in result.stderr
    assert "code book" in " ".join(text.split())


def test_a_draft_that_nobody_checked_is_called_one_when_it_is_used(people, tmp_path):
    path = tmp_path / "s.toml"
    tacit("schema", people, "--target", "ill", "-o", path)
    words = ("plan", "--schema", path, "--records", 300, "--epsilon", 1)
    assert "is still a draft" in tacit(*words).stderr
    checked = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    path.write_text("\n".join(checked))
    assert "draft" not in tacit(*words).stderr


def test_a_draft_fits_its_table(people, tmp_path):
    text = tacit("schema", people, "--target", "ill").stdout
    schema = Schema.from_toml(text)
    assert schema.target == Target(name="ill", classes=("no", "yes"))
    assert schema.columns == (
        NumericColumn(name="age", low=0, high=90),
        CategoricalColumn(name="city", categories=("Oslo", "Rome")),
        CategoricalColumn(name="children", categories=(0, 1, 2, 3)),
        NumericColumn(name="gain", low=0, high=90000, scale=Scale.LOG1P),
    )
    assert schema.encode(typed(read_csv(people), schema)).shape[0] == 300


def test_a_draft_leaves_out_ids_and_free_text_and_says_so(people):
    found = json.loads(tacit("schema", people, "--target", "ill", "--json").stdout)
    notes = "\n".join(found["notes"])
    assert found["is_draft"] is True
    assert "id: left out: it looks like an id" in notes
    assert "name: left out" in notes
    assert "remark: left out" in notes
    assert "nothing: left out: it has no values" in notes
    assert 'age: "?" read as missing' in notes
    assert "children: few different numbers" in notes
    assert '# "id" is left out' in found["schema"]


def test_the_last_column_is_the_target_where_none_is_named(people):
    found = json.loads(tacit("schema", people, "--json").stdout)
    assert found["target"] == "ill"
    assert any("because it comes last" in note for note in found["notes"])


def test_a_column_of_many_numbers_is_a_numeric_target(people):
    text = tacit("schema", people, "--target", "age").stdout
    assert Schema.from_toml(text).target == NumericTarget(name="age", low=0, high=90)


def test_a_schema_with_corrections_is_not_replaced_unless_told(people, tmp_path):
    (tmp_path / "s.toml").write_text("mine")
    assert "may hold your corrections" in refused("schema", people, "-o", tmp_path / "s.toml")
    assert (tmp_path / "s.toml").read_text() == "mine"
    tacit("schema", people, "-o", tmp_path / "s.toml", "--overwrite")
    assert "A DRAFT" in (tmp_path / "s.toml").read_text()


def test_a_table_that_can_be_no_study_is_refused(people, tmp_path):
    assert "no column 'x' to be the target" in refused("schema", people, "--target", "x")
    assert "cannot be a target" in refused("schema", people, "--target", "nothing")
    (tmp_path / "one.csv").write_text("a\n1\n")
    assert "at least one more column" in refused("schema", tmp_path / "one.csv")
    (tmp_path / "same.csv").write_text("a,a,b\n1,2,3\n")
    assert "repeats the columns 'a'" in refused("schema", tmp_path / "same.csv")
    (tmp_path / "empty.csv").write_text("a,b\n,1\n,2\n")
    assert "no column but the target" in refused("schema", tmp_path / "empty.csv")


@pytest.mark.parametrize(
    ("low", "high"),
    [(17, 90), (-3.2, 1.1), (0, 0), (5, 5), (-7, -7), (1e-9, 2e-9), (1e300, 1.6e308), (-1e308, 1)],
)  # fmt: skip
def test_ranges_are_rounded_outwards(low, high):
    wide_low, wide_high = rounded_range(low, high)
    assert wide_low <= low
    assert high <= wide_high
    assert wide_low < wide_high


# Plans


def test_a_plan_tells_what_a_budget_buys(tmp_path):
    told = json.loads(
        tacit("plan", "--records", 500, "--features", 3, "--classes", 3, "--epsilon", 2, "--json")
        .stdout
    )  # fmt: skip
    assert 1.9 < told["epsilon"] <= 2.0
    assert told["rate"] == 1.0
    expected = told["noise_multiplier"] / 500
    assert told["noise_on_mean_gradient_over_clip"] == pytest.approx(expected)
    step = 1 / (expected * told["num_params"] ** 0.5)
    assert told["signal_to_noise_of_a_step"] == pytest.approx(step)
    assert told["signal_to_noise_of_the_run"] == pytest.approx(10 * step)  # a hundred steps


def test_more_budget_buys_less_noise_and_little_records_drown_in_it(tmp_path):
    write_patients(tmp_path)

    def told(*options):
        return tacit("plan", "--schema", tmp_path / "schema.toml", "--steps", 5, *options).stdout

    assert "noise drowns the signal" in told("--records", 10, "--epsilon", 0.1)
    assert "noise drowns the signal" not in told("--records", 5000, "--epsilon", 4)
    assert "no data was touched" in told("--records", 10)


def test_a_plan_is_that_of_the_fit(classes):
    study = {"--schema": classes / "run/schema.toml", "--records": 200, "--epsilon": 5,
             "--delta": 1e-3, "--steps": 4, "--hidden": "none"}  # fmt: skip
    options = [word for pair in study.items() for word in pair]
    told = json.loads(tacit("plan", *options, "--json").stdout)
    statement = json.loads((classes / "run/statement.json").read_text())
    assert told["noise_multiplier"] == statement["releases_made"][0]["lowest_noise_multiplier"]
    assert told["num_steps"] == statement["num_steps"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--records", 0, "--features", 2], "--records must be a whole number"),
        (["--records", 9], "give --schema, or --features"),
        (["--records", 9, "--features", 0], "--features must be"),
        (["--records", 9, "--features", 2, "--classes", 1], "must list at least two"),
        (["--records", 9, "--features", 2, "--schema", "s.toml"], "leave out --features"),
        (["--records", 9, "--schema", "nothing.toml"], "--schema must be a file"),
        (["--records", 9, "--features", 2, "--epsilon", 0], "--epsilon must be"),
        (["--records", 9, "--features", 2, "--delta", 1], "--delta must lie in"),
        (["--records", 9, "--features", 2, "--method", "x"], "method must be one of"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(options, message):
    assert message in refused("plan", *options)


def test_the_schema_of_the_patients_is_read_back(tmp_path):
    write_patients(tmp_path)
    assert Schema.from_toml((tmp_path / "schema.toml").read_text()) == ILL
