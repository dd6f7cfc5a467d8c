"""The examples run, on few records and for few steps, and keep to their budgets."""

import importlib
import json
import math
import warnings
from pathlib import Path

import pytest
from examples import (
    adaptive_clip,
    adv_hmc,
    clip_bias,
    clip_share,
    compare,
    last_layers,
    regression_table,
    warm_hmc,
)

from tacit.errors import PrivacyWarning

ROOT = Path(__file__).parents[1]
SHARED = {
    *("__init__", "census", "clip_bias", "compare", "digits", "estimator_defaults"),
    *("adaptive_clip", "clip_share", "last_layers", "regression_table", "warm_hmc"),
}
ROBUST = {"adversarial", "certified"}
CERTIFIED_HMC = {"adv_hmc"}


@pytest.fixture(autouse=True)
def _small_tables_have_a_large_delta():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def test_every_example_is_compared_or_robust():
    found = {path.stem for path in (ROOT / "examples").glob("*.py")} - SHARED
    assert found == {*compare.METHODS, *ROBUST, *CERTIFIED_HMC}


@pytest.mark.parametrize("name", compare.METHODS)
def test_an_example_runs_within_its_budget(name):
    module = importlib.import_module(f"examples.{name}")
    fit, scores = module.run(num_steps=4, num_records=400, seed=0)
    assert all(math.isfinite(score) for score in scores)
    assert float(fit.statement.epsilon) <= 1.0


def test_the_last_layer_of_a_network_is_fitted_within_its_budget():
    fit, scores = importlib.import_module("examples.laplace").last_layer(num_steps=4, seed=0)
    assert float(fit.statement.epsilon) <= 1.0
    assert scores.accuracy > 0.6


def test_the_table_of_last_layers_has_a_row_for_each_method(monkeypatch):
    chosen = {key: last_layers.METHODS[key] for key in [(370, "SGLD"), (1450, "Laplace, rank 4")]}
    monkeypatch.setattr(last_layers, "METHODS", chosen)
    rows = last_layers.table(epsilons=(8.0,), num_seeds=1)
    accuracies = [float(row.split("|")[4]) for row in rows]
    assert len(accuracies) == 2
    # One in ten by chance.
    assert min(accuracies) > 0.5


def test_the_bound_on_clipped_records_holds():
    row = clip_share.compare(0.9, clip_share.NUM_RECORDS, num_runs=2)
    assert row.held == 1.0
    assert 0.1 < row.true < row.bound < row.true + 0.1


def test_a_clip_norm_that_follows_the_norms_moves_and_then_stays(monkeypatch):
    monkeypatch.setattr(adaptive_clip.digits, "digits", lambda: digits_of(300))
    _, _, fixed = adaptive_clip.trial("digits", 0.25, None, seed=0)
    _, _, moved = adaptive_clip.trial("digits", 0.25, 0.5, seed=0)
    assert fixed == 0.25
    assert moved > 0.3


def digits_of(num_records, whole=adaptive_clip.digits.digits):
    return whole(num_records)


def test_a_small_clip_moves_the_optimum_and_a_large_one_does_not():
    moved, share = clip_bias.bias(1.0, seed=0)
    assert moved > 2
    assert 0.05 < share < 0.5
    assert clip_bias.bias(10.0, seed=0) == (0.0, 0.0)


def test_the_regression_table_has_a_row_for_each_coefficient():
    table = regression_table.run(num_records=3000, seed=0)
    lines = regression_table.markdown(table).splitlines()
    assert len(lines) == 2 + len(regression_table.NAMES) + 1
    assert all(low < mean < high for mean, low, high in zip(*table[:3], strict=True))
    # Married people have much higher odds of a large income, with privacy as without.
    married = regression_table.NAMES.index("married")
    assert table.low[married] > 1
    assert 0 < table.privacy_share[married] < 1


@pytest.mark.parametrize("name", sorted(ROBUST))
def test_a_robust_example_runs(name):
    found = importlib.import_module(f"examples.{name}").run(num_steps=2, num_records=100, seed=0)
    assert all(0 <= value <= 1 for value in found.values())


def test_certified_hmc_runs_within_its_budget_and_tells_its_acceptance():
    found = adv_hmc.run(num_steps=2, num_records=100, seed=0)
    epsilons = [found.pop(f"{name}, epsilon") for name in ("plain", "certified")]
    assert all(7.9 < epsilon <= 8.0 for epsilon in epsilons)
    assert all(0 <= value <= 1 for value in found.values())
    assert found["certified, certified"] <= found["certified, attacked"]


def test_private_hmc_moves_from_a_private_start_and_not_from_the_prior():
    problem = warm_hmc.Problem.draw(2, 8.0, 0)
    stuck, moved = (warm_hmc.run(name, problem) for name in ("from the prior", "`fit_hmc`"))
    assert stuck.acceptance < 0.05
    assert moved.acceptance > 0.2
    assert moved.distinct > stuck.distinct
    assert moved.nll < stuck.nll


def test_the_comparison_is_the_table_of_the_document():
    rows = json.loads((ROOT / "docs/pictures/methods.json").read_text())
    assert compare.table(rows) in (ROOT / "docs/how-to-choose.md").read_text(encoding="utf-8")
    assert {row["method"] for row in rows} == set(compare.METHODS.values())
