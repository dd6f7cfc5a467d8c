"""What an epsilon means: the numbers are those of the best attack, never smaller."""

import json
import math
import re
from pathlib import Path

import dp_accounting as dpa
import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

from tacit import cli
from tacit.errors import InvalidArgumentError, TacitError
from tacit.privacy.accounting import GDP
from tacit.privacy.budget import Budget
from tacit.privacy.cost import event_to_json
from tacit.privacy.interpretation import (
    TradeOff,
    explain,
    explain_cost,
    explain_statement,
    gaussian_mu,
    posterior_probability,
)
from tacit.report.figures import trade_off_figure

RATES = np.array([1e-4, 1e-3, 0.01, 0.05, 0.2, 0.5, 0.9])
POISSON = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.5)), 20)


@pytest.mark.parametrize("mu", [0.05, 0.25, 1.0, 4.0])
def test_the_curve_of_a_gaussian_is_the_one_in_closed_form(mu):
    curve = TradeOff.gaussian(mu)
    exact = norm.cdf(norm.ppf(RATES) + mu)
    found = curve.true_positive_rate(RATES)
    # From above, as every point of the grid is a promise that holds.
    assert np.all(found >= exact * (1 - 1e-9))
    np.testing.assert_allclose(found, exact, rtol=1e-3)
    reported = np.array([1e-3, 1e-2])
    np.testing.assert_allclose(
        curve.true_positive_rate(reported), norm.cdf(norm.ppf(reported) + mu), rtol=1e-5
    )
    assert curve.advantage == pytest.approx(2 * norm.cdf(mu / 2) - 1, rel=1e-9)


def test_many_full_batches_are_one_gaussian():
    cost = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(10.0), 25)
    found = explain_cost(cost, delta=1e-5).trade_off.true_positive_rate(RATES)
    np.testing.assert_allclose(found, norm.cdf(norm.ppf(RATES) + 0.5), rtol=1e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.1), (0.5, 0.0), (2.0, 1e-6), (8.0, 0.01)])
def test_the_curve_of_a_promise_is_reached_by_the_canonical_mechanism(epsilon, delta):
    # Kairouz et al.: with probability delta all is told, else one bit with odds e^epsilon.
    present = np.array([delta, *((1 - delta) * np.array([math.exp(epsilon), 1.0])), 0.0])
    present[1:3] /= 1 + math.exp(epsilon)
    absent = present[::-1]
    possible = present + absent > 0
    present, absent = present[possible], absent[possible]
    order = np.argsort(-present / np.maximum(absent, 1e-300), kind="stable")
    corners_x = np.concatenate([[0.0], np.cumsum(absent[order])])
    corners_y = np.concatenate([[0.0], np.cumsum(present[order])])
    reached = np.interp(RATES, corners_x, corners_y)
    promised = TradeOff.of_promise(epsilon=epsilon, delta=delta)
    np.testing.assert_allclose(promised.true_positive_rate(RATES), reached, rtol=1e-12)
    total_variation = np.abs(present - absent).sum() / 2
    assert promised.advantage == pytest.approx(total_variation, rel=1e-12)


def test_an_attack_on_a_poisson_batch_stays_below_the_curve_and_comes_close():
    # One release: the likelihood ratio of a mixture of Gaussians grows with the value seen.
    rate, noise = 0.3, 0.7
    cost = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    curve = TradeOff.of_cost(cost)
    at = np.linspace(-3, 5, 2000)
    false, true = (
        norm.sf(at / noise),
        (1 - rate) * norm.sf(at / noise) + rate * norm.sf((at - 1) / noise),
    )
    assert np.all(true <= curve.true_positive_rate(false) + 1e-9)
    small = (false > 1e-3) & (false < 0.05)
    # The curve is that of both directions at once, and this one is the stronger here.
    np.testing.assert_allclose(curve.true_positive_rate(false[small]), true[small], rtol=2e-3)


def test_the_executed_cost_is_never_worse_than_its_epsilon_says():
    executed = explain_cost(POISSON, delta=1e-5)
    promised = explain(epsilon=executed.epsilon, delta=1e-5)
    found = executed.trade_off.true_positive_rate(RATES)
    # A delta between two points of the grid is bounded by the point above.
    assert np.all(found <= promised.trade_off.true_positive_rate(RATES) * 1.02)
    assert executed.true_positive_rate(0.01) < 0.5 * promised.true_positive_rate(0.01)


def test_a_curve_rises_from_at_least_the_diagonal_to_one():
    rates = np.linspace(0, 1, 101)
    for curve in (TradeOff.of_cost(POISSON), TradeOff.of_promise(epsilon=0.1, delta=0.0)):
        found = curve.true_positive_rate(rates)
        assert np.all(np.diff(found) >= -1e-15)
        assert np.all(found >= rates)
        assert found[-1] == 1.0


@pytest.mark.parametrize("prior", [0.001, 0.1, 0.5, 0.9])
def test_the_odds_grow_by_the_exponential_of_epsilon(prior):
    posterior = posterior_probability(prior, epsilon=1.5)
    odds = posterior / (1 - posterior) / (prior / (1 - prior))
    assert odds == pytest.approx(math.exp(1.5))


def test_a_certain_prior_stays_certain_and_infinity_makes_certain():
    assert posterior_probability(0.0, epsilon=3.0) == 0.0
    assert posterior_probability(1.0, epsilon=3.0) == 1.0
    assert posterior_probability(0.2, epsilon=math.inf) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-5), (8.0, 1e-6)])
def test_the_gaussian_equivalent_has_the_same_epsilon(epsilon, delta):
    mu = gaussian_mu(epsilon=epsilon, delta=delta)
    cost = dpa.GaussianDpEvent(1 / mu)
    assert GDP().epsilon(cost, delta=delta) == pytest.approx(epsilon, rel=1e-9)


def test_an_accusation_is_right_as_often_as_bayes_says():
    explanation = explain(epsilon=2.0, delta=1e-6)
    found = explanation.true_positive_rate(0.01)
    assert explanation.precision(0.01) == pytest.approx(found / (found + 0.01))
    assert explanation.precision(0.01, prior=0.01) < 0.08


def test_without_a_promise_every_attack_is_allowed():
    explanation = explain(epsilon=math.inf, delta=1e-5)
    assert explanation.true_positive_rate(0.0) == 1.0
    assert "Nothing is promised" in str(explanation)
    assert json.loads(json.dumps(explanation.to_json(), allow_nan=False))["epsilon"] == "infinity"
    non_private = explain_cost(dpa.NonPrivateDpEvent(), delta=1e-5)
    assert non_private.true_positive_rate(0.0) == 1.0


def statement(**changes):
    budget = Budget(epsilon=10.0, delta=1e-5)
    return {
        "epsilon": round(budget.spent(POISSON) + 5e-4, 3),
        "delta": 1e-5,
        "adjacency": "zero-out: one record may count or contribute nothing",
        "cost": event_to_json(POISSON),
        "is_bound": True,
        "is_secure": True,
    } | changes


def test_a_statement_is_explained_from_its_executed_cost():
    explanation = explain_statement(statement())
    exact = explain_cost(POISSON, delta=1e-5)
    assert explanation.is_executed
    expected = exact.trade_off.true_positive_rate(RATES)
    np.testing.assert_array_equal(explanation.trade_off.true_positive_rate(RATES), expected)


def test_a_statement_that_is_weak_says_so():
    assert "INSECURE" in str(explain_statement(statement(is_secure=False)))
    assert "approximation" in str(explain_statement(statement(is_bound=False)))
    assert "Nothing is promised" in str(explain_statement(statement(epsilon="infinity")))


def test_what_is_no_statement_is_refused_by_what_it_lacks():
    with pytest.raises(InvalidArgumentError, match="'cost'"):
        explain_statement({key: value for key, value in statement().items() if key != "cost"})


def test_the_sentences_say_the_numbers_rounded_to_the_side_of_safety():
    text = str(explain(epsilon=2.0, delta=1e-6))
    assert 100 * explain(epsilon=2.0, delta=1e-6).true_positive_rate(0.01) == pytest.approx(
        7.389, abs=1e-3
    )
    assert "finds at most 7.4 % of those who took part" in text
    assert "becomes at most 88.1 %, at least 11.9 %, but for a chance of 1e-06" in text


def test_a_picture_needs_one_to_four_curves():
    with pytest.raises(InvalidArgumentError, match="one to 4"):
        trade_off_figure({})


def test_the_table_of_the_document_is_computed_by_this_code():
    document = (Path(__file__).parents[2] / "docs/what-epsilon-means.md").read_text("utf-8")
    rows = re.findall(r"^\| ([0-9.]+) \| (.*) \|$", document, re.MULTILINE)
    assert [float(epsilon) for epsilon, _ in rows] == [0.1, 0.5, 1, 2, 4, 8]
    for text, cells in rows:
        epsilon = float(text)
        gaussian = TradeOff.gaussian(gaussian_mu(epsilon=epsilon, delta=1e-5))
        exact = [
            explain(epsilon=epsilon, delta=1e-5).true_positive_rate(0.01),
            float(gaussian.true_positive_rate(0.01)),
            posterior_probability(0.5, epsilon=epsilon),
            posterior_probability(0.01, epsilon=epsilon),
        ]
        for cell, value in zip(cells.split(" | "), exact, strict=True):
            number = cell.removesuffix(" %")
            step = 10.0 ** -len(number.partition(".")[2])
            # Rounded up, by less than one in the last digit.
            assert 0 <= float(number) - 100 * value < step, (text, cell, 100 * value)


# The command.


def tacit(*arguments):
    return CliRunner().invoke(cli.app, ["explain", *arguments])


def test_the_command_explains_a_promise():
    result = tacit("--epsilon", "2", "--delta", "1e-6")
    assert result.exit_code == 0
    assert result.stdout.rstrip("\n") == str(explain(epsilon=2.0, delta=1e-6))


def test_the_command_explains_a_run_and_draws_it(tmp_path):
    (tmp_path / "statement.json").write_text(json.dumps(statement()))
    picture = tmp_path / "curve.png"
    result = tacit("--run", str(tmp_path), "--plot", str(picture), "--json")
    assert result.exit_code == 0
    answer = json.loads(result.stdout)
    assert answer["is_executed"] is True
    expected = explain_statement(statement()).true_positive_rate(0.01)
    assert answer["true_positive_rate"]["at 1 % false positives"] == pytest.approx(expected)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --epsilon and --delta, or --run"),
        (["--epsilon", "1"], "give --epsilon and --delta, or --run"),
        (["--epsilon", "-1", "--delta", "1e-5"], "--epsilon must be"),
        (["--epsilon", "1", "--delta", "1"], "--delta must lie"),
        (["--run", "nowhere"], "nowhere does not exist"),
        (["--run", "x", "--delta", "1e-5"], "give either --run"),
        (["--epsilon", "1", "--delta", "1e-5", "--plot", "nowhere/x.png"], "--plot must be"),
        (["--epsilon", "1", "--delta", "1e-5", "--plot", "curve.docx"], "--plot must be"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_option(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    error = tacit(*arguments).exception
    assert isinstance(error, TacitError)
    assert message in str(error)
    assert "\n" not in str(error)


def test_a_file_that_is_not_json_is_named(tmp_path):
    (tmp_path / "statement.json").write_text("{")
    assert "is no JSON" in str(tacit("--run", str(tmp_path)).exception)
