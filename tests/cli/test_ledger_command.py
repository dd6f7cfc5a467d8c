"""``tacit ledger``: budgets are set, shown, checked and explained."""

import json
import sys

import dp_accounting as dpa
import pytest
from typer.testing import CliRunner

from tacit import cli
from tacit.privacy.budget import RunRequest
from tacit.privacy.cost import Cost
from tacit.privacy.ledger import LedgerFile

BUDGET = ["--data-set", "census", "--epsilon", "1", "--delta", "1e-6"]
COST = dpa.GaussianDpEvent(20.0)


def tacit(*arguments, code=0):
    words = ["ledger", *map(str, arguments)]
    result = CliRunner().invoke(cli.app, words, catch_exceptions=False, env={"COLUMNS": "120"})
    assert result.exit_code == code
    return result


@pytest.fixture
def path(tmp_path):
    tacit("create", tmp_path / "people.ledger", *BUDGET)
    return tmp_path / "people.ledger"


@pytest.fixture
def census(path):
    return LedgerFile.open(path).data_set("census")


def test_create_sets_a_budget_and_adds_another_to_the_same_file(path):
    out = tacit("create", path, "--data-set", "clinic", "--epsilon", 2, "--delta", 1e-5, "--filter",
                "gdp", "--json").stdout  # fmt: skip
    assert json.loads(out)["filter"] == "GDP filter"
    told = json.loads(tacit("show", path, "--json").stdout)["data_sets"]
    assert [(one["data_set"], one["epsilon"], one["delta"]) for one in told] == [
        ("census", 1.0, 1e-6),
        ("clinic", 2.0, 1e-5),
    ]


def test_show_tells_what_is_spent_the_runs_and_the_forks(path, census):
    assert "no run yet" in tacit("show", path).stdout
    root = census.begin(
        RunRequest(cost=Cost(COST, is_secure=False), purpose="fit SGLD", num_steps=5)
    )
    root.charge(COST, num_steps=2)
    for _ in range(2):
        census.begin(
            RunRequest(cost=Cost(COST, is_secure=True), parent=root.run_id, parent_step=2)
        ).charge(COST)
    told = json.loads(tacit("show", path, "--data-set", "census", "--json").stdout)
    (one,) = told["data_sets"]
    assert one["epsilon_spent"] == pytest.approx(census.spent)
    assert [run["charges"] for run in one["runs"]] == [1, 1, 1]
    assert one["forks"][0]["step"] == 2
    text = tacit("show", path).stdout
    assert "of 1 is spent, at delta 1e-06 (RDP filter, adjacency zero-out)" in text
    assert "2 of 5" in text
    assert "INSECURE" in text
    assert f"fork: 2 runs went on from step 2 of {root.run_id}" in text


def test_the_bar_is_rounded_up_and_never_longer_than_the_budget():
    from tacit.cli.ledger import _bar

    assert _bar(0.0, "#", "-", width=4) == "----"
    assert _bar(0.01, "#", "-", width=4) == "#---"
    assert _bar(7.0, "#", "-", width=4) == "####"


def test_history_lists_every_charge_with_its_cost(path, census):
    assert "nothing was charged yet" in tacit("history", path).stdout
    census.charge(Cost(COST, is_secure=True), purpose="[bold]mean[/]")
    (charge,) = json.loads(tacit("history", path, "--json").stdout)
    assert charge["cost"] == {"kind": "GaussianDpEvent", "noise_multiplier": 20.0}
    assert "[bold]mean[/]" in tacit("history", path).stdout  # text, not markup
    assert "[bold]mean[/]" in tacit("show", path).stdout


def test_verify_says_whether_the_file_is_what_was_written(path, census):
    head = json.loads(tacit("verify", path, "--json").stdout)["head"]
    census.charge(Cost(COST, is_secure=True))
    assert "intact" in tacit("verify", path, "--head", head).stdout
    answer = json.loads(tacit("verify", path, "--head", "00", "--json", code=1).stdout)
    assert not answer["is_intact"]
    content = bytearray(path.read_bytes())
    position = content.index(b"noise_multiplier")
    content[position] ^= 1
    path.write_bytes(content)
    result = tacit("verify", path, code=1)
    assert f"{path} is damaged" in result.stderr
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "missing.ledger"], "missing.ledger. Give"),
        (["verify", "missing.ledger"], "missing.ledger. Give"),
        (["create", "no/such/x.ledger", *BUDGET], "cannot be made"),
        (["create", "x.ledger", *BUDGET[:2], "--epsilon", "0", "--delta", "1e-6"], "--epsilon"),
        (["create", "x.ledger", *BUDGET[:4], "--delta", "1"], "--delta"),
        (["create", "x.ledger", "--data-set", "", *BUDGET[2:]], "readable text"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    words, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["tacit", "ledger", *words])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    told = capsys.readouterr()
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not list(tmp_path.iterdir())  # nothing is left behind


def test_a_data_set_that_is_not_there_is_named_with_those_that_are(path):
    result = CliRunner().invoke(cli.app, ["ledger", "show", str(path), "--data-set", "other"])
    assert "has no data set 'other'; it has 'census'" in str(result.exception)
