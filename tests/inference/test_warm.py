"""HMC from a private start: what it costs, what it sees, what it refuses, and what it says."""

import functools
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from laws import laws
from tacit.errors import BudgetExceededError, InvalidArgumentError, UtilityWarning
from tacit.inference import SGLD, Laplace, Plan, WarmHMC, fit_hmc, warm
from tacit.inference.warm import Coordinates
from tacit.metrics import diagnose
from tacit.models import MLP, Bernoulli, GaussianPrior, bayesian
from tacit.posterior import Posterior, load_posterior
from tacit.privacy.accounting import GDP
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.cost import Cost, composed, count_releases, noise_multipliers
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch
from tacit.rehearsal import rehearse
from tacit.samplers import DiagonalGaussian
from tacit.typing import Record

N, CHAINS, PROPOSALS = 300, 3, 8
BUDGET = Budget(epsilon=8.0, delta=1e-5, accountant=GDP())
SETTINGS = WarmHMC(num_records=N, num_chains=CHAINS, num_proposals=PROPOSALS)
MODEL = bayesian(
    MLP(num_inputs=2, num_outputs=1), prior=GaussianPrior(std=2.0), likelihood=Bernoulli()
)


def inputs(number, seed):
    return np.random.default_rng(seed).uniform(-1, 1, (number, 2)).astype(np.float32)


def table(seed=0):
    x = inputs(N, seed)
    return Record(jnp.asarray(x), jnp.asarray(x[:, 0] > 0.1 * seed, jnp.int32), jnp.ones(N))


def run(settings=SETTINGS, records=None, *, budget=BUDGET, **changes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UtilityWarning)
        return fit_hmc(
            settings,
            MODEL,
            table() if records is None else records,
            inputs=inputs(200, 9),
            budget=budget,
            seed=0,
            **changes,
        )


@pytest.fixture(scope="module")
def found():
    return run()


def test_the_whole_call_releases_exactly_what_its_statement_counts(monkeypatch):
    seen, release = [], GaussianSum._release

    def spy(self, key, summation, data, call):
        given = self.noise_multiplier if call.noise_multiplier is None else call.noise_multiplier
        # Told when the compiled program runs, for each chain.
        jax.debug.callback(lambda value: seen.append(float(value)), jnp.asarray(given))
        return release(self, key, summation, data, call)

    monkeypatch.setattr(GaussianSum, "_release", spy)
    fit = run()
    jax.effects_barrier()
    stated = sorted(
        multiplier
        for multiplier, times in noise_multipliers(fit.checkpoint.cost.event)
        for _ in range(times)
    )
    assert len(seen) == len(stated) == 10 + CHAINS * PROPOSALS == fit.statement.releases
    # The start's multipliers follow a schedule in float32, whose cost is that of slightly less.
    np.testing.assert_allclose(sorted(seen), stated, rtol=1e-4)


def test_start_and_chains_are_in_one_statement_within_the_budget(found):
    start, chains = SETTINGS.plans(MODEL, inputs(200, 9), BUDGET)
    alone = chains.cost_between(0, PROPOSALS)
    both = composed(start.cost, alone)
    assert count_releases(found.checkpoint.cost.event) == count_releases(both)
    assert 7.9 < BUDGET.spent(both) <= float(found.statement.epsilon) <= 8.0
    # Half of epsilon at half of delta.
    assert 3.7 < BUDGET.spent(start.cost) < 4.0
    assert not found.statement.is_secure


def test_with_the_engine_silenced_no_trace_of_the_records_is_left(monkeypatch):
    def silent(self, key, summation, *others):
        return laws.zeros_of(summation)

    monkeypatch.setattr(GaussianSum, "_release", silent)
    left, right = (run(records=table(seed)) for seed in (0, 5))
    jax.tree.map(np.testing.assert_array_equal, left.posterior.kept, right.posterior.kept)
    jax.tree.map(np.testing.assert_array_equal, left.info, right.info)
    assert left.plan == right.plan


@pytest.fixture
def no_run(monkeypatch):
    def refused(*others, **settings):
        raise AssertionError("a record would have been read")

    monkeypatch.setattr(warm, "fit", refused)


def test_what_a_ledger_cannot_pay_for_is_refused_before_a_record_is_read(no_run):
    # It could pay for the start, and not for the chains.
    ledger = InMemoryLedger(budget=Budget(epsilon=6.0, delta=1e-5, accountant=GDP()))
    with pytest.raises(BudgetExceededError, match="ledger refuses"):
        run(ledger=ledger)
    assert ledger.costs == []


def test_a_start_that_has_spent_the_budget_is_refused_before_a_record_is_read(no_run):
    release = GaussianSum(sampling=FullBatch(num_records=N), clip_norm=1.0, noise_multiplier=1.0)
    spent = Cost(GaussianSum.cost_of(release, 0.1), is_secure=True)
    start = Plan(method=Laplace(release=release), num_steps=4, spent=spent)
    with pytest.raises(BudgetExceededError, match="but the budget is 4"):
        run(WarmHMC(num_records=N, start=start))


def test_a_ledger_is_charged_for_start_and_chains(found):
    ledger = InMemoryLedger(budget=Budget(epsilon=9.0, delta=1e-5, accountant=GDP()))
    charged = run(ledger=ledger)
    total = composed(*ledger.costs)
    assert count_releases(total) == count_releases(charged.checkpoint.cost.event)
    # Nor does a ledger change what is drawn.
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4)
    jax.tree.map(close, charged.posterior.kept, found.posterior.kept)


def test_paths_are_as_long_as_the_noise_allows(found):
    def angle(fit):
        return fit.plan.method.step_size * fit.plan.method.num_leapfrog

    small = run(budget=Budget(epsilon=1.0, delta=1e-5, accountant=GDP()))
    large = run(budget=Budget(epsilon=500.0, delta=1e-5, accountant=GDP()))
    assert angle(small) < angle(found) < angle(large)
    method = found.plan.method
    penalty = method.ratio.noise_std**2 * 2 * 3 * (1 - math.cos(angle(found)))
    assert penalty == pytest.approx(SETTINGS.penalty, rel=1e-3)


def test_chains_that_stay_near_their_start_say_so():
    with pytest.warns(UtilityWarning, match="nearly the private start"):
        stuck = fit_hmc(
            SETTINGS,
            MODEL,
            table(),
            inputs=inputs(200, 9),
            budget=Budget(epsilon=0.5, delta=1e-5, accountant=GDP()),
            seed=0,
        )
    assert any("nearly the private start" in caveat for caveat in stuck.posterior.intervals.caveats)
    free = run(WarmHMC(num_records=N, num_chains=2), budget=Budget.non_private())
    assert free.info.acceptance.mean() > 0.5
    assert not any("private start" in caveat for caveat in free.posterior.intervals.caveats)


def test_the_posterior_has_the_models_own_parameters_and_is_saved(found, tmp_path):
    shapes = jax.tree.map(jnp.shape, found.posterior.kept)
    kept = (CHAINS, PROPOSALS // 2)
    assert shapes["network"]["dense_0"] == {"kernel": (*kept, 2, 1), "bias": (*kept, 1)}
    # The first feature decides the class.
    assert float(found.posterior.draws()["network"]["dense_0"]["kernel"][:, 0, 0].mean()) > 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.posterior.save(tmp_path)
    again = load_posterior(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, again.kept, found.posterior.kept)


def test_a_rehearsal_runs_it_on_simulated_records_and_tells_its_acceptance():
    settings = WarmHMC(num_records=N, num_chains=2, num_proposals=6)
    rehearsal = rehearse(settings, MODEL, inputs(200, 9), budget=BUDGET, num_repeats=2)
    assert 0 < rehearsal.mean("acceptance") < 1
    assert rehearsal.mean("accuracy") > 0.5
    assert rehearsal.plan.method.gradient is None


def test_frozen_chains_have_an_effective_size_of_one_each_at_most():
    frozen = np.repeat(np.random.default_rng(0).normal(size=(3, 1, 2)), 40, axis=1)
    assert diagnose(frozen).r_hat > 100
    assert diagnose(np.ones((3, 40, 2))).ess_bulk == 1.0


def test_coordinates_of_independent_weights_are_scaled_one_by_one():
    kept = {"mean": jnp.array([[[1.0, 2.0]]]), "std": jnp.array([[[0.5, 3.0]]])}
    coordinates = Coordinates.of(Posterior(model=MODEL, sampler=DiagonalGaussian(), kept=kept))
    np.testing.assert_allclose(coordinates.params(jnp.array([2.0, -1.0])), [2.0, -1.0])


def refused_start(num_records):
    sampling = FullBatch(num_records=num_records)
    return Plan(
        method=SGLD.fixed_temperature(sampling=sampling, clip_norm=1.0, step_size=1e-3),
        num_steps=4,
    )


def test_settings_that_cannot_be_right_are_refused_by_name(no_run):
    with pytest.raises(InvalidArgumentError, match="must be configured for num_records"):
        WarmHMC(num_records=N, start=refused_start(7))
    with pytest.raises(InvalidArgumentError, match="must give a Gaussian"):
        run(WarmHMC(num_records=N, start=refused_start(N)))
    with pytest.raises(InvalidArgumentError, match="start_share"):
        WarmHMC(num_records=N, start_share=1.0)
