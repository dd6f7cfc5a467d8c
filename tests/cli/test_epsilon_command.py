"""``tacit epsilon`` prints what is true, and one line when it cannot."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest
from typer.testing import CliRunner

from tacit import cli

RUN = ["--noise-multiplier", "1.3", "--steps", "3515", "--delta", "1e-5"]
RATE = ["--rate", "0.004266666666666667"]
SIZES = ["--records", "60000", "--batch", "256"]


def tacit(*arguments):
    result = CliRunner().invoke(cli.app, ["epsilon", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def failure(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["tacit", "epsilon", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    return captured.err


def test_it_prints_epsilon_rounded_up_with_accountant_and_adjacency():
    out = tacit(*RUN, *RATE)
    assert "epsilon 0.865 at delta 1e-05" in out
    assert "PLD" in out
    assert "adjacency zero-out" in out


def test_a_rate_can_be_given_as_batch_and_records():
    assert tacit(*RUN, *RATE) == tacit(*RUN, *SIZES)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        (["--accountant", "rdp"], "0.955"),
        (["--accountant", "clt-approximation"], "0.835"),
        (["--adjacency", "replace-one"], "1.556"),
        (["--sampling", "fixed", "--adjacency", "add-remove"], "4.357"),
        (["--sampling", "fixed"], "5.087"),
        (["--capacity", "400"], "0.865"),
        (["--sampling", "full", "--accountant", "gdp"], "1233.489"),
    ],
)
def test_every_option_changes_what_it_says(options, shown):
    assert f"epsilon {shown} at" in tacit(*RUN, *SIZES, *options)


def test_the_approximation_is_called_one():
    out = tacit(*RUN, *RATE, "--accountant", "clt-approximation")
    assert "CLT approximation" in out
    assert "not a guarantee" in out


def test_json_is_for_programs():
    answer = json.loads(tacit(*RUN, *RATE, "--json"))
    assert answer["epsilon"] == pytest.approx(0.86446, abs=1e-4)
    assert answer["epsilon_rounded_up"] == "0.865"
    assert answer["delta"] == 1e-5
    assert answer["is_bound"] is True
    assert (answer["accountant"], answer["adjacency"]) == ("PLD", "zero-out")


def test_an_infinite_epsilon_is_valid_json():
    nearly_no_noise = ["--noise-multiplier", "1e-12", "--steps", "3515", "--delta", "1e-5"]
    answer = json.loads(tacit(*nearly_no_noise, *SIZES, "--json"))
    assert answer["epsilon"] is None
    assert answer["epsilon_rounded_up"] == "infinity"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise-multiplier", "-1", "--steps", "1", "--delta", "1e-5", *RATE], "--noise-mult"),
        (["--noise-multiplier", "1", "--steps", "0", "--delta", "1e-5", *RATE], "--steps must"),
        (["--noise-multiplier", "1", "--steps", "1", "--delta", "2", *RATE], "--delta must"),
        ([*RUN, "--rate", "1.5"], "--rate must"),
        (RUN, "needs --rate, or --batch and --records"),
        ([*RUN, "--sampling", "fixed", *RATE], "needs --records and --batch"),
        ([*RUN, *RATE, "--capacity", "300"], "add --records"),
        ([*RUN, *SIZES, "--sampling", "full", "--capacity", "300"], "--capacity"),
        ([*RUN, "--records", "10", "--batch", "20"], "--batch must be at most --records"),
        ([*RUN, *RATE, "--accountant", "gdp"], "nobody has proven"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(monkeypatch, capsys, options, message):
    assert message in failure(monkeypatch, capsys, *options)


def test_the_installed_command_runs_and_fails_without_a_traceback():
    command = [sys.executable, "-c", "from tacit.cli import main; main()"]
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"tacit {version('tacit')}"
    failed = subprocess.run(
        [*command, "epsilon", *RUN, "--rate", "7"], capture_output=True, text=True, check=False
    )
    assert failed.returncode == 2
    assert failed.stderr.strip() == "error: --rate must lie in (0, 1]; got 7.0."


def test_the_help_has_an_example_that_works():
    out = " ".join(tacit("--help").split())
    example = "--noise-multiplier 1.3 --batch 256 --records 60000 --steps 3515 --delta 1e-5"
    assert example in out
    assert "epsilon 0.865" in tacit(*example.split())
