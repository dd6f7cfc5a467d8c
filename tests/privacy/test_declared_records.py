"""Add-remove adjacency: the number of records is private, and only a declared one is used."""

from dataclasses import replace

import dp_accounting as dpa
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import tacit
from tacit.data import ADULT_SCHEMA
from tacit.errors import InvalidArgumentError
from tacit.inference import SGD, SGLD, Plan, calibrate, fit, private_clip_norm
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.numpyro import DPSVI
from tacit.privacy.accounting import PLD, RDP, Adjacency
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.cost import Cost
from tacit.privacy.filters import RDPFilter
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.private_bounds import private_bounds
from tacit.privacy.sampling import FixedBatch, FullBatch, PoissonBatch
from tacit.privacy.statement import verify_statement
from tacit.privacy.statement.construction import require_adjacency
from tacit.rng import seeded_key
from tacit.studies import prepare

DECLARED = 60
ADD_REMOVE = Adjacency.ADD_REMOVE
BUDGET = Budget(epsilon=50.0, delta=1e-3, accountant=PLD(adjacency=ADD_REMOVE))
PUBLIC = Budget(epsilon=50.0, delta=1e-3)
MODEL = bayesian(
    MLP(num_inputs=2, hidden=(3,), num_outputs=2),
    prior=GaussianPrior(std=1.0),
    likelihood=Categorical(num_classes=2),
)


def records(num_records):
    rng = np.random.default_rng(0)
    return tacit.as_records(
        rng.normal(size=(DECLARED, 2))[:num_records], (np.arange(DECLARED) % 2)[:num_records]
    )


def poisson(num_records, declared=DECLARED, **settings):
    return PoissonBatch(
        num_records=num_records, batch_size=20, declared_records=declared, **settings
    )


def plan(sampling):
    release = GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=2.0)
    method = SGD(release=release, optimizer=optax.sgd(0.1))
    return Plan(method=method, num_steps=4)


# --- batches -------------------------------------------------------------------------------------


def test_all_but_the_indices_come_from_the_declared_number():
    batches = [poisson(n) for n in (1, 15, 40, 41, 60)]
    public = PoissonBatch(num_records=DECLARED, batch_size=20)
    for batch in batches:
        assert (batch.rate, batch.capacity) == (public.rate, public.capacity)
        assert batch.inclusion_rate == public.inclusion_rate
        assert batch.cost(1.5) == public.cost(1.5)
        assert batch.public_records == DECLARED
        drawn = batch.draw(seeded_key(0))
        assert drawn.indices.shape == drawn.mask.shape == (public.capacity,)


def test_a_declared_batch_is_shown_without_the_true_number():
    assert repr(poisson(40)) == repr(poisson(41))
    assert "declared_records=60" in repr(poisson(40))


@pytest.mark.parametrize("num_records", [1, 3, 15, 59])
def test_a_batch_of_fewer_records_than_declared_has_them_once_each_and_no_other(num_records):
    batch = poisson(num_records)
    for seed in range(50):
        drawn = batch.draw(seeded_key(seed))
        indices = np.asarray(drawn.indices)[np.asarray(drawn.mask)]
        assert len(set(indices)) == len(indices)
        assert np.all((indices >= 0) & (indices < num_records))


def test_every_record_is_drawn_at_the_inclusion_rate_of_the_declared_number():
    batch, num_draws = poisson(30), 3000
    drawn = jax.jit(jax.vmap(batch.draw))(jax.random.split(seeded_key(1), num_draws))
    counts = np.bincount(np.asarray(drawn.indices)[np.asarray(drawn.mask)].ravel(), minlength=30)
    # Each count is binomial; five standard deviations.
    assert 0.3 < batch.inclusion_rate < 1 / 3
    error = 5 * np.sqrt(2 / 9 / num_draws)
    assert np.all(np.abs(counts / num_draws - batch.inclusion_rate) < error)


def test_more_records_than_declared_are_refused_without_saying_how_many():
    with pytest.raises(InvalidArgumentError, match="declared_records") as error:
        poisson(61)
    assert "61" not in str(error.value)


def test_a_batch_larger_than_the_declared_number_is_refused():
    with pytest.raises(InvalidArgumentError, match="batch_size must be at most num_records=15"):
        poisson(10, declared=15)


# --- runs ----------------------------------------------------------------------------------------


def run(num_records, budget=BUDGET):
    return fit(plan(poisson(num_records)), MODEL, records(num_records), budget=budget, seed=0)


def test_tables_with_one_record_more_or_less_give_the_same_statement_plan_and_shapes():
    first, second = run(40), run(41)
    documents = [replace(made.statement, date="").to_json() for made in (first, second)]
    assert documents[0] == documents[1]
    assert documents[0]["num_units"] == DECLARED
    assert not documents[0]["num_units_is_public"]
    assert "the declared number of units" in documents[0]["not_protected"]
    assert "at most 60 of them" in str(first.statement)
    assert first.plan._sheet() == second.plan._sheet()
    assert first.plan.cost == second.plan.cost
    shapes = [jax.tree.map(jnp.shape, (made.posterior.kept, made.info)) for made in (first, second)]
    assert shapes[0] == shapes[1]


def test_the_statement_of_a_declared_run_is_confirmed_by_the_second_accountant():
    found = verify_statement(run(40).statement.to_json())
    # The seed is known, and that is all that is wrong.
    assert len(found.problems) == 1
    assert "INSECURE" in found.verdict


def test_the_warning_about_delta_is_about_the_declared_number():
    budget = Budget(epsilon=50.0, delta=1 / 50, accountant=PLD(adjacency=ADD_REMOVE))
    with pytest.warns(tacit.PrivacyWarning, match="not below 1/60"):
        run(40, budget)


def test_methods_compute_with_the_declared_number():
    settings = {"clip_norm": 1.0, "learning_rate": 0.1, "temperature": 2.0}
    first, second = (SGLD.knolle(sampling=poisson(n), **settings) for n in (40, 41))
    assert first.step_size == second.step_size
    assert first.release.noise_std == second.release.noise_std
    # The mean gradient of descent divides by the declared number: with noise alone, no other.
    tables = [jax.tree.map(jnp.zeros_like, records(n)) for n in (40, 41)]
    made = [
        fit(plan(poisson(n)), MODEL, table, budget=BUDGET, seed=0).posterior.kept
        for n, table in zip((40, 41), tables, strict=True)
    ]
    assert jax.tree.all(jax.tree.map(jnp.array_equal, *made))


def test_calibration_of_a_declared_plan_does_not_look_at_the_true_number():
    budget = replace(BUDGET, epsilon=1.0)
    noises = {calibrate(plan(poisson(n)), budget).method.release.noise_multiplier for n in (40, 41)}
    assert len(noises) == 1


@pytest.mark.parametrize(
    "sampling",
    [
        FullBatch(num_records=40),
        FixedBatch(num_records=40, batch_size=20),
        PoissonBatch(num_records=40, batch_size=20),
    ],
    ids=lambda sampling: type(sampling).__name__,
)
def test_other_batches_are_refused_under_add_remove(sampling):
    with pytest.raises(
        InvalidArgumentError, match=r"release.sampling must be a PoissonBatch with declared_records"
    ):
        fit(plan(sampling), MODEL, records(40), budget=BUDGET)
    # A calculator takes the number as what its user declares.
    assert PLD(adjacency=ADD_REMOVE).epsilon(plan(sampling).cost, delta=1e-3) > 0


@pytest.mark.parametrize("adjacency", [Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE], ids=str)
def test_a_declared_number_is_refused_where_the_true_one_is_public(adjacency):
    budget = replace(PUBLIC, accountant=PLD(adjacency=adjacency))
    with pytest.raises(InvalidArgumentError, match="declared_records must be left out"):
        run(40, budget)


def test_a_run_that_promises_nothing_may_have_any_batch():
    for sampling in (FullBatch(num_records=40), poisson(40)):
        require_adjacency(plan(sampling).method, Budget.non_private())


def test_what_was_spent_on_every_record_is_refused_under_add_remove():
    spent = replace(plan(poisson(40)), spent=Cost(dpa.GaussianDpEvent(9.0), is_secure=True))
    with pytest.raises(InvalidArgumentError, match=r"plan.spent"):
        fit(spent, MODEL, records(40), budget=BUDGET)


def test_private_searches_are_refused_under_add_remove():
    table = records(40)
    with pytest.raises(InvalidArgumentError, match="where the number of records is private"):
        private_clip_norm(MODEL, table, budget=BUDGET, noise_multiplier=9.0)
    with pytest.raises(InvalidArgumentError, match="where the number of records is private"):
        private_bounds(np.zeros((40, 1)), budget=BUDGET, noise_multiplier=9.0)


def test_estimators_are_refused_under_add_remove():
    with pytest.raises(InvalidArgumentError, match="declared_records"):
        prepare(ADULT_SCHEMA, num_records=1000, budget=BUDGET)


# --- ledgers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("adjacency", Adjacency, ids=str)
def test_a_ledger_counts_declared_runs_only_under_add_remove(adjacency):
    ledger = InMemoryLedger(budget=replace(BUDGET, accountant=RDP(adjacency=adjacency)))
    table, declared = records(40), plan(poisson(40))
    if adjacency is ADD_REMOVE:
        fit(declared, MODEL, table, budget=BUDGET, seed=0, ledger=ledger)
        assert ledger.costs
    else:
        with pytest.raises(InvalidArgumentError, match="adjacency of the ledger"):
            fit(declared, MODEL, table, budget=BUDGET, seed=0, ledger=ledger)
        assert not ledger.costs


def test_a_ledger_under_add_remove_refuses_runs_of_a_public_number(tmp_path):
    rule = RDPFilter.of_budget(epsilon=50.0, delta=1e-3, adjacency=ADD_REMOVE)
    ledger = tacit.LedgerFile.create(tmp_path / "ledger").register("table", rule)
    public = plan(FullBatch(num_records=40))
    with pytest.raises(InvalidArgumentError, match="adjacency of the ledger"):
        fit(public, MODEL, records(40), budget=PUBLIC, seed=0, ledger=ledger)
    assert ledger.spent == 0.0


# --- NumPyro -------------------------------------------------------------------------------------


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0.0, 1.0))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(w * x, 1.0), obs=y)


def svi(sampling=None, **settings):
    return DPSVI(
        model,
        AutoNormal(model),
        numpyro.optim.Adam(0.01),
        clip_norm=1.0,
        noise_multiplier=2.0,
        sampling=sampling,
        accountant=PLD(adjacency=ADD_REMOVE),
        seed=0,
        **settings,
    )


def test_dpsvi_says_and_computes_with_the_declared_number():
    statements, prints = [], []
    for num_records in (40, 41):
        x = jnp.linspace(-1.0, 1.0, num_records)
        inference = svi(poisson(num_records))
        state = inference.init(jax.random.key(0), x, 2 * x)
        with pytest.warns(tacit.PrivacyWarning, match="loss is NaN"):
            state, _ = inference.update(state, x, 2 * x)
        statements.append(replace(inference.statement(state), date="").to_json())
        prints.append(int(state.fingerprint))
    # Shares of clipped records are made of noisy sums, of which each run has its own.
    assert statements[0].pop("norms").keys() == statements[1].pop("norms").keys()
    assert statements[0] == statements[1]
    assert statements[0]["num_units"] == DECLARED
    assert statements[0]["delta"] == 1e-5
    assert prints[0] == prints[1]


def test_dpsvi_refuses_other_batches_under_add_remove():
    x = jnp.linspace(-1.0, 1.0, 40)
    for settings in ({}, {"batch_size": 10}):
        with pytest.raises(InvalidArgumentError, match="sampling must be a PoissonBatch"):
            svi(**settings).init(jax.random.key(0), x, 2 * x)
