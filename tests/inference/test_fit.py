"""Running a plan: within budget, counted, chunked, resumable, and never twice with one key."""

import json
import math
import re
from dataclasses import replace

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tacit.data import as_records
from tacit.errors import (
    BudgetExceededError,
    CrossRecordError,
    InvalidArgumentError,
    PrivacyWarning,
    TacitError,
)
from tacit.inference import SGD, SGLD, Plan, calibrate, fit, load_checkpoint, save_checkpoint
from tacit.inference.fit import CompiledFit
from tacit.inference.schedules import Polynomial
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.accounting import PLD, RDP, CLTApproximation
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.cost import Cost, count_releases, event_from_json
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FixedBatch, PoissonBatch
from tacit.privacy.statement.construction import make_statement
from tacit.privacy.statement.text import FIXED
from tacit.privacy.stopping import AnytimeRDP, Declared
from tacit.typing import Record

N = 200
BUDGET = Budget(epsilon=8.0, delta=1e-4)
SAMPLING = PoissonBatch(num_records=N, batch_size=20)
# Shapes without values: touching a record would fail in another way than what is tested.
SHAPES = Record(
    jax.ShapeDtypeStruct((N, 3), jnp.float32),
    jax.ShapeDtypeStruct((N,), jnp.int32),
    jax.ShapeDtypeStruct((N,), jnp.float32),
)


@pytest.fixture(scope="module")
def records():
    generator = np.random.default_rng(0)
    x = generator.normal(size=(N, 3))
    return as_records(x, (x[:, 0] > 0).astype(int))


@pytest.fixture(scope="module")
def model():
    return bayesian(
        MLP(num_inputs=3, hidden=(4,), num_outputs=2),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=2),
    )


def sgd(noise_multiplier=1.0, **changes):
    release = GaussianSum(
        sampling=SAMPLING, clip_norm=1.0, noise_multiplier=noise_multiplier, **changes
    )
    return SGD(release=release, optimizer=optax.sgd(0.5, momentum=0.5))


def plan(num_steps=12, method=None, **changes):
    return Plan(method=method or sgd(), num_steps=num_steps, **changes)


def equal(left, right):
    return all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    )


def test_a_plan_above_the_budget_is_refused_before_any_record_is_touched(model):
    ledger = InMemoryLedger()
    with pytest.raises(BudgetExceededError, match="epsilon"):
        fit(plan(), model, SHAPES, budget=Budget(epsilon=0.01, delta=1e-4), ledger=ledger)
    assert not ledger.costs


def test_training_can_run_until_the_budget_is_spent(model, records):
    budget = Budget(epsilon=4.0, delta=1e-4)
    result = fit(plan(num_steps=None), model, records, budget=budget, seed=0)
    steps = result.plan.num_steps
    assert result.statement.epsilon <= 4.0
    assert steps > 1
    assert not budget.allows(result.plan.with_steps(steps + 1).cost)


def test_the_statement_is_computed_from_what_was_executed(model, records):
    result = fit(plan(7), model, records, budget=BUDGET, seed=0)
    expected = PLD().epsilon(sgd().cost(7), delta=1e-4)
    assert expected <= result.statement.epsilon <= expected + 1e-3
    assert result.statement.releases == 7
    assert "unit" in result.statement.to_json()
    assert re.search("zero", result.statement.adjacency, re.IGNORECASE)


def test_chunking_changes_nothing(model, records):
    results = [
        fit(plan(thinning=5), model, records, budget=BUDGET, seed=3, chunk_steps=size)
        for size in (1, 5, 12, 100)
    ]
    for other in results[1:]:
        assert equal(results[0].posterior.kept, other.posterior.kept)


def test_nothing_is_compiled_again_after_the_first_chunk(model, records):
    def traces(chunk_steps):
        count = []

        def counted(params, record, key):
            count.append(1)
            return model.log_likelihood(params, record, key)

        fit(
            plan(11, thinning=3, burn_in=4),
            model._replace(log_likelihood=counted),
            records,
            budget=BUDGET,
            seed=0,
            chunk_steps=chunk_steps,
        )
        return len(count)

    assert traces(1) == traces(3) == traces(11)


def test_what_was_compiled_before_serves_only_the_very_same_method_and_model(model, records):
    own = plan()
    compiled = CompiledFit(own.method, model)
    wanted = fit(own, model, records, budget=BUDGET, seed=3)
    for _ in range(2):
        found = fit(own, model, records, budget=BUDGET, seed=3, compiled=compiled)
        assert equal(wanted.posterior.kept, found.posterior.kept)
    # Otherwise a run would have the noise of one method, and the statement that of another.
    quieter = plan(method=sgd(noise_multiplier=0.01))
    with pytest.raises(InvalidArgumentError, match="compiled must be of this very"):
        fit(own, model, SHAPES, budget=BUDGET, compiled=CompiledFit(quieter.method, model))
    with pytest.raises(InvalidArgumentError, match="compiled must be of this very"):
        fit(own, model._replace(spec=None), SHAPES, budget=BUDGET, compiled=compiled)


def test_states_are_retained_counting_back_from_the_last_step(model, records):
    assert plan(12, thinning=5, burn_in=1).kept_steps == (2, 7, 12)
    assert plan(12).kept_steps == (12,)
    assert plan(12, thinning=1, burn_in=9).kept_steps == (10, 11, 12)
    every = fit(plan(12, thinning=1), model, records, budget=BUDGET, seed=0).posterior.kept
    some = fit(
        plan(12, thinning=5, burn_in=1), model, records, budget=BUDGET, seed=0
    ).posterior.kept
    assert equal(jax.tree.map(lambda x: x[:, jnp.array([1, 6, 11])], every), some)


def test_chains_start_apart_stay_apart_and_are_each_paid_for(model, records):
    result = fit(plan(5, num_chains=3), model, records, budget=BUDGET, seed=0)
    assert result.posterior.num_chains == 3
    assert result.statement.releases == 15
    kernel = np.asarray(jax.tree.leaves(result.posterior.kept)[-1])
    assert not np.array_equal(kernel[0], kernel[1])


def test_burn_in_and_thinning_give_no_discount(model, records):
    costs = [plan(12, thinning=t, burn_in=b).cost for t, b in ((None, 0), (1, 0), (4, 3))]
    assert costs[0] == costs[1] == costs[2]


def test_without_a_seed_two_runs_share_no_noise(model, records):
    first, second = (fit(plan(2), model, records, budget=BUDGET) for _ in range(2))
    assert not equal(first.posterior.kept, second.posterior.kept)
    assert first.statement.is_secure
    assert "INSECURE" not in str(first.statement)


def test_a_seed_marks_the_statement_insecure(model, records):
    statement = fit(plan(2), model, records, budget=BUDGET, seed=0).statement
    assert not statement.is_secure
    assert "INSECURE" in str(statement)
    assert "INSECURE" in statement.epsilon_text


def test_a_non_private_run_says_infinity_everywhere(model, records):
    method = SGD(
        release=GaussianSum(sampling=SAMPLING, clip_norm=math.inf, noise_multiplier=0.0),
        optimizer=optax.sgd(0.1),
    )
    with pytest.raises(BudgetExceededError):
        fit(plan(3, method), model, records, budget=BUDGET)
    result = fit(plan(3, method), model, records, budget=Budget.non_private(), seed=0)
    assert math.isinf(result.statement.epsilon)
    assert "NOT PRIVATE" in str(result.statement)
    assert result.statement.to_json()["epsilon"] == "infinity"
    assert "infinity" in repr(result.posterior)


def test_the_ledger_is_charged_before_each_chunk_and_stops_the_run(model, records):
    events = []

    class Ledger:
        run_id = "this"

        def begin(self, request):
            return self

        def charge(self, cost, *, num_steps):
            events.append(("charge", sum(count_releases(cost).values())))
            if len(events) == 5:
                raise BudgetExceededError("the owner's budget is spent")

    with pytest.raises(BudgetExceededError, match="owner"):
        fit(
            plan(12),
            model,
            records,
            budget=BUDGET,
            seed=0,
            chunk_steps=4,
            ledger=Ledger(),
            on_chunk=lambda checkpoint: events.append(("ran", checkpoint.step)),
        )
    assert events == [("charge", 4), ("ran", 4), ("charge", 4), ("ran", 8), ("charge", 4)]


def test_what_the_ledger_was_charged_is_what_the_statement_counts(model, records):
    method = SGLD.fixed_temperature(
        sampling=SAMPLING, clip_norm=1.0, step_size=0.02, schedule=Polynomial(delay=3.0)
    )
    ledger = InMemoryLedger()
    long = plan(7, method, num_chains=2)
    result = fit(
        long,
        model,
        records,
        budget=Budget(epsilon=1e3, delta=1e-4),
        seed=0,
        ledger=ledger,
        chunk_steps=3,
    )
    before = count_releases(long.spent.event)
    charged = sum((count_releases(cost) for cost in ledger.costs), start=before)
    assert charged == count_releases(result.plan.cost)


def test_progress_tells_steps_and_epsilon_and_ends_at_the_statement(model, records):
    told = []
    result = fit(
        plan(30),
        model,
        records,
        budget=BUDGET,
        seed=0,
        chunk_steps=3,
        progress=lambda **news: told.append(news),
    )
    assert [news["step"] for news in told] == list(range(3, 31, 3))
    assert all(set(news) == {"step", "num_steps", "epsilon"} for news in told)
    spent = [news["epsilon"] for news in told]
    assert spent == sorted(spent)
    assert spent[-1] <= result.statement.epsilon <= spent[-1] + 1e-3
    # Never less than was really spent so far.
    assert spent[0] >= PLD().epsilon(sgd().cost(3), delta=1e-4)


@pytest.mark.parametrize("stop", [4, 5, 11])
def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(model, records, stop, tmp_path):
    saved = {}
    whole = fit(
        plan(12, thinning=2, num_chains=2),
        model,
        records,
        budget=BUDGET,
        seed=5,
        chunk_steps=1,
        on_chunk=lambda c: saved.update({c.step: c}),
    )
    save_checkpoint(saved[stop], tmp_path)
    checkpoint = load_checkpoint(tmp_path, whole.plan, model, records)
    resumed = fit(whole.plan, model, records, budget=BUDGET, seed=5, resume=checkpoint)
    assert equal(whole.posterior.kept, resumed.posterior.kept)
    assert resumed.statement.releases == 24


def test_a_resumed_run_never_reuses_noise_and_a_fork_is_counted_twice(model, records):
    saved = []
    ledger = InMemoryLedger()
    fit(plan(4), model, records, budget=BUDGET, ledger=ledger, chunk_steps=2, on_chunk=saved.append)
    forks = [
        fit(plan(4), model, records, budget=BUDGET, ledger=ledger, resume=saved[0])
        for _ in range(2)
    ]
    assert not equal(forks[0].posterior.kept, forks[1].posterior.kept)
    assert sum(sum(count_releases(cost).values()) for cost in ledger.costs) == 4 + 2 + 2


def test_a_checkpoint_holds_no_key(model, records):
    result = fit(plan(2), model, records, budget=BUDGET)
    assert not any(
        jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        for leaf in jax.tree.leaves(result.checkpoint)
        if hasattr(leaf, "dtype")
    )


def test_a_damaged_checkpoint_is_found_out(model, records, tmp_path):
    result = fit(plan(2), model, records, budget=BUDGET, seed=0)
    save_checkpoint(result.checkpoint, tmp_path)
    file = tmp_path / "checkpoint.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(TacitError, match="does not match its checksum"):
        load_checkpoint(tmp_path, result.plan, model, records)


def test_a_finished_run_cannot_be_resumed(model, records):
    result = fit(plan(2), model, records, budget=BUDGET, seed=0)
    with pytest.raises(InvalidArgumentError, match="Nothing is left"):
        fit(plan(2), model, records, budget=BUDGET, resume=result.checkpoint)


def test_a_resumed_run_counts_what_was_executed_before_not_what_its_plan_would_have(model, records):
    noisy, quiet = plan(4, sgd(4.0)), plan(3, sgd(0.8))
    first = fit(quiet, model, records, budget=BUDGET)
    resumed = fit(noisy, model, records, budget=BUDGET, resume=first.checkpoint)
    assert "4 steps were made where 3 were declared" in resumed.statement.length
    cost = resumed.checkpoint.cost.event
    assert event_from_json(resumed.statement.cost) == cost
    assert 0 <= resumed.statement.epsilon - AnytimeRDP().epsilon(cost, delta=BUDGET.delta) < 0.01
    assert PLD().epsilon(cost, delta=BUDGET.delta) < first.statement.epsilon + 0.5
    with pytest.raises(BudgetExceededError):
        fit(noisy, model, records, budget=replace(BUDGET, epsilon=1.0), resume=first.checkpoint)


@pytest.fixture(scope="module")
def stopped(model, records, tmp_path_factory):
    """The checkpoint of a run of six steps that somebody stopped after two, read from the disk."""

    class Seen(Exception):  # noqa: N818
        pass

    def look(checkpoint):
        save_checkpoint(checkpoint, folder)
        raise Seen

    folder = tmp_path_factory.mktemp("stopped")
    with pytest.raises(Seen):
        fit(plan(6), model, records, budget=BUDGET, seed=0, chunk_steps=2, on_chunk=look)
    return load_checkpoint(folder, plan(6), model, records)


@pytest.mark.parametrize("num_steps", [3, 6, None])
def test_a_run_that_was_stopped_by_looking_states_what_it_was_declared_to_be(
    model, records, stopped, num_steps
):
    assert stopped.step == 2
    assert stopped.declared == Declared(6, plan(6).cost)
    resumed = fit(plan(num_steps), model, records, budget=BUDGET, resume=stopped)
    whole = PLD().epsilon(plan(6).cost, delta=BUDGET.delta)
    assert 0 <= resumed.statement.epsilon - whole < 2e-3
    assert resumed.statement.releases == 6
    assert resumed.checkpoint.step == (num_steps or 6)
    assert resumed.checkpoint.declared == stopped.declared
    said = {3: "stated for the 6 steps that were declared; 3 were made"}
    assert resumed.statement.length == said.get(num_steps, FIXED)


def test_a_checkpoint_that_does_not_say_what_was_declared_is_stated_at_any_time(
    model, records, stopped
):
    old = stopped._replace(declared=None)
    resumed = fit(plan(6), model, records, budget=BUDGET, resume=old)
    whole = AnytimeRDP().epsilon(plan(6).cost, delta=BUDGET.delta)
    assert 0 <= resumed.statement.epsilon - whole < 0.01
    assert "where none were declared" in resumed.statement.length


def test_a_run_without_privacy_stays_without_privacy_when_resumed(model, records):
    first = fit(plan(3, sgd(0.0)), model, records, budget=Budget.non_private())
    with pytest.raises(BudgetExceededError, match="infinity"):
        fit(plan(4), model, records, budget=BUDGET, resume=first.checkpoint)


def test_a_seeded_run_stays_insecure_when_resumed(model, records, tmp_path):
    first = fit(plan(3), model, records, budget=BUDGET, seed=0)
    save_checkpoint(first.checkpoint, tmp_path)
    checkpoint = load_checkpoint(tmp_path, first.plan, model, records)
    assert checkpoint.cost == first.checkpoint.cost
    resumed = fit(plan(4), model, records, budget=BUDGET, resume=checkpoint)
    assert not resumed.statement.is_secure
    assert not resumed.checkpoint.cost.is_secure


def test_what_was_spent_before_is_counted_once_when_resumed_and_cannot_be_added(model, records):
    earlier = {"spent": Cost(dp_accounting.GaussianDpEvent(6.0), is_secure=True)}
    first = fit(plan(3, **earlier), model, records, budget=BUDGET)
    resumed = fit(plan(5, **earlier), model, records, budget=BUDGET, resume=first.checkpoint)
    assert resumed.statement.releases == 1 + 5
    bare = fit(plan(3), model, records, budget=BUDGET)
    with pytest.raises(InvalidArgumentError, match=r"plan\.spent must be part"):
        fit(plan(5, **earlier), model, records, budget=BUDGET, resume=bare.checkpoint)


def test_a_resumed_run_can_go_on_until_the_budget_is_spent(model, records):
    budget = Budget(epsilon=4.0, delta=1e-4, accountant=RDP())
    first = fit(plan(3, sgd(0.9)), model, records, budget=budget)
    told = []
    resumed = fit(
        plan(None),
        model,
        records,
        budget=budget,
        resume=first.checkpoint,
        progress=lambda **news: told.append(news["epsilon"]),
    )
    assert 3.0 < resumed.statement.epsilon <= 4.0
    assert told[-1] <= resumed.statement.epsilon <= told[-1] + 1e-3


def test_a_seeded_choice_before_the_run_makes_it_insecure(model, records):
    earlier = plan(2, spent=Cost(dp_accounting.GaussianDpEvent(6.0), is_secure=False))
    assert not fit(earlier, model, records, budget=BUDGET).statement.is_secure


def test_an_edited_checkpoint_is_found_out(model, records, tmp_path):
    result = fit(plan(2), model, records, budget=BUDGET, seed=0)
    save_checkpoint(result.checkpoint, tmp_path)
    file = tmp_path / "checkpoint.json"
    file.write_text(file.read_text().replace('"is_secure": false', '"is_secure": true'))
    with pytest.raises(TacitError, match=r"checkpoint\.json does not match its checksum"):
        load_checkpoint(tmp_path, result.plan, model, records)


def test_a_checkpoint_made_with_other_noise_is_not_resumed(model, records, tmp_path, monkeypatch):
    result = fit(plan(2), model, records, budget=BUDGET, seed=0)
    monkeypatch.setattr("tacit.inference.chains.ARITHMETIC", "float32")
    save_checkpoint(result.checkpoint, tmp_path)
    monkeypatch.undo()
    with pytest.raises(TacitError, match="with other noise"):
        load_checkpoint(tmp_path, result.plan, model, records)


def test_a_checkpoint_is_refused_by_a_plan_or_model_of_another_shape(model, records, tmp_path):
    result = fit(plan(2, num_chains=2), model, records, budget=BUDGET, seed=0)
    save_checkpoint(result.checkpoint, tmp_path)
    wide = bayesian(
        MLP(num_inputs=3, hidden=(5,), num_outputs=2),
        prior=GaussianPrior(std=1.0),
        likelihood=Categorical(num_classes=2),
    )
    for chains, other in ((1, model), (3, model), (2, wide)):
        with pytest.raises(TacitError, match=r"its array .checkpoint.*has shape"):
            load_checkpoint(tmp_path, plan(4, num_chains=chains), other, records)
        with pytest.raises(InvalidArgumentError, match="resume does not fit"):
            fit(
                plan(4, num_chains=chains),
                other,
                records,
                budget=BUDGET,
                resume=result.checkpoint,
            )


@pytest.mark.parametrize(
    "sampling",
    [
        PoissonBatch(num_records=np.int64(N), batch_size=np.int64(20)),
        FixedBatch(num_records=N, batch_size=np.int64(20)),
    ],
)
def test_sizes_may_be_integers_of_numpy(model, records, sampling):
    method = replace(sgd(), release=replace(sgd(2.0).release, sampling=sampling))
    result = fit(plan(2, method), model, records, budget=BUDGET, seed=0)
    assert event_from_json(result.statement.cost) == result.plan.cost


@pytest.mark.parametrize(
    "spent",
    [
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(5.0), 2)
        ),
        dp_accounting.PoissonSampledDpEvent(
            0.1, dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(5.0)] * 2)
        ),
        dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(math.inf)] * 2),
    ],
)
def test_every_cost_that_can_be_accounted_can_be_stated(spent):
    statement = make_statement(
        cost=Cost(spent, is_secure=True), budget=BUDGET, unit="row", num_units=N
    )
    assert statement.releases == 2
    assert statement.noise.startswith("Gaussian")
    assert json.dumps(statement.to_json(), allow_nan=False)
    again = event_from_json(statement.cost)
    assert count_releases(again) == count_releases(spent)
    assert PLD().epsilon(again, delta=1e-4) == PLD().epsilon(spent, delta=1e-4)


def test_releases_without_noise_are_stated_as_such():
    statement = make_statement(
        cost=Cost(dp_accounting.GaussianDpEvent(0.0), is_secure=True),
        budget=Budget.non_private(),
        unit="row",
        num_units=N,
    )
    assert statement.noise == "none"
    assert "NOT PRIVATE" in str(statement)


def test_an_infinite_budget_promises_nothing_whatever_the_noise(model, records):
    statement = fit(plan(2), model, records, budget=Budget.non_private()).statement
    assert str(statement).startswith("NOT PRIVATE")
    assert statement.to_json()["epsilon"] == statement.epsilon_text == "infinity"
    assert event_from_json(statement.cost) == plan(2).cost


def test_an_approximate_accountant_warns_and_its_promise_is_no_guarantee(model, records):
    budget = replace(BUDGET, accountant=CLTApproximation())
    with pytest.warns(PrivacyWarning, match="NOT A GUARANTEE"):
        statement = fit(plan(2), model, records, budget=budget).statement
    assert re.match(r"approximately \(about .*: NOT A GUARANTEE\n", str(statement))
    assert not statement.to_json()["is_bound"]


def closes_over_in_the_prior(model, table):
    return model._replace(log_prior=lambda w: model.log_prior(w) + jnp.sum(table))


def closes_over_in_the_start(model, table):
    return model._replace(
        init=lambda key: jax.tree.map(lambda w: w + jnp.mean(table), model.init(key))
    )


@pytest.mark.parametrize("spoil", [closes_over_in_the_prior, closes_over_in_the_start])
@pytest.mark.parametrize("leaf", [lambda r: r.x, lambda r: r.x.T.copy(), lambda r: r.weight])
def test_a_model_that_knows_the_table_is_refused(model, records, spoil, leaf):
    with pytest.raises(CrossRecordError, match="closes over an array"):
        fit(plan(2), spoil(model, leaf(records)), records, budget=BUDGET)


def test_an_optimiser_that_knows_the_table_is_refused(model, records):
    peeking = optax.stateless(
        lambda updates, _: jax.tree.map(lambda g: g + jnp.sum(records.x), updates)
    )
    with pytest.raises(CrossRecordError, match="closes over an array"):
        fit(plan(2, replace(sgd(), optimizer=peeking)), model, records, budget=BUDGET)


@pytest.mark.parametrize("chunk_steps", [0, -1, 1.5])
def test_chunks_of_no_whole_number_of_steps_are_refused(model, records, chunk_steps):
    with pytest.raises(InvalidArgumentError, match="chunk_steps"):
        fit(plan(2), model, records, budget=BUDGET, chunk_steps=chunk_steps)


def test_an_infinite_budget_cannot_be_run_until_it_is_spent(model, records):
    with pytest.raises(InvalidArgumentError, match="budget must be finite"):
        fit(plan(None), model, records, budget=Budget.non_private())


def test_a_delta_of_one_in_n_or_more_warns(model, records):
    with pytest.warns(PrivacyWarning, match="delta"):
        fit(plan(2), model, records, budget=Budget(epsilon=8.0, delta=1 / N), seed=0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda r: r._replace(x=r.x[:9], y=r.y[:9], weight=r.weight[:9]), "records has 9 rows"),
        (lambda r: np.ones((N, 3)), "records must be a Record table"),
    ],
)
def test_records_that_do_not_fit_the_plan_are_refused(model, records, bad, message):
    with pytest.raises(InvalidArgumentError, match=message):
        fit(plan(), model, bad(records), budget=BUDGET)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_steps": 0}, "num_steps must be a whole number"),
        ({"burn_in": 2.5}, "burn_in must be a whole number"),
        ({"burn_in": 12}, "burn_in must be below num_steps"),
        ({"thinning": 0}, "thinning must be a whole number"),
        ({"num_chains": 0}, "num_chains must be a whole number"),
    ],
)
def test_bad_plans_are_refused_by_name(changes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        plan(**changes)


def test_a_calibrated_fit_stays_within_its_budget(model, records):
    budget = Budget(epsilon=1.0, delta=1e-4)
    result = fit(calibrate(plan(20), budget), model, records, budget=budget, seed=0)
    assert 0.9 < result.statement.epsilon <= 1.0


def test_low_precision_parameters_train_and_keep_their_type(model, records):
    half = model._replace(
        init=lambda key: jax.tree.map(lambda w: w.astype(jnp.bfloat16), model.init(key))
    )
    for method in (sgd(), SGLD.fixed_noise(release=sgd().release, step_size=1e-3)):
        result = fit(plan(2, method), half, records, budget=BUDGET, seed=0)
        assert all(leaf.dtype == jnp.bfloat16 for leaf in jax.tree.leaves(result.posterior.kept))
