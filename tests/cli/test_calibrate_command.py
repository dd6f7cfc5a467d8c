"""``tacit calibrate`` finds noise or steps that really are within the budget."""

import json
import sys

import dp_accounting as dpa
import pytest
from typer.testing import CliRunner

from tacit import cli
from tacit.privacy.budget import Budget

BUDGET = ["--epsilon", "1", "--delta", "1e-5"]


def tacit(*arguments):
    result = CliRunner().invoke(cli.app, ["calibrate", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def run(rate, noise, steps):
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def test_the_noise_that_is_printed_is_within_the_budget_and_a_little_less_is_not():
    answer = json.loads(tacit(*BUDGET, "--rate", "0.01", "--steps", "300", "--json"))
    noise, budget = answer["noise_multiplier"], Budget(1.0, 1e-5)
    assert noise == round(noise, 3)
    assert budget.allows(run(0.01, noise, 300))
    assert not budget.allows(run(0.01, noise - 0.004, 300))
    assert answer["epsilon"] == pytest.approx(budget.spent(run(0.01, noise, 300)))
    text = tacit(*BUDGET, "--rate", "0.01", "--steps", "300")
    assert f"noise multiplier {noise:.3f}" in text
    assert f"costs epsilon {answer['epsilon_rounded_up']} at delta 1e-05" in text
    assert "PLD" in text
    assert "adjacency zero-out" in text


def test_the_steps_that_are_printed_are_within_the_budget_and_one_more_is_not():
    arguments = [*BUDGET, "--batch", "10", "--records", "1000", "--noise-multiplier", "1.2"]
    steps = json.loads(tacit(*arguments, "--json"))["steps"]
    budget = Budget(1.0, 1e-5)
    assert budget.allows(run(0.01, 1.2, steps))
    assert not budget.allows(run(0.01, 1.2, steps + 1))
    assert f"steps {steps}\n" in tacit(*arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--steps", "10", "--noise-multiplier", "1"], "give either --steps"),
        ([], "give either --steps"),
        (["--noise-multiplier", "0.01"], "not even one step"),
        (["--steps", "-3"], "--steps must"),
        (["--noise-multiplier", "-3"], "--noise-multiplier must"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_two(monkeypatch, capsys, options, message):
    arguments = ["calibrate", *BUDGET, "--rate", "0.5", *options]
    monkeypatch.setattr(sys, "argv", ["tacit", *arguments])
    with pytest.raises(SystemExit) as exit_:
        cli.main()
    assert exit_.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_an_impossible_budget_names_its_option(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["tacit", "calibrate", "--epsilon", "0", "--delta", "1e-5"])
    with pytest.raises(SystemExit):
        cli.main()
    assert "--epsilon must be a positive" in capsys.readouterr().err
