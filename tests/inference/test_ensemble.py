"""Ensembles over shards: members never see each other's records, and one of them is paid for."""

import math

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.errors import InvalidArgumentError, UnprovenAccountingError
from tacit.inference import (
    SGD,
    SGLD,
    SWAG,
    Ensemble,
    Plan,
    calibrate,
    fit,
    load_checkpoint,
    save_checkpoint,
)
from tacit.models import Model
from tacit.posterior import load_posterior, predict
from tacit.privacy.accounting import GDP, PLD, RDP, Adjacency, CLTApproximation
from tacit.privacy.budget import Budget
from tacit.privacy.cost import (
    ParallelDpEvent,
    count_releases,
    event_from_json,
    event_to_json,
    noise_multipliers,
)
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.typing import Record

NUM_SHARDS, SIZE, DIM = 3, 8, 5
ANY = Budget(epsilon=math.inf, delta=1e-5)


def member(noise_multiplier=2.0):
    release = GaussianSum(
        sampling=FullBatch(num_records=SIZE), clip_norm=20.0, noise_multiplier=noise_multiplier
    )
    return SGD(release=release, optimizer=optax.sgd(0.4))


def ensemble(**settings):
    return Ensemble(member=member(**settings), num_shards=NUM_SHARDS)


MODEL = Model(
    lambda key: jnp.zeros(DIM),
    lambda w: -0.5 * jnp.sum(w**2),
    lambda w, record, key: -0.5 * jnp.sum((record.y - w) ** 2),
    lambda w, x, key: jax.nn.softmax(w),
)


def table(y):
    return Record(jnp.zeros((len(y), 1)), jnp.asarray(y, jnp.float32), jnp.ones(len(y)))


Y = np.random.default_rng(0).normal(size=NUM_SHARDS * SIZE)


def run(method, y=Y, **settings):
    plan = Plan(**{"method": method, "num_steps": 6, "thinning": 2} | settings)
    return fit(plan, MODEL, table(y), budget=ANY, seed=0)


@pytest.fixture(scope="module")
def result():
    return run(ensemble())


@pytest.mark.parametrize("shard", range(NUM_SHARDS))
def test_a_record_reaches_the_member_of_its_shard_and_no_other(shard, result):
    changed = Y.copy()
    changed[shard * SIZE + 3] += 2.0
    one, other = (np.asarray(r.posterior.kept) for r in (result, run(ensemble(), changed)))
    differs = (one != other).any(axis=(1, 2))
    np.testing.assert_array_equal(differs, np.arange(NUM_SHARDS) == shard)


def test_every_member_is_a_chain_of_the_posterior_with_noise_of_its_own(result):
    kept = np.asarray(result.posterior.kept)
    assert kept.shape == (NUM_SHARDS, 3, DIM)
    assert len(np.unique(kept)) == kept.size


def test_chains_of_ensembles_keep_members_and_steps_apart():
    run_of_two = run(ensemble(noise_multiplier=1e-6), num_chains=2)
    kept = np.asarray(run_of_two.posterior.kept)
    assert kept.shape == (2 * NUM_SHARDS, 3, DIM)
    # Next to no noise: after t steps the member of a shard has gone 1 - .55^t of the way from zero
    # to the shard's own posterior mode, in each chain.
    modes = np.tile(Y.reshape(NUM_SHARDS, SIZE).sum(1) / (SIZE + 1), 2)
    way = 1 - (1 - 0.4 * (SIZE + 1) / SIZE) ** np.array([2, 4, 6])
    np.testing.assert_allclose(kept[:, :, 0], np.outer(modes, way), rtol=1e-3, atol=1e-4)


def test_predictions_average_all_members(result):
    last = np.asarray(result.posterior.kept).reshape(-1, DIM)
    expected = np.mean(jax.nn.softmax(last, axis=-1), axis=0)
    found = predict(result.posterior, jnp.zeros((1, 1))).probabilities[0]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_record_of_weight_zero_is_as_good_as_none():
    records = table(Y)
    absent = records._replace(weight=records.weight.at[-2:].set(0.0))
    junk = absent._replace(y=absent.y.at[-2:].set(1e3))
    plan = Plan(method=ensemble(), num_steps=3)
    one, other = (fit(plan, MODEL, data, budget=ANY, seed=0) for data in (absent, junk))
    np.testing.assert_array_equal(one.posterior.kept, other.posterior.kept)


def test_an_ensemble_costs_one_member_under_every_accountant():
    cost, own = ensemble().cost(5), member().cost(5)
    assert count_releases(cost) == count_releases(own)
    for accountant in (
        PLD(),
        RDP(),
        GDP(),
        CLTApproximation(),
        PLD(adjacency=Adjacency("add-remove")),
    ):
        assert accountant.epsilon(cost, delta=1e-5) == accountant.epsilon(own, delta=1e-5)
        assert accountant.delta(cost, epsilon=1.0) == accountant.delta(own, epsilon=1.0)


@pytest.mark.parametrize("kind", [PLD, RDP, GDP, CLTApproximation])
def test_no_accountant_accepts_shards_when_a_record_may_be_replaced(kind):
    accountant = kind(adjacency=Adjacency.REPLACE_ONE)
    with pytest.raises(UnprovenAccountingError, match=r"shard.*zero-out or add-remove"):
        accountant.epsilon(ensemble().cost(5), delta=1e-5)


def test_shards_are_refused_under_replace_one_also_beside_other_releases():
    many = [ParallelDpEvent(dp_accounting.GaussianDpEvent(1 + i / 100), 2) for i in range(80)]
    cost = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0), *many])
    with pytest.raises(UnprovenAccountingError, match="shard"):
        PLD(adjacency=Adjacency.REPLACE_ONE).epsilon(cost, delta=1e-5)


def test_a_cost_over_shards_survives_json_and_composes_with_others():
    cost = dp_accounting.ComposedDpEvent(
        [dp_accounting.GaussianDpEvent(9.0), ParallelDpEvent(member().cost(4), 3)]
    )
    assert event_from_json(event_to_json(cost)) == cost
    assert list(noise_multipliers(cost)) == [(9.0, 1), (2.0, 12)]
    by_hand = math.sqrt(1 / 81 + 4 / 4)
    alone = dp_accounting.GaussianDpEvent(1 / by_hand)
    assert GDP().epsilon(cost, delta=1e-5) == pytest.approx(GDP().epsilon(alone, delta=1e-5))


def test_the_statement_says_that_disjoint_shards_count_once():
    budget = Budget(epsilon=50.0, delta=1e-5)
    plan = Plan(method=ensemble(), num_steps=6)
    statement = fit(plan, MODEL, table(Y), budget=budget, seed=0).statement
    assert "parallel over 3 disjoint shards" in str(statement)
    assert statement.releases == 18
    alone = fit(Plan(method=member(), num_steps=6), MODEL, table(Y[:SIZE]), budget=budget, seed=0)
    assert statement.epsilon == alone.statement.epsilon
    assert statement.noise == alone.statement.noise
    assert "shard" not in str(alone.statement)


def test_calibration_finds_the_noise_of_one_member():
    budget = Budget(epsilon=2.0, delta=1e-5)
    found = calibrate(Plan(method=ensemble(), num_steps=4), budget).method.member
    alone = calibrate(Plan(method=member(), num_steps=4), budget).method
    assert found.release.noise_multiplier == alone.release.noise_multiplier


def test_a_resumed_and_saved_ensemble_goes_on(tmp_path, result):
    plan = Plan(method=ensemble(), num_steps=6, thinning=2)
    half = fit(
        Plan(method=ensemble(), num_steps=4, thinning=2), MODEL, table(Y), budget=ANY, seed=0
    )
    save_checkpoint(half.checkpoint, tmp_path)
    loaded = load_checkpoint(tmp_path, plan, MODEL, table(Y))
    whole = fit(plan, MODEL, table(Y), budget=ANY, seed=0, resume=loaded)
    np.testing.assert_array_equal(whole.posterior.kept, result.posterior.kept)
    with pytest.warns(UserWarning, match="NOT PRIVATE"):
        whole.posterior.save(tmp_path)
    np.testing.assert_array_equal(load_posterior(tmp_path, model=MODEL).kept, whole.posterior.kept)


def test_members_may_be_gaussians_of_iterates():
    method = Ensemble(member=SWAG(base=member(), start=1, rank=2), num_shards=NUM_SHARDS)
    kept = run(method, thinning=None).posterior.kept
    assert jax.tree.map(jnp.shape, kept) == {
        "mean": (NUM_SHARDS, 1, DIM),
        "std": (NUM_SHARDS, 1, DIM),
        "factors": (NUM_SHARDS, 1, 2, DIM),
    }


def test_an_ensemble_of_ensembles_is_refused():
    with pytest.raises(InvalidArgumentError, match="single method"):
        Ensemble(member=ensemble(), num_shards=2).build(MODEL)
    with pytest.raises(InvalidArgumentError, match="retain points"):
        SWAG(base=ensemble(), start=0).build(MODEL)


def test_a_table_that_is_not_filled_up_is_refused_before_anything_runs():
    with pytest.raises(InvalidArgumentError, match="num_records=24"):
        run(ensemble(), Y[:-1])


def test_an_ensemble_of_langevin_chains_samples_the_posterior_of_each_shard():
    sampler = SGLD.fixed_temperature(
        sampling=FullBatch(num_records=SIZE), clip_norm=200.0, step_size=0.05
    )
    model = MODEL._replace(init=lambda key: jnp.zeros(400))
    method = Ensemble(member=sampler, num_shards=NUM_SHARDS)
    plan = Plan(method=method, num_steps=120)
    kept = np.asarray(fit(plan, model, table(Y), budget=ANY, seed=0).posterior.kept)[:, 0]
    precision = SIZE + 1
    variance = 1 / precision / (1 - 0.05 * precision / 4)
    modes = Y.reshape(NUM_SHARDS, SIZE).sum(1) / precision
    np.testing.assert_allclose(kept.mean(1), modes, atol=5 * math.sqrt(variance / 400))
    np.testing.assert_allclose(kept.var(1), variance, rtol=5 * math.sqrt(2 / 400))


def test_poisson_batches_of_equal_shards_cost_one_member():
    sampling = PoissonBatch(num_records=500, batch_size=20)
    method = Ensemble(
        member=SGLD.fixed_temperature(sampling=sampling, clip_norm=1.0, step_size=1e-3),
        num_shards=4,
    )
    assert method.num_records == 2000
    assert PLD().epsilon(method.cost(10), delta=1e-5) == PLD().epsilon(
        method.member.cost(10), delta=1e-5
    )
