"""Counters of norms: they fit into the room that the clip leaves, and tell how many are clipped."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tacit
from tacit.models import MLP, Bernoulli, GaussianPrior
from tacit.privacy.clipping import Flat, Normalised, PerLayer
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import clipped_sum
from tacit.privacy.clipping.slack import EDGES, NormHistogram, counted, heights_on
from tacit.privacy.lattice import Lattice
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.rng import seeded_key

NUM_RECORDS = 3000
X = np.random.default_rng(0).normal(size=(NUM_RECORDS, 4)).astype(np.float32)
NORMS = np.linalg.norm(X, axis=1)


def engine(**settings):
    own = {
        "sampling": FullBatch(num_records=NUM_RECORDS),
        "clip_norm": 2.5,
        "noise_multiplier": 3.0,
    }
    return tacit.GaussianSum(**(own | settings))


def bare(record, key):
    return record


def shares_in_bins(norms, clip_norm):
    return np.histogram(norms / clip_norm, [0, *EDGES])[0] / len(norms)


@given(
    norm=st.one_of(
        st.floats(0, 2, width=32, allow_subnormal=False),  # which JAX takes for zero
        st.sampled_from([*EDGES, 1.0, 1e-45, math.inf, math.nan]),
        st.sampled_from(EDGES).map(lambda edge: float(np.nextafter(np.float32(edge), 2))),
    ),
    rounding=st.sampled_from([1.0, 30.0, 4000.0]),
    scale=st.sampled_from([1e-9, 0.3, 1.0, 7e8]),
)
@settings(max_examples=300, deadline=None)
def test_contribution_and_counter_together_are_within_the_clip_norm(norm, rounding, scale):
    lattice = Lattice(rounding=rounding)
    clip_norm = np.float32(scale)
    found = np.asarray(
        counted(
            jnp.float32(norm) * clip_norm,
            jnp.asarray(True),
            clip_norm=jnp.float32(clip_norm),
            heights=heights_on(lattice),
        ),
        np.float64,
    )
    assert np.count_nonzero(found) <= 1
    height = found.sum() / (lattice.share * 2**lattice.exponent)
    # The norm that was computed may be too small by one rounding.
    real = float(np.float32(norm) * clip_norm) / float(clip_norm) * (1 + 2.0**-23)
    if height:
        assert 0 < real < 1
        assert real**2 + height**2 <= 1
    else:
        assert not 1e-30 < float(np.float32(norm) * clip_norm) <= 0.96 * float(clip_norm)


def test_counters_are_whole_numbers_of_lattice_units_so_none_is_rounded():
    for rounding in (1.0, 20.0, 5000.0):
        heights = heights_on(Lattice(rounding=rounding))
        assert all(isinstance(height, int) and 0 < height < 2**24 for height in heights)
        assert list(heights) == sorted(heights, reverse=True)


@pytest.mark.parametrize(
    "sampling",
    [
        FullBatch(num_records=NUM_RECORDS),
        PoissonBatch(num_records=NUM_RECORDS, batch_size=300),
    ],
    ids=["full", "Poisson"],
)
def test_shares_are_those_of_the_records_up_to_the_stated_noise(sampling):
    release = engine(sampling=sampling)
    run = jax.jit(lambda key: release.counted(key, bare, jnp.asarray(X)))
    found = [run(seeded_key(seed)) for seed in range(60)]
    shares = np.array([one.shares for one in found])
    true = shares_in_bins(NORMS, 2.5)
    rate = sampling.inclusion_rate
    variance = np.asarray(found[0].variances) + (1 - rate) / rate * true / NUM_RECORDS
    # A little of the clip norm is kept for rounding, which moves the edges.
    assert np.all(np.abs(shares.mean(0) - true) < 4 * np.sqrt(variance / 60) + 2e-3)
    np.testing.assert_allclose(shares.var(0), variance, rtol=0.75)


def test_gradients_are_counted_as_queries_are():
    release = engine(noise_multiplier=1e-3)
    loss = lambda w, record, key: jnp.sum(record @ w)  # noqa: E731
    one = release.counted_gradient(seeded_key(0), loss, jnp.zeros((4, 1)), jnp.asarray(X))
    other = release.counted(seeded_key(0), bare, jnp.asarray(X))
    # Sums of products keep a hundredth of the clip norm for rounding: edges lie that much lower.
    np.testing.assert_allclose(one.shares, other.shares, atol=0.02)


@pytest.mark.parametrize(
    ("clipping", "noise_multiplier"), [(Normalised(), 1.0), (PerLayer(), 1.0), (None, 0.0)]
)
def test_where_there_is_no_room_nothing_is_counted(clipping, noise_multiplier):
    rule = {} if clipping is None else {"clipping": clipping}
    release = engine(noise_multiplier=noise_multiplier, **rule)
    found = release.counted(seeded_key(0), bare, jnp.asarray(X))
    assert found.shares.shape == found.variances.shape == (0,)


def test_counting_changes_neither_cost_nor_contributions():
    release = engine(noise_multiplier=1e-6)
    plain = release(seeded_key(0), bare, jnp.asarray(X))
    found = release.counted(seeded_key(0), bare, jnp.asarray(X))
    np.testing.assert_allclose(found.estimate, plain, atol=1e-2)


def test_the_bound_on_the_clipped_share_holds_as_often_as_it_says():
    true, random = 0.031, np.random.default_rng(1)
    rest = np.array([0.2, 0.4, 0.3, 0.1 - true])
    variances = np.array([1.0, 1.3, 2.0, 16.0]) * 1e-5
    bounds = [
        NormHistogram.of(
            rest + np.sqrt(variances) * random.normal(size=4), variances, batch_noise=0
        )
        for _ in range(4000)
    ]
    held = np.mean([found.at_most >= true for found in bounds])
    assert abs(held - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 4000)
    assert np.mean([found.at_least > true for found in bounds]) < 0.05


def test_quantiles_of_the_histogram_are_those_of_the_norms():
    found = NormHistogram.of(shares_in_bins(NORMS, 3.0), np.zeros(4), batch_noise=0)
    for share in (0.1, 0.5, 0.8):
        # Linear within a bin, which is .75 wide here.
        assert abs(found.quantile(share) * 3.0 - np.quantile(NORMS, share)) < 0.2
    assert math.isinf(found.quantile(0.999))


def regression(clip_norm, *, network=MLP(num_inputs=4, num_outputs=1), seed=0):  # noqa: B008
    model = tacit.bayesian(network, prior=GaussianPrior(std=1.0), likelihood=Bernoulli())
    y = (np.random.default_rng(1).random(NUM_RECORDS) < 1 / (1 + np.exp(-X.sum(1)))).astype(int)
    method = tacit.SGD(release=engine(clip_norm=clip_norm), optimizer=optax.sgd(1.0))
    budget = tacit.Budget(epsilon=4.0, delta=1e-5)
    plan = tacit.calibrate(tacit.Plan(method=method, num_steps=60), budget)
    records = tacit.as_records(X, y)
    return tacit.fit(plan, model, records, budget=budget, seed=seed), records


@pytest.mark.parametrize("hidden", [(), (8,)], ids=["linear", "network"])
def test_the_statement_says_how_many_records_were_clipped(hidden):
    fit, records = regression(1.0, network=MLP(num_inputs=4, hidden=hidden, num_outputs=1))
    params = jax.tree.map(lambda leaf: leaf[0], fit.posterior.draws(1))
    from tacit.inference.clip_norm import gradient_norm

    keys = jax.random.split(seeded_key(0), NUM_RECORDS)
    norms = jax.vmap(gradient_norm(fit.posterior.model, params))(records, keys)
    true = float(np.mean(norms > 1.0))
    assert true > 0.02
    assert abs(fit.norms.clipped - true) < 4 * fit.norms.clipped_error + 0.03
    assert fit.norms.at_most >= true
    document = fit.statement.to_json()["norms"]
    assert document["at_most"] == fit.norms.at_most
    assert "clipped" in str(fit.statement)
    assert "clipped records" in fit.statement.text()


def test_a_clip_that_bites_warns_in_the_posterior_and_one_that_does_not_is_silent():
    low, high = (regression(clip_norm)[0].posterior for clip_norm in (0.4, 6.0))
    assert any("The clip shortens" in caveat for caveat in low.intervals.caveats)
    assert not any("clip" in caveat for caveat in high.intervals.caveats)


def test_without_privacy_the_statement_counts_nothing():
    model = tacit.bayesian(
        MLP(num_inputs=4, num_outputs=1), prior=GaussianPrior(std=1.0), likelihood=Bernoulli()
    )
    release = tacit.GaussianSum.non_private(sampling=FullBatch(num_records=NUM_RECORDS))
    plan = tacit.Plan(method=tacit.SGD(release=release, optimizer=optax.sgd(1.0)), num_steps=3)
    records = tacit.as_records(X, np.zeros(NUM_RECORDS, int))
    fit = tacit.fit(plan, model, records, budget=tacit.Budget.non_private())
    assert fit.norms is None
    assert fit.statement.norms is None


def test_records_at_an_edge_are_in_one_bin_and_within_the_clip_norm():
    lattice, random, num = Lattice(rounding=1.0), np.random.default_rng(2), 20_000
    adding = Adding(units=2.0**lattice.exponent, num_limbs=1, heights=heights_on(lattice))
    keys, mask = jax.random.split(jax.random.key(0), 1), jnp.ones(1, bool)

    def of_one(row):
        settings = {"clipping": Flat(), "clip_norm": lattice.share, "adding": adding}
        return clipped_sum(bare, row[None], keys, mask, **settings)

    directions = random.normal(size=(num, 7))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    # Within a few units of the last place of where a bin ends.
    edges = random.choice(EDGES, num) * (1 - 2.0**-20) * lattice.share
    norms = edges * (1 + random.integers(-12, 13, num) * 2.0**-24)
    found = jax.jit(jax.vmap(of_one))(jnp.asarray(directions * norms[:, None], jnp.float32))
    total, counters = (np.asarray(part[:, 0], np.float64) for part in found)
    num_bins = np.count_nonzero(counters, axis=1)
    # Just above the last edge a record is in none.
    assert num_bins.max() == 1
    assert 0.75 < num_bins.mean() < 1
    together = np.sqrt(np.sum(total**2, axis=1) + np.sum(counters**2, axis=1))
    assert together.max() <= 2.0**lattice.exponent
