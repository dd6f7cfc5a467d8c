"""``tacit demo`` on a few steps: it writes what may be published and fails in one line."""

import json
import sys

import pytest
from typer.testing import CliRunner

from tacit import cli, load_posterior


@pytest.fixture(scope="module")
def short_demo(tmp_path_factory):
    """One short run serves all tests that look at its traces."""
    output = tmp_path_factory.mktemp("demo") / "made" / "on demand"
    arguments = ["demo", "--steps", "40", "--seed", "0", "--json", "--output", str(output)]
    result = CliRunner().invoke(cli.app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return output, json.loads(result.stdout)


def test_json_holds_a_row_for_each_method_and_the_statement(short_demo):
    output, document = short_demo
    private, descent, plain = document["rows"]
    assert [row["name"] for row in document["rows"]] == ["DP-SGLD", "DP-SGD", "SGD, not private"]
    assert float(private["epsilon"].split()[0]) <= 1.0
    assert private["epsilon"].endswith("INSECURE")
    assert plain["epsilon"] == "infinity"
    # Three quarters of the test part earn at most 50 000: all fits must have learnt something.
    assert all(row["accuracy"] > 0.8 for row in document["rows"])
    assert private["epistemic"] > 100 * descent["epistemic"]
    assert document["statement"]["adjacency"].startswith("zero-out")
    assert document["statement"]["releases"] == 40
    assert document["output"] == str(output)


def test_the_folder_holds_picture_results_statement_and_a_posterior_that_loads(short_demo):
    output, document = short_demo
    assert (output / "reliability.png").read_bytes().startswith(b"\x89PNG")
    results = json.loads((output / "results.json").read_text())
    assert results["rows"] == document["rows"]
    assert "INSECURE" in (output / "statement.txt").read_text()
    posterior = load_posterior(output)
    assert (posterior.num_chains, posterior.num_kept) == (1, 20)
    assert posterior.statement == document["statement"]


def test_people_get_a_table_the_statement_and_where_the_files_are(monkeypatch, tmp_path, capsys):
    from tacit.cli import demo as command
    from tacit.cli.demo import DemoRow
    from tacit.privacy.budget import Budget
    from tacit.privacy.cost import Cost
    from tacit.privacy.sampling import PoissonBatch
    from tacit.privacy.statement.construction import make_statement

    statement = make_statement(
        cost=Cost(PoissonBatch(num_records=100, batch_size=10).cost(5.0), is_secure=False),
        budget=Budget(epsilon=1.0, delta=1e-5),
        unit="one record (one row)",
        num_units=100,
    )
    row = DemoRow(
        name="SGD, not private",
        epsilon="infinity",
        delta=1e-5,
        accuracy=0.8504,
        nll=0.3,
        ece=0.01,
        epistemic=0.02,
        seconds=7.2,
    )

    class Private:
        pass

    Private.statement = statement
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(command, "run_demo", lambda *_, **__: ([row], Private))
    monkeypatch.setattr(sys, "argv", ["tacit", "demo", "-o", str(tmp_path / "here")])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert not exit_.value.code
    lines = capsys.readouterr().out.splitlines()
    assert any("SGD, not private" in line and "0.850" in line for line in lines)
    assert any("INSECURE: whoever knows the seed" in line for line in lines)
    assert (
        "  adjacency    zero-out: one record may count or contribute nothing; the number" in lines
    )
    assert "               of records is public" in lines
    assert lines[-1].startswith(f"Written to {tmp_path / 'here'}: reliability.png")
    assert all(len(line) <= 80 for line in lines[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--epsilon", "0"], "--epsilon must be a positive, finite number; got 0.0."),
        (["--epsilon", "inf"], "--epsilon must be a positive, finite number; got inf."),
        (["--epsilon", "nan"], "--epsilon must be a number; got NaN."),
        (["--delta", "2"], "--delta must lie in (0, 1); got 2.0."),
        (["--steps", "39"], "--steps must be at least 40; got 39."),
        (["--seed", "-1"], "--seed must be a whole number of at least 0; got -1. Leave it out"),
        (["--output", "taken"], "--output must be a folder that can be made; got 'taken'"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(
    monkeypatch, capsys, tmp_path, options, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    monkeypatch.setattr(sys, "argv", ["tacit", "demo", *options])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"error: {message}")
    assert captured.err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
