"""Accounting: golden numbers, the table of what is proven, and safety on absurd costs."""

import itertools
import math

import dp_accounting as dpa
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import binom, norm

from tacit.errors import InvalidArgumentError, UnprovenAccountingError
from tacit.privacy.accounting import (
    GDP,
    PLD,
    RDP,
    Adjacency,
    CLTApproximation,
    delta,
    divergences,
    epsilon,
    losses,
    releases,
)
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.cost import ConditionedPoissonDpEvent
from tacit.privacy.sampling import PoissonBatch

ZERO_OUT, ADD_REMOVE, REPLACE_ONE = Adjacency
BOUNDS = (PLD, RDP, GDP)
ACCOUNTANTS = (*BOUNDS, CLTApproximation)


def full(noise, steps=1):
    return dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(noise), steps)


def poisson(rate, noise, steps=1):
    event = dpa.PoissonSampledDpEvent(rate, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def conditioned(num_records, rate, capacity, noise, steps=1):
    event = ConditionedPoissonDpEvent(rate, num_records, capacity, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def fixed(num_records, batch, noise, steps=1):
    event = dpa.SampledWithoutReplacementDpEvent(num_records, batch, dpa.GaussianDpEvent(noise))
    return dpa.SelfComposedDpEvent(event, steps)


def hmc(noise, proposals, rate=1.0, leapfrogs=10):
    gradients = poisson(rate, noise, proposals * (leapfrogs + 1))
    return dpa.ComposedDpEvent([gradients, full(noise, proposals)])


# --- golden numbers ------------------------------------------------------------------------------

MNIST = (256 / 60000, 3515, 1e-5)
VAE = (128 / 60000, 9375, 1 / 60000)


GOLDEN = [
    (1.3, MNIST, "clt", 0.8344),
    (1.3, MNIST, "rdp", 0.9544),
    (1.3, MNIST, "pld", 0.8645),
    (1.3, MNIST, "pld, replaced", 1.555),
    (1.3, MNIST, "fixed, added", 4.356),
    (1.3, MNIST, "fixed, replaced", 5.087),
    (1.3, MNIST, "fixed, zeroed", 5.087),
    (1.2721, MNIST, "clt", 0.8613),
    (1.2721, MNIST, "rdp", 0.9888),
    (1.2721, MNIST, "pld", 0.8937),
    (1.2721, MNIST, "pld, replaced", 1.598),
    (1.2721, MNIST, "fixed, added", 4.691),
    (0.8995, MNIST, "clt", 1.535),
    (0.8995, MNIST, "rdp", 1.997),
    (0.8995, MNIST, "pld", 1.688),
    (0.8995, MNIST, "pld, replaced", 2.606),
    (0.8995, MNIST, "fixed, added", 16.30),
    (1.5, VAE, "clt", 0.527),
    (1.5, VAE, "rdp", 0.592),
    (1.5, VAE, "pld", 0.536),
    (1.5, VAE, "pld, replaced", 1.013),
    (1.5, VAE, "fixed, added", 1.985),
    (1.5, VAE, "fixed, zeroed", 2.504),
]
HOW = {
    "clt": CLTApproximation(),
    "rdp": RDP(),
    "pld": PLD(),
    "pld, replaced": PLD(adjacency=REPLACE_ONE),
    "fixed, added": PLD(adjacency=ADD_REMOVE),
    "fixed, replaced": PLD(adjacency=REPLACE_ONE),
    "fixed, zeroed": PLD(adjacency=ZERO_OUT),
}


@pytest.mark.parametrize(("noise", "setting", "how", "expected"), GOLDEN)
def test_published_settings_have_their_known_epsilons(noise, setting, how, expected):
    rate, steps, at = setting
    cost = poisson(rate, noise, steps)
    if how.startswith("fixed"):
        cost = fixed(60000, round(60000 * rate), noise, steps)
    assert epsilon(cost, at, HOW[how]) == pytest.approx(expected, rel=1e-3)


def test_the_full_batch_regression_has_its_known_epsilons():
    cost, at = full(10.0, 200), 1 / 250
    assert epsilon(cost, at, CLTApproximation()) == pytest.approx(4.208, abs=1e-3)
    assert epsilon(cost, at, RDP()) == pytest.approx(4.80, abs=5e-3)
    assert epsilon(cost, at, GDP()) == pytest.approx(4.194, abs=1e-3)
    assert epsilon(cost, at) == epsilon(cost, at, GDP())
    assert epsilon(cost, at, GDP(adjacency=REPLACE_ONE)) == pytest.approx(10.80, abs=5e-3)


@pytest.mark.parametrize(
    ("noise", "exact", "amplified"),
    [(2.0, (8.385, 23.35, 64.55), (2.15, 5.36, 12.76)), (4.0, (3.7, 9.6, 24.1), (0.99, 2.4, 5.5))],
)
def test_private_hmc_has_its_known_epsilons(noise, exact, amplified):
    for proposals, gdp, pld in zip((1, 5, 21), exact, amplified, strict=True):
        assert epsilon(hmc(noise, proposals), 1e-5, GDP()) == pytest.approx(gdp, rel=0.01)
        assert epsilon(hmc(noise, proposals, rate=0.1), 1e-5) == pytest.approx(pld, rel=0.02)


def test_private_hmc_under_replacement_doubles_both_sensitivities():
    for proposals, expected in zip((1, 5, 21), (8.4, 23.3, 64.6), strict=True):
        value = epsilon(hmc(4.0, proposals), 1e-5, GDP(adjacency=REPLACE_ONE))
        assert value == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("cost", "at", "rdp", "pld"),
    [
        (poisson(0.04, 1.5, 2250), 1e-5, 7.329, 6.769),  # Opacus
        (poisson(150 / 60000, 1.3, 6000), 1e-5, 0.7242234026, 0.64011),  # TF Privacy
        (poisson(1e-3, 1.0, 30000), 1e-7, 1.4154988495, 1.09820),  # TF Privacy
    ],
)
def test_reference_values_of_other_libraries_are_met(cost, at, rdp, pld):
    assert epsilon(cost, at, RDP()) == pytest.approx(rdp, rel=2e-5)
    assert epsilon(cost, at) == pytest.approx(pld, rel=1e-4)


def test_the_calibrated_noise_of_dp_accounting_gives_its_epsilon():
    assert epsilon(poisson(0.01, 0.67379294682), 1e-5) == pytest.approx(1.0, abs=1e-4)


def test_replacement_doubles_the_sensitivity_in_every_accountant():
    cost, doubled = full(2.0, 3), full(1.0, 3)
    for accountant in BOUNDS:
        replaced = epsilon(cost, 1e-5, accountant(adjacency=REPLACE_ONE))
        assert replaced == pytest.approx(epsilon(doubled, 1e-5, accountant()))
    assert epsilon(full(2.0), 1e-5, PLD(adjacency=REPLACE_ONE)) == pytest.approx(4.377, abs=1e-3)


# --- oracles -------------------------------------------------------------------------------------

ORACLE_RELATION = {
    ZERO_OUT: dpa.NeighboringRelation.REPLACE_SPECIAL,
    ADD_REMOVE: dpa.NeighboringRelation.ADD_OR_REMOVE_ONE,
    REPLACE_ONE: dpa.NeighboringRelation.REPLACE_ONE,
}


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize(
    "cost",
    [
        poisson(0.1, 0.9, 20),
        dpa.ComposedDpEvent([poisson(0.05, 1.2, 7), poisson(0.2, 3.0, 9), full(8.0, 4)]),
    ],
    ids=["poisson", "composed"],
)
def test_pld_agrees_with_dp_accounting(cost, adjacency):
    oracle = PLDAccountant(ORACLE_RELATION[adjacency], value_discretization_interval=1e-3)
    oracle.compose(cost)
    accountant = PLD(adjacency=adjacency, discretisation=1e-3)
    for at in (1e-3, 1e-6):
        assert epsilon(cost, at, accountant) == pytest.approx(oracle.get_epsilon(at), rel=1e-4)
    assert delta(cost, 0.7, accountant) == pytest.approx(oracle.get_delta(0.7), rel=2e-4)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.7), (0.3, 1.5), (0.9, 4.0), (0.1, 0.3)])
def test_renyi_divergences_equal_adaptive_quadrature(rate, noise):
    found = divergences.poisson(rate, noise)
    for order in (1.1, 2.5, 3.0, 7.3, 12.0):

        def integrand(u, order=order):
            log_ratio = np.logaddexp(np.log1p(-rate), np.log(rate) + u / noise - 1 / (2 * noise**2))
            return np.exp(order * log_ratio + norm.logpdf(u))

        ends = (-12.0, order / noise + 12.0)
        moment, _ = quad(integrand, *ends, points=[0.0, order / noise], limit=500, epsrel=1e-12)
        computed = found[np.argmin(np.abs(order - divergences.ORDERS))]
        assert computed == pytest.approx(np.log(moment) / (order - 1), rel=1e-8)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.7), (0.2, 2.0), (0.01, 0.31), (0.01, 0.1)])
def test_rdp_is_close_to_dp_accounting_and_never_above(rate, noise):
    oracle = RdpAccountant()  # loose at fractional orders: it drops the signs of a series
    oracle.compose(poisson(rate, noise, 30))
    for at in (1e-3, 1e-6):
        value = epsilon(poisson(rate, noise, 30), at, RDP())
        assert 0.99 * oracle.get_epsilon(at) < value <= oracle.get_epsilon(at) * (1 + 1e-9)


@pytest.mark.parametrize(
    "pair", [divergences.removal, divergences.replacement], ids=lambda p: p.__name__
)
def test_the_curves_of_pairs_equal_numerical_integration(pair):
    rate, noise = 0.3, 0.8
    x = np.linspace(-15, 15, 200_001)
    present = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
    if pair is divergences.removal:
        other = norm.pdf(x, 0, noise)
    else:
        other = (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, -1, noise)
    for at in (0.0, 0.1, 0.3, 2.0):
        curves = pair(rate, noise)
        for curve, first, second in (
            (curves.forward, present, other),
            (curves.backward, other, present),
        ):
            by_hand = np.trapezoid(np.maximum(first - np.exp(at) * second, 0.0), x)
            assert curve.delta(np.array([at]))[0] == pytest.approx(by_hand, abs=1e-6)


@pytest.mark.parametrize("interval", [1e-3, 0.1])
def test_discretisation_only_ever_raises_the_curve(interval):
    for pair in (divergences.removal(0.2, 0.7), divergences.replacement(0.2, 0.7)):
        grid = losses.discretise(pair, interval)
        at = np.linspace(0.0, 8.0, 57)
        exact = pair.forward.delta(at)
        raised = np.array([grid.delta(float(e)) for e in at])
        assert np.all(raised >= exact * (1 - 1e-9))
        assert np.all(raised <= exact + 1.5 * interval**2)


def test_composition_equals_the_exact_convolution():
    part = losses.LossDistribution(0.5, np.array([-1, 1]), np.array([0.3, 0.7]), 0.0)
    composed = losses.compose([(part, 3)])
    for at in (0.0, 0.3, 1.2):
        values = np.array([1.5, 0.5, -0.5, -1.5])
        exact = binom.pmf([3, 2, 1, 0], 3, 0.7) @ np.maximum(0.0, -np.expm1(at - values))
        assert composed.delta(at) == pytest.approx(exact, abs=1e-12)


# --- what is proven ------------------------------------------------------------------------------

COSTS = {
    "full": full(2.0, 2),
    "poisson": poisson(0.1, 2.0, 2),
    "conditioned": conditioned(1000, 0.1, 105, 2.0, 2),
    "fixed": fixed(1000, 100, 2.0, 2),
}
POISSONS = ("poisson", "conditioned")
UNPROVEN = {
    *itertools.product(POISSONS, (REPLACE_ONE,), (RDP,)),
    *itertools.product((*POISSONS, "fixed"), Adjacency, (GDP,)),
    *itertools.product(("full", *POISSONS), (REPLACE_ONE,), (CLTApproximation,)),
    *itertools.product(("fixed",), Adjacency, (CLTApproximation,)),
}


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.__name__)
@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize("sampling", COSTS)
def test_every_cell_is_either_proven_or_refused(sampling, adjacency, accountant):
    accountant_ = accountant(adjacency=adjacency)
    if (sampling, adjacency, accountant) in UNPROVEN:
        with pytest.raises(UnprovenAccountingError, match=f"adjacency {adjacency}.*Use the PLD"):
            accountant_.epsilon(COSTS[sampling], delta=1e-5)
    else:
        assert 0 < accountant_.epsilon(COSTS[sampling], delta=1e-5) < math.inf
        assert 0 < accountant_.delta(COSTS[sampling], epsilon=0.1) < 1


@pytest.mark.parametrize("accountant", [PLD, RDP], ids=lambda a: a.__name__)
@pytest.mark.parametrize("sampling", COSTS)
def test_zero_out_equals_add_remove_except_for_fixed_size_batches(sampling, accountant):
    zero_out = epsilon(COSTS[sampling], 1e-5, accountant(adjacency=ZERO_OUT))
    add_remove = epsilon(COSTS[sampling], 1e-5, accountant(adjacency=ADD_REMOVE))
    assert math.isclose(zero_out, add_remove, rel_tol=1e-9) == (sampling != "fixed")


GRID = {
    **COSTS,
    "one poisson": poisson(0.1, 0.5),
    "many poisson": poisson(1e-3, 0.7, 20_000),
    "tiny rate": poisson(1e-7, 0.5, 100),
    "full, little noise": full(0.3, 5),
    "fixed, little noise": fixed(10_000, 100, 1.0, 100),
    "conditioned on one deviation": conditioned(10_000, 0.0064, 72, 1.0, 3000),
    "conditioned below the mean": conditioned(1000, 0.1, 50, 2.0, 30),
    "conditioned on what nearly always holds": conditioned(10_000, 0.0064, 200, 0.6, 30),
    "of all kinds": dpa.ComposedDpEvent(
        [full(5.0, 3), poisson(0.01, 1.0, 50), conditioned(500, 0.1, 60, 2.0, 9)]
    ),
}


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
@pytest.mark.parametrize("name", GRID)
def test_tight_accounting_is_never_above_renyi_accounting(name, adjacency):
    tight, loose = PLD(adjacency=adjacency), RDP(adjacency=adjacency)
    try:
        loose.epsilon(GRID[name], delta=1e-5)
    except UnprovenAccountingError:
        pytest.skip("Rényi accounting has no rule there")
    for at in (1e-2, 1e-5, 1e-9, 1e-14):
        assert epsilon(GRID[name], at, tight) <= epsilon(GRID[name], at, loose)
    for at in (0.0, 0.5, 5.0):
        assert delta(GRID[name], at, tight) <= delta(GRID[name], at, loose)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.__name__)
def test_an_unknown_event_is_refused(accountant):
    with pytest.raises(UnprovenAccountingError, match="LaplaceDpEvent"):
        accountant().epsilon(dpa.LaplaceDpEvent(1.0), delta=1e-5)


def test_the_clt_says_that_it_is_an_approximation_and_is_below_the_truth():
    assert not CLTApproximation.is_bound
    assert all(accountant.is_bound for accountant in BOUNDS)
    assert "approximation" in CLTApproximation.name
    assert "not a guarantee" in CLTApproximation().describe()
    cost = poisson(0.001, 0.4, 1000)
    assert epsilon(cost, 1e-5, CLTApproximation()) < 0.5 * epsilon(cost, 1e-5)


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.__name__)
def test_every_description_names_the_accountant_and_the_adjacency(accountant):
    for adjacency in Adjacency:
        text = accountant(adjacency=adjacency).describe()
        assert accountant.name in text
        assert str(adjacency) in text
        assert adjacency.sentence in text


@pytest.mark.parametrize(("batch_size", "noise", "steps"), [(256, 1.3, 3515), (64, 0.8, 14_000)])
def test_default_batches_cost_a_little_less_than_batches_without_an_end(batch_size, noise, steps):
    sampling = PoissonBatch(num_records=60_000, batch_size=batch_size)
    cost = dpa.SelfComposedDpEvent(sampling.cost(noise), steps)
    accountants = (*(PLD(adjacency=a) for a in Adjacency), RDP(), RDP(adjacency=ADD_REMOVE))
    for accountant in accountants:
        plain = epsilon(poisson(sampling.rate, noise, steps), 1e-5, accountant)
        assert 0.97 * plain < epsilon(cost, 1e-5, accountant) < plain


def test_a_capacity_that_is_never_reached_costs_nothing():
    for adjacency in (ZERO_OUT, ADD_REMOVE):
        accountant = RDP(adjacency=adjacency)
        endless = epsilon(poisson(0.01, 1.0, 1000), 1e-5, accountant)
        assert epsilon(conditioned(10_000, 0.01, 9_999, 1.0, 1000), 1e-5, accountant) == endless


# --- structure of costs --------------------------------------------------------------------------


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.__name__)
def test_a_non_private_cost_is_infinite(accountant):
    for cost in (
        dpa.NonPrivateDpEvent(),
        full(0.0),
        dpa.ComposedDpEvent([full(1.0), dpa.NonPrivateDpEvent()]),
    ):
        assert accountant().epsilon(cost, delta=0.5) == math.inf
        assert accountant().delta(cost, epsilon=0.0) == 1.0
        assert accountant().delta(cost, epsilon=math.inf) == 1.0


@pytest.mark.parametrize("accountant", ACCOUNTANTS, ids=lambda a: a.__name__)
def test_a_cost_of_nothing_is_zero(accountant):
    for cost in (
        dpa.NoOpDpEvent(),
        dpa.ComposedDpEvent([]),
        full(1.0, 0),
        poisson(0.0, 1.0, 5),
    ):
        assert accountant().epsilon(cost, delta=1e-9) == 0.0
        assert accountant().delta(cost, epsilon=0.0) == 0.0


def test_how_a_cost_is_nested_does_not_matter():
    step = dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(1.5))
    flat = dpa.ComposedDpEvent([step] * 6)
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([step, dpa.NoOpDpEvent(), step]), 3)
    assert epsilon(flat, 1e-5) == epsilon(nested, 1e-5)


def test_two_queries_of_one_batch_count_as_one_with_less_noise():
    pair = dpa.PoissonSampledDpEvent(
        0.1, dpa.ComposedDpEvent([dpa.GaussianDpEvent(3.0), dpa.GaussianDpEvent(4.0)])
    )
    assert epsilon(pair, 1e-5) == pytest.approx(epsilon(poisson(0.1, 2.4), 1e-5))
    # Two batches of their own would be cheaper: a record is rarely in both.
    assert epsilon(pair, 1e-5) > epsilon(
        dpa.ComposedDpEvent([poisson(0.1, 3.0), poisson(0.1, 4.0)]), 1e-5
    )


def test_a_poisson_batch_at_rate_one_is_a_full_batch():
    assert epsilon(poisson(1.0, 2.0, 3), 1e-5, GDP()) == epsilon(full(2.0, 3), 1e-5, GDP())


@pytest.mark.parametrize("noise", [-1.0, math.nan])
def test_an_impossible_noise_multiplier_is_refused(noise):
    with pytest.raises(InvalidArgumentError, match="noise_multiplier"):
        epsilon(full(noise), 1e-5)


def test_an_impossible_rate_is_refused():
    with pytest.raises(InvalidArgumentError, match="rate"):
        epsilon(poisson(1.5, 1.0), 1e-5)


@pytest.mark.parametrize("bad", [0.0, 1.0, -1e-5, math.nan])
def test_delta_outside_the_unit_interval_is_refused(bad):
    for accountant in ACCOUNTANTS:
        with pytest.raises(InvalidArgumentError, match="delta"):
            accountant().epsilon(full(1.0), delta=bad)


# --- schedules -----------------------------------------------------------------------------------


def schedule(low, high, steps):
    noises = np.geomspace(low, high, steps)
    return dpa.ComposedDpEvent([poisson(0.02, float(noise)) for noise in noises])


def test_a_schedule_of_many_distinct_steps_is_accounted_from_above_and_closely():
    cost = schedule(1.0, 1.5, 40)
    exact = epsilon(cost, 1e-5)
    # A step's noise shrinks by at most 2^(1/8) - 1 = 9 %, on average by half of that.
    assert exact < epsilon(cost, 1e-5, PLD(max_distinct=8)) < 1.12 * exact


def test_merging_similar_steps_only_lowers_the_noise():
    counts = releases.distinct_releases(schedule(0.5, 5.0, 300))
    merged = releases.merge_similar(counts, 14)
    assert len(merged) == 14
    assert sum(count for _, count in merged) == 300
    before = sorted(release.noise_multiplier for release, _ in counts)
    after = sorted(noise for r, count in merged for noise in [r.noise_multiplier] * count)
    ratio = np.array(before) / np.array(after)
    assert np.all(ratio >= 1.0)
    assert np.all(ratio <= 2 ** (1 / 4) + 1e-9)


def test_merging_is_not_spoilt_by_one_step_far_away():
    near = [release for release, _ in releases.distinct_releases(schedule(1.0, 2.0, 300))]
    counts = releases.distinct_releases(
        dpa.ComposedDpEvent([schedule(1.0, 2.0, 300), poisson(0.02, 1e6)])
    )
    for merged in (
        releases.merge_similar(tuple((release, 1) for release in near), 40),
        releases.merge_similar(counts, 40),
    ):
        assert len([release for release, _ in merged if release.noise_multiplier < 3]) == 33


def test_scaled_schedules_share_their_merged_steps_and_more_noise_never_becomes_less():
    def merged(factor):
        counts = releases.distinct_releases(schedule(1.0 * factor, 2.0 * factor, 300))
        pairs = releases.merge_similar(counts, 40)
        return sorted(noise for r, count in pairs for noise in [r.noise_multiplier] * count)

    first, second = merged(1.0), merged(1.003)
    assert np.all(np.array(second) >= np.array(first))
    assert len(set(first) & set(second)) >= len(set(first)) - 1


def test_merging_keeps_different_samplings_apart():
    mixed = dpa.ComposedDpEvent([schedule(1.0, 1.9, 5), full(1.5), fixed(100, 10, 1.5)])
    counts = releases.distinct_releases(mixed)
    assert len(releases.merge_similar(counts, 2)) == 4


def test_more_distinct_steps_than_statements_are_verified_with_are_refused():
    with pytest.raises(InvalidArgumentError, match="max_distinct must be at most 128"):
        PLD(max_distinct=129)


# --- safety --------------------------------------------------------------------------------------

noises = st.floats(-3, 6).map(lambda e: 10.0**e)
deltas = st.floats(-30, -0.05).map(lambda e: 10.0**e)
rates = st.one_of(st.sampled_from([0.0, 1e-9, 0.5, 1.0]), st.floats(1e-4, 1.0))
steps_ = st.sampled_from([0, 1, 7, 1000, 10**6])
costs = st.one_of(
    st.builds(full, noises, steps_),
    st.builds(poisson, rates, noises, steps_),
    st.builds(
        lambda q, s, t: conditioned(500, q, 60, s, t), rates.filter(lambda q: q < 1), noises, steps_
    ),
    st.builds(lambda b, s, t: fixed(500, b, s, t), st.integers(1, 500), noises, steps_),
)


def applicable(cost):
    for accountant, adjacency in itertools.product((PLD, RDP), Adjacency):
        try:
            accountant(adjacency=adjacency).delta(cost, epsilon=1.0)
        except UnprovenAccountingError:
            continue
        yield accountant(adjacency=adjacency)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(cost=costs, at=st.lists(deltas, min_size=2, max_size=2).map(sorted))
def test_epsilon_and_delta_are_numbers_that_fall_together(cost, at):
    for accountant in applicable(cost):
        strict, loose = (epsilon(cost, one, accountant) for one in at)
        assert 0.0 <= loose <= strict * (1 + 1e-12)
        points = [0.0, 1e-3, 1.0, 30.0, 1e6]
        curve = np.array([delta(cost, point, accountant) for point in points])
        assert np.all((curve >= 0.0) & (curve <= 1.0))
        assert np.all(np.diff(curve) <= 1e-15)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(rate=st.floats(0.001, 0.5), noise=st.floats(0.5, 20.0), steps=st.sampled_from([1, 10, 500]))
def test_delta_at_epsilon_of_delta_returns(rate, noise, steps):
    cost = poisson(rate, noise, steps)
    for accountant in (PLD(), RDP()):
        at = accountant.epsilon(cost, delta=1e-5)
        if at > 0:
            assert accountant.delta(cost, epsilon=at) == pytest.approx(1e-5, rel=1e-6)


@settings(max_examples=5, deadline=None, derandomize=True)
@given(noise=st.floats(0.4, 5.0), rate=st.floats(0.001, 0.4))
def test_more_noise_and_fewer_steps_never_cost_more(noise, rate):
    for accountant in (PLD(discretisation=1e-3), RDP(), CLTApproximation()):
        base = epsilon(poisson(rate, noise, 40), 1e-5, accountant)
        assert epsilon(poisson(rate, noise * 1.1, 40), 1e-5, accountant) <= base
        assert epsilon(poisson(rate, noise, 30), 1e-5, accountant) <= base
        assert epsilon(poisson(rate * 0.9, noise, 40), 1e-5, accountant) <= base


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
def test_an_absurd_cost_has_a_finite_upper_bound(adjacency):
    for cost in (poisson(0.01, 1e-3, 10**6), fixed(1000, 10, 1e-3, 10**6), full(1e-3, 10**6)):
        value = epsilon(cost, 1e-5, PLD(adjacency=adjacency))
        # Each of 1e4 participations alone reveals about 1/(2 s^2) = 5e5.
        assert 1e9 < value < math.inf


@pytest.mark.parametrize("noise", [1e-200, 1e200])
def test_noise_beyond_the_range_of_doubles_is_safe(noise):
    for accountant in (PLD(), RDP(), CLTApproximation()):
        assert epsilon(poisson(0.5, noise), 1e-5, accountant) == (math.inf if noise < 1 else 0.0)


def test_a_delta_below_the_resolution_of_doubles_still_has_an_epsilon():
    cost = poisson(*MNIST[:1], 1.3, 3515)
    values = np.array([epsilon(cost, at) for at in (1e-5, 1e-10, 1e-15, 1e-40, 1e-300)])
    assert np.all(np.diff(values) > 0)
    assert values[2] < 3.0
    assert np.isfinite(values).all()


def test_a_composition_counts_the_rounding_of_the_transform_as_loss():
    part = losses.discretise(divergences.removal(0.01, 1.0), 1e-3)
    few, many = losses.compose([(part, 10)]), losses.compose([(part, 10_000)])
    assert 0 < few.infinite < many.infinite < 1e-10


def test_a_coarser_grid_gives_a_larger_epsilon():
    cost = poisson(0.01, 1.0, 500)
    values = [epsilon(cost, 1e-5, PLD(discretisation=h)) for h in (1e-4, 1e-3, 3e-3)]
    assert values == sorted(values)
    assert values[1] < 1.01 * values[0]


# --- printing ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.8645, "0.865"),
        (0.865, "0.865"),
        (0.86500001, "0.866"),
        (0.0, "0.000"),
        (1e-12, "0.001"),
        (5e11, "500000000000.000"),
        (math.inf, "infinity"),
    ],
)
def test_epsilon_is_rounded_up_when_shown(value, shown):
    assert round_up(value) == shown


def test_the_digits_that_are_shown_can_be_chosen():
    assert round_up(1.23401, digits=2) == "1.24"
