"""What headline rows are run with is what won on a public stand-in."""

import pytest
from experiments import (
    choosing_regression,
    knolle_mnist,
    knolle_pneumonia,
    pneumonia,
    zhang_regression,
)
from experiments.cells import read_rows
from experiments.choosing import winner
from experiments.markdown import at


def test_the_winner_has_the_highest_mean_over_its_runs():
    rows = [
        {"settings": {"rate": rate}, "scores": {"accuracy": accuracy}}
        for rate, accuracy in [(1, 0.9), (2, 0.8), (1, 0.5), (2, 0.8)]
    ]
    assert winner(rows, lambda row: row["scores"]["accuracy"]) == {"rate": 2}


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("method", zhang_regression.METHODS)
def test_a_row_of_the_regression_won_on_other_draws_of_the_process(method, is_private):
    chosen = zhang_regression.chosen(method, is_private=is_private)
    rows = at(read_rows("choosing_regression"), {"method": method, "epsilon": chosen["epsilon"]})
    best = winner(rows, lambda row: -row["scores"]["test MSE"])
    assert best == chosen | {"first_draw": choosing_regression.FIRST_DRAW}


@pytest.mark.parametrize("settings", [knolle_mnist.SGD, knolle_mnist.DP_SGD])
def test_descent_of_knolle_with_and_without_privacy_won_on_moved_digits(settings):
    wanted = {"data": "moved_digits", "procedure": settings["procedure"]}
    rows = at(read_rows("choosing_knolle"), wanted)
    best = winner(rows, lambda row: row["scores"]["accuracy"])
    assert best == settings | {"data": "moved_digits"}


@pytest.mark.parametrize("settings", [knolle_pneumonia.SGD, knolle_pneumonia.DP_SGD])
def test_descent_of_knolle_with_and_without_privacy_won_on_shirts(settings):
    wanted = {"data": "shirts", "procedure": settings["procedure"]}
    rows = at(read_rows("choosing_knolle"), wanted)
    best = winner(rows, lambda row: row["scores"]["AUROC"])
    assert best == settings | {"data": "shirts"}


@pytest.mark.parametrize("choice", [pneumonia.HEADLINE, pneumonia.MIRRORED])
def test_settings_for_pneumonia_won_on_shirts_among_those_with_the_same_features(choice):
    rivals = [
        row
        for row in read_rows("choosing_pneumonia")
        if row["settings"].get("mirrored") == choice.get("mirrored")
    ]
    best = winner(rivals, lambda row: -row["scores"]["NLL"])
    assert best == choice | {"data": "shirts"}
