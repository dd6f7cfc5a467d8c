"""Credible intervals hold truths drawn from the prior as often as theory says: SBC and coverage.

The intervals of exact posterior draws hold the truth as often as their level says, averaged over
truths from the prior and data sets from the truth (Talts et al., "Validating Bayesian inference
algorithms with simulation-based calibration", 2018). With 19 independent draws that is exact in
finite numbers: the truth's rank among them is uniform on 0..19, so it is within the extreme draws
in 18 of 20 cases, and within the fifth and the fifteenth in 10 of 20.
"""

import functools
import importlib
import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import optax
import pytest
from scipy import stats

sys.path.append(str(Path(__file__).parents[2]))

from examples.coverage import (
    PROBLEMS,
    Reference,
    exponential_rates,
    normal_mean,
    optimum,
    reference,
    scores,
    simulate,
    tables,
)
from examples.coverage.__main__ import RECOMMENDED, WHOLE_NETWORK, cells
from examples.coverage.simulation import gdp_of, privacy_noise

import tacit
from tacit import metrics, recalibration

ROOT = Path(__file__).parents[2]
NUM_RECORDS, NUM_SETS, NUM_DRAWS = 200, 400, 19
# Of the truth's rank, inclusive; 90 and 50 % of the twenty ranks.
CENTRAL = {0.9: (1, 18), 0.5: (5, 14)}
SIGMA = math.sqrt(20.0)
NORMAL = normal_mean(NUM_RECORDS, SIGMA)
SKEWED = exponential_rates(NUM_RECORDS, prior_std=0.3)
FULL = tacit.FullBatch(num_records=NUM_RECORDS)
# A Langevin step goes this share of the way to the mean: after twenty, .01 of the start is left.
CONTRACTION, THINNING = 0.2, 20
STEP_SIZE = 2 * CONTRACTION / NORMAL.precision
# Five standard deviations of a residual: P(a record is clipped) = 4e-6.
NEVER = 5 / SIGMA


def engine(clip_norm, noise_multiplier):
    return tacit.GaussianSum(sampling=FULL, clip_norm=clip_norm, noise_multiplier=noise_multiplier)


def chain(method, thinning=THINNING):
    """Nineteen draws that are nearly independent, after two thinnings more of burn-in."""
    num_steps = (NUM_DRAWS + 2) * thinning
    return tacit.Plan(method=method, num_steps=num_steps, burn_in=2 * thinning, thinning=thinning)


def sgld(temperature):
    """Private: the noise of the engine is all there is."""
    noise_multiplier = 2 / NEVER * math.sqrt(temperature / STEP_SIZE)
    return tacit.SGLD.fixed_noise(release=engine(NEVER, noise_multiplier), step_size=STEP_SIZE)


PLANS = {
    "SGLD": chain(tacit.SGLD.non_private(sampling=FULL, step_size=STEP_SIZE)),
    "private SGLD": chain(
        tacit.SGLD.fixed_temperature(sampling=FULL, clip_norm=NEVER, step_size=STEP_SIZE)
    ),
    "private SGHMC": chain(
        tacit.SGHMC.fixed_temperature(
            sampling=FULL, clip_norm=NEVER, step_size=0.2 / NORMAL.precision, friction=0.5
        )
    ),
    "HMC": chain(
        tacit.HMC.non_private(
            num_records=NUM_RECORDS,
            step_size=0.5 * NORMAL.precision**-0.5,
            num_leapfrog=3,
            jitter=0.1,
        ),
        thinning=4,
    ),
    "private HMC": chain(
        tacit.HMC(
            gradient=engine(NEVER, 0.5),
            ratio=engine(NEVER, 0.5),
            step_size=0.5 * NORMAL.precision**-0.5,
            num_leapfrog=3,
            reuse_gradient=True,
        ),
        thinning=4,
    ),
    "hot SGLD": chain(sgld(4.0)),
}
# The variance of the chain over that of the posterior, in closed form on a Gaussian. SGLD's is
# temperature / (1 - h b / 4), SGHMC's is 1 / (1 - h b / (2 (2 - a))); HMC's is right.
RATIOS = {
    "SGLD": 1 / (1 - CONTRACTION / 2),
    "private SGLD": 1 / (1 - CONTRACTION / 2),
    "private SGHMC": 1 / (1 - 0.2 / (2 * 1.5)),
    "HMC": 1.0,
    "private HMC": 1.0,
    "hot SGLD": 4 / (1 - CONTRACTION / 2),
}


@functools.cache
def ranks(name):
    return ranks_of(simulate(PLANS[name], NORMAL, num_sets=NUM_SETS, seed=1))


def ranks_of(simulated):
    return (simulated.draws[:NUM_DRAWS] < simulated.truth).sum(axis=0)


def coverage(found, level):
    """The share of truths in the central interval, and its binomial standard error.

    The error is that of one coordinate, as if the other told nothing new.
    """
    low, high = CENTRAL[level]
    return ((low <= found) & (found <= high)).mean(), math.sqrt(level * (1 - level) / NUM_SETS)


def expected_coverage(ratio, level):
    """What nineteen draws cover whose variance is ``ratio`` times that of the posterior."""
    truth = stats.norm.ppf((np.arange(4000) + 0.5) / 4000)
    below = stats.norm.cdf(truth / math.sqrt(ratio))
    low, high = CENTRAL[level]
    inside = stats.binom.cdf(high, NUM_DRAWS, below) - stats.binom.cdf(low - 1, NUM_DRAWS, below)
    return inside.mean()


@pytest.mark.parametrize("level", CENTRAL)
def test_exact_draws_would_cover_exactly_what_their_level_says(level):
    assert expected_coverage(1.0, level) == pytest.approx(level, abs=1e-3)


@pytest.mark.parametrize("level", CENTRAL)
@pytest.mark.parametrize("name", PLANS)
def test_intervals_cover_as_often_as_theory_says(name, level):
    found, error = coverage(ranks(name), level)
    assert found == pytest.approx(expected_coverage(RATIOS[name], level), abs=4 * error)


def test_a_chain_that_is_hotter_than_one_covers_too_often():
    assert PLANS["hot SGLD"].method.temperature() == pytest.approx(4.0, rel=1e-5)
    for level in CENTRAL:
        found, error = coverage(ranks("hot SGLD"), level)
        assert found > level + 3 * error


def chi_square(found):
    counts = np.bincount(found.ravel(), minlength=NUM_DRAWS + 1)
    return stats.chisquare(counts).statistic


# Exceeded once in ten thousand times by uniform ranks.
THRESHOLD = stats.chi2.ppf(1 - 1e-4, df=NUM_DRAWS)


def test_ranks_of_truths_among_the_draws_of_private_hmc_are_uniform():
    assert chi_square(ranks("private HMC")) < THRESHOLD


def test_ranks_among_the_draws_of_a_hot_chain_are_not_uniform():
    assert chi_square(ranks("hot SGLD")) > 4 * THRESHOLD


def test_the_intervals_of_private_variational_inference_leave_out_the_noise_of_its_iterate():
    # The mean's iterate has temperature h s^2 C^2 / 4 = 2 around its optimum, and the guide's width
    # knows nothing of it: |truth - mean| has three times the variance that the guide states. The
    # width is noisy as well, which makes it no better.
    contraction = 0.1
    noise_multiplier = 2 / NEVER * math.sqrt(2.0 * NORMAL.precision / (2 * contraction))
    method = tacit.VI(
        release=engine(NEVER, noise_multiplier),
        optimizer=optax.sgd(contraction * NUM_RECORDS / NORMAL.precision),
        guide=tacit.MeanField(init_std=NORMAL.precision**-0.5),
        averaging=None,
    )
    plan = tacit.Plan(method=method, num_steps=60)
    simulated = simulate(plan, NORMAL, num_sets=NUM_SETS, seed=2)
    exact = reference(NORMAL, num_sets=NUM_SETS, seed=2).mode
    spread = NORMAL.precision * np.var(simulated.draws.mean(axis=0) - exact)
    assert spread == pytest.approx(2 / (1 - contraction / 2), rel=4 * math.sqrt(2 / exact.size))
    for level in CENTRAL:
        share, error = coverage(ranks_of(simulated), level)
        assert share < level - 4 * error
        assert share < expected_coverage(1 / 3, level) + 3 * error


@pytest.mark.parametrize(("clip_norm", "is_nominal"), [(30.0, True), (1.0, False)])
def test_a_clip_that_bites_on_skewed_scores_moves_intervals_off_the_truth(clip_norm, is_nominal):
    method = tacit.SGLD(
        release=engine(clip_norm, 0.0),
        step_size=2 * CONTRACTION / SKEWED.precision,
        langevin_temperature=1.0,
    )
    found = ranks_of(simulate(chain(method), SKEWED, num_sets=NUM_SETS, seed=3))
    share, error = coverage(found, 0.9)
    if is_nominal:
        expected = expected_coverage(1 / (1 - CONTRACTION / 2), 0.9)
        assert share == pytest.approx(expected, abs=4 * error)
    else:
        assert share < 0.5


def test_the_reference_is_the_posterior_in_closed_form():
    found = reference(NORMAL, num_sets=5)
    eye = np.eye(2)
    assert found.information == pytest.approx(np.stack([(NORMAL.precision - 1) * eye] * 5))
    assert found.prior == pytest.approx(np.stack([eye] * 5))
    # On 2 x 5 coordinates: |truth - mean| is 3 standard deviations with probability .003 each.
    assert np.all(np.abs(found.truth - found.mode) < 4.5 * NORMAL.precision**-0.5)


def one_reference(information, prior):
    matrices = [np.array([leaf]) for leaf in (information, prior)]
    dim = len(information)
    zeros = np.zeros((1, dim))
    return Reference(zeros, zeros, *matrices, zeros, np.eye(dim)[None])


def test_the_optimum_is_the_exact_posterior_for_a_large_budget_and_the_prior_for_a_small_one():
    found = one_reference(np.diag([3.0, 8.0]), np.eye(2))
    for epsilon, expected in ((100.0, [0.5, 1 / 3]), (1e-3, [1.0, 1.0])):
        budget = tacit.Budget(epsilon=epsilon, delta=1e-5)
        std = optimum(found, privacy_noise(1.0, budget))
        assert std[0] == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0])
def test_the_optimum_spends_the_whole_budget(epsilon):
    noise = 1 / gdp_of(epsilon, 1e-5)
    release = tacit.GaussianSum(sampling=FULL, clip_norm=1.0, noise_multiplier=noise)
    assert tacit.epsilon(release.cost, delta=1e-5) == pytest.approx(epsilon, rel=1e-3)


def test_standard_errors_are_those_of_data_sets():
    # Coordinates of one set agree: four of them are worth one.
    truth = np.repeat(np.array([[0.0], [0.0], [2.0], [2.0]]), 4, axis=1)
    ends = dict.fromkeys((0.9, 0.5), (truth * 0 - 1, truth * 0 + 1))
    row = scores(ends, truth * 0, truth)
    assert row["coverage_90"] == 0.5
    assert row["error_90"] == pytest.approx(math.sqrt(1 / 3) / 2)
    assert row["std"] == pytest.approx(1 / stats.norm.ppf(0.95))
    assert row["rmse"] == pytest.approx(math.sqrt(2))


def test_every_problem_has_a_recommended_method_at_every_epsilon_and_sampling():
    found = {
        (cell.problem, cell.epsilon, cell.batches)
        for cell in cells()
        if cell.method == RECOMMENDED.get(cell.problem)
    }
    wanted = {(p, e, b) for p in RECOMMENDED for e in (0.5, 1, 2, 8) for b in ("full", "Poisson")}
    assert found == wanted
    # The weights of a whole network have no method whose intervals hold; its last layer has.
    assert set(PROBLEMS) - set(RECOMMENDED) == {WHOLE_NETWORK}


RESULTS = json.loads((ROOT / "docs/pictures/coverage.json").read_text(encoding="utf-8"))


def test_the_tables_of_the_document_are_what_the_example_wrote():
    page = (ROOT / "docs/uncertainty.md").read_text(encoding="utf-8")
    for written in tables(RESULTS).split("\n\n"):
        assert written in page, f"docs/uncertainty.md lacks\n{written}"


def test_the_metrics_that_the_document_lists_exist():
    page = (ROOT / "docs/uncertainty.md").read_text(encoding="utf-8")
    listed = page.split("## What there is to measure with")[1]
    assert len(re.findall(r"`\w+`", listed)) > 20
    # Of each cell, what stands before a module in brackets is in it; the rest is in the package.
    offered = {*metrics.__all__, *recalibration.__all__}
    for names, module in re.findall(r"((?:`\w+`,? )+)(?:\(in `([\w.]+)`\))?", listed):
        home = offered if not module else set(importlib.import_module(module).__all__)
        assert set(re.findall(r"`(\w+)`", names)) <= home


def test_every_cell_of_the_study_is_measured():
    assert set(RESULTS["cells"]) == {cell.name for cell in cells()}
    assert set(RESULTS["exact"]) == set(PROBLEMS)
    assert RESULTS["num_sets"] >= 200


def rows(is_recommended):
    for cell in cells():
        if (cell.method == RECOMMENDED.get(cell.problem)) == is_recommended:
            yield cell, RESULTS["cells"][cell.name][-1]


def test_intervals_of_recommended_methods_hold_and_are_no_wider_than_they_must():
    for cell, row in rows(is_recommended=True):
        assert row["version"] == "corrected"
        for level, low, high in ((90, 0.87, 0.93), (50, 0.44, 0.56)):
            slack = 2 * row[f"error_{level}"]
            assert low - slack <= row[f"coverage_{level}"] <= high + slack, cell.name
        assert row["over_optimum"] <= 1.5, cell.name


def test_no_method_has_intervals_that_hold_too_seldom_without_a_word():
    told = 0
    for cell, row in rows(is_recommended=False):
        if row["version"] == "raw":
            told += 1  # nothing is corrected, and every posterior says so
        elif "quiet_coverage_90" in row:
            assert row["quiet_coverage_90"] >= 0.8, cell.name
    assert told > 0
