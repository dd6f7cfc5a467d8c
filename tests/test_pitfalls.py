"""How private training goes wrong: every pitfall names its tests, and here are those it lacked."""

import ast
import functools
import json
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from typer.testing import CliRunner

import tacit
from laws import laws
from laws.cases import CLIP_NORM, METHODS, MODELS, engine, full, poisson, table
from tacit import cli
from tacit.inference.method import objective_of, potential_gradient
from tacit.privacy.accounting import CLTApproximation
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import count_releases
from tacit.privacy.mechanism import GaussianSum
from tacit.rng import seeded_key

TESTS = Path(__file__).parent
DOCUMENT = TESTS.parent / "docs" / "pitfalls.md"
NUM_PITFALLS, NUM_BAYESIAN = 37, 8
ANY = tacit.Budget(epsilon=math.inf, delta=1e-3)


# --- the list ------------------------------------------------------------------------------------


def rows():
    """Yields number, handling and names of tests for each row of the tables."""
    for line in DOCUMENT.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and re.fullmatch(r"B?\d+", cells[0]):
            number, _pitfall, handling, tests = cells
            yield number, handling, re.findall(r"`([\w/.]+::\w+)`", tests)


ROWS = list(rows())


@functools.cache
def functions_of(path):
    tree = ast.parse((TESTS / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_pitfall_has_its_row_in_order():
    assert [number for number, _, _ in ROWS] == [
        *(str(n) for n in range(1, NUM_PITFALLS + 1)),
        *(f"B{n}" for n in range(1, NUM_BAYESIAN + 1)),
    ]


@pytest.mark.parametrize(("number", "handling", "tests"), ROWS, ids=[row[0] for row in ROWS])
def test_every_pitfall_names_tests_that_exist(number, handling, tests):
    assert tests, f"pitfall {number} names no test"
    for name in tests:
        path, _, function = name.partition("::")
        assert function.startswith("test_")
        assert function in functions_of(path), f"pitfall {number}: {name} does not exist"


@pytest.mark.parametrize(
    ("number", "handling"),
    [(number, handling) for number, handling, _ in ROWS if "not there" in handling.lower()],
)
def test_what_is_said_not_to_be_there_is_named_and_is_not_there(number, handling):
    missing = re.findall(r"not there: `tacit\.(\w+)`", handling)
    assert missing, f"pitfall {number} does not name what is not there"
    for name in missing:
        assert not hasattr(tacit, name), f"pitfall {number}: tacit.{name} exists"


def test_no_row_speaks_of_plans():
    assert "planned" not in DOCUMENT.read_text(encoding="utf-8")


# --- tests that the list was missing -------------------------------------------------------------


def small_problem(num_records=80):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(num_records, 5))
    return tacit.as_records(x, (x[:, 0] > 0).astype(int))


def small_sgld(num_records=80, **changes):
    settings = {"clip_norm": 1.0, "noise_multiplier": 4.0} | changes
    sampling = tacit.PoissonBatch(num_records=num_records, batch_size=10)
    return tacit.SGLD.fixed_noise(
        release=GaussianSum(sampling=sampling, **settings), step_size=1e-3
    )


def test_an_empty_batch_is_never_filled_with_other_records():
    never = tacit.PoissonBatch(num_records=12, batch_size=1e-9)
    release = jax.jit(lambda key, data: engine(never)(key, lambda record, key: record.x, data))
    for seed in range(3):
        one, other = (release(seeded_key(seed), table("dense", seed=which)) for which in (0, 1))
        np.testing.assert_array_equal(one, other)
        assert np.all(np.asarray(one) != 0)


def test_batches_of_consecutive_steps_are_independent_as_shuffled_epochs_are_not():
    # In shuffled epochs a record that was just drawn cannot come again: correlation -q / (1 - q).
    sampling = tacit.PoissonBatch(num_records=40, batch_size=10)
    num_steps = 4000

    def included(step):
        batch = sampling.draw(jax.random.fold_in(seeded_key(0), step))
        return jnp.zeros(40).at[batch.indices].add(batch.mask)

    drawn = np.asarray(jax.jit(jax.vmap(included))(jnp.arange(num_steps)))
    centred = drawn - sampling.rate
    variance = sampling.rate * (1 - sampling.rate)
    for lag in (1, 2, 3):
        correlation = np.mean(centred[lag:] * centred[:-lag]) / variance
        assert abs(correlation) < 5 / math.sqrt(centred[lag:].size)


def test_the_steps_that_ran_are_the_steps_that_the_statement_counts():
    plan = tacit.Plan(method=small_sgld(), num_steps=17, num_chains=2, burn_in=3, thinning=4)
    fit = tacit.fit(plan, MODELS["dense"], small_problem(), budget=ANY, seed=0, chunk_steps=5)
    assert fit.checkpoint.states.step.tolist() == [17, 17]
    assert fit.statement.releases == 2 * 17


def test_every_report_of_epsilon_names_its_adjacency():
    budget = tacit.Budget(
        epsilon=math.inf,
        delta=1e-3,
        accountant=tacit.PLD(adjacency=tacit.Adjacency.REPLACE_ONE),
    )
    plan = tacit.Plan(method=small_sgld(), num_steps=2)
    fit = tacit.fit(plan, MODELS["dense"], small_problem(), budget=budget, seed=0)
    assert "replace-one" in str(fit.statement)
    assert fit.statement.to_json()["adjacency"].startswith("replace-one")
    assert fit.posterior.statement["adjacency"].startswith("replace-one")
    run = ["--delta", "1e-5", "--rate", "0.1", "--adjacency", "replace-one"]
    for verb in (
        ["epsilon", "--noise-multiplier", "2", "--steps", "3"],
        ["calibrate", "--epsilon", "1", "--steps", "3"],
    ):
        text = CliRunner().invoke(cli.app, [*verb, *run], catch_exceptions=False).stdout
        assert "adjacency replace-one" in text
        answer = CliRunner().invoke(cli.app, [*verb, *run, "--json"], catch_exceptions=False).stdout
        assert json.loads(answer)["adjacency"] == "replace-one"


def test_the_statement_of_an_approximate_accountant_says_that_it_is_no_guarantee():
    budget = tacit.Budget(epsilon=math.inf, delta=1e-3, accountant=CLTApproximation())
    plan = tacit.Plan(method=small_sgld(), num_steps=2)
    fit = tacit.fit(plan, MODELS["dense"], small_problem(), budget=budget, seed=0)
    assert "not a guarantee" in str(fit.statement)


def test_a_private_choice_of_the_clip_norm_is_counted_by_plan_budget_and_statement():
    records, model = small_problem(), MODELS["dense"]
    budget = tacit.Budget(epsilon=3.0, delta=1e-3)
    clip_norm, cost = tacit.private_clip_norm(
        model, records, budget=budget, noise_multiplier=2.0, seed=0
    )
    method = small_sgld(clip_norm=clip_norm)
    plan = tacit.Plan(method=method, num_steps=5, spent=cost)
    charged = tacit.calibrate(plan, budget)
    without = charged.method.cost(5)
    assert budget.spent(without) < 0.95 * budget.spent(charged.cost) <= 0.95 * 3.0
    fit = tacit.fit(charged, model, records, budget=budget, seed=0)
    assert fit.statement.releases == 5 + 1
    assert fit.statement.epsilon <= 3.0


@pytest.mark.parametrize("kind", ["dense", "conv", "dropout"])
def test_changing_one_record_changes_the_sum_by_that_records_own_contribution(kind):
    # A cross-record operation would make the contributions of the others move as well.
    model, records, others = MODELS[kind], table(kind), table(kind, seed=1)
    record_loss = objective_of(model).record_loss
    params = model.init(seeded_key(1))
    changed = jax.tree.map(lambda here, there: here.at[3].set(there[3]), records, others)

    @jax.jit
    def total(data):
        return engine(full, noise_multiplier=0.0).gradient(
            seeded_key(0), lambda w, r, k: record_loss(w, None, r, k), params, data
        )

    def alone(data):
        weight = jnp.zeros_like(data.weight).at[3].set(data.weight[3])
        return total(data._replace(weight=weight))

    together = jax.tree.map(jnp.subtract, total(changed), total(records))
    own = jax.tree.map(jnp.subtract, alone(changed), alone(records))
    assert sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(own)) > 1e-4
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), together, own)


def test_with_the_engine_silenced_a_whole_fit_shows_nothing_of_the_records(monkeypatch):
    # All that leaves a run: posterior, infos, checkpoints, what progress and ledger are told.
    def silent(self, key, summation, *others):
        return laws.zeros_of(summation)

    def unnamed(checkpoint):
        return checkpoint._replace(run_id=None)  # drawn for each run

    monkeypatch.setattr(GaussianSum, "_release", silent)
    seen = []
    for seed in (0, 1):
        told, ledger = [], InMemoryLedger()
        fit = tacit.fit(
            tacit.Plan(method=METHODS["SGLD decaying"], num_steps=6, thinning=2),
            MODELS["dense"],
            table("dense", seed=seed),
            budget=tacit.Budget(epsilon=1e6, delta=1e-3),
            seed=0,
            ledger=ledger,
            chunk_steps=2,
            progress=lambda told=told, **news: told.append(news),
            on_chunk=lambda checkpoint, told=told: told.append(unnamed(checkpoint)),
        )
        statement = fit.statement.to_json() | {"date": ""}
        last = unnamed(fit.checkpoint)
        seen.append((fit.posterior.kept, fit.info, last, told, statement, ledger.costs))
    left, right = (jax.tree.leaves(everything) for everything in seen)
    assert len(left) == len(right) > 20
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


def test_runs_on_one_ledger_add_up_until_one_is_refused():
    records, model = small_problem(), MODELS["dense"]
    release = small_sgld().release
    roomy = tacit.PoissonBatch(num_records=80, batch_size=10, max_batch_size=80)
    release = GaussianSum(sampling=roomy, clip_norm=1.0, noise_multiplier=release.noise_multiplier)
    method = tacit.SGD(release=release, optimizer=optax.sgd(0.1))
    plan = tacit.Plan(method=method, num_steps=4)
    each = tacit.RDP().epsilon(plan.cost, delta=1e-3)
    twice = tacit.RDP().epsilon(tacit.Plan(method=method, num_steps=8).cost, delta=1e-3)
    own = tacit.Budget(epsilon=2 * each, delta=1e-3)
    ledger = InMemoryLedger(
        # A filter for runs chosen one after the other is stricter than accounting for both at once.
        budget=tacit.Budget(epsilon=1.2 * twice, delta=1e-3, accountant=tacit.RDP())
    )
    for _ in range(2):
        tacit.fit(plan, model, records, budget=own, ledger=ledger, chunk_steps=4)
    with pytest.raises(tacit.BudgetExceededError):
        tacit.fit(plan, model, records, budget=own, ledger=ledger, chunk_steps=4)
    assert sum(sum(count_releases(cost).values()) for cost in ledger.costs) == 8


@pytest.mark.parametrize("sampling", [poisson, full], ids=["poisson", "full"])
def test_the_prior_is_exact_outside_the_clip_and_added_once(sampling):
    # Records of weight zero contribute nothing, so what is left is the prior's own gradient, which
    # is far above the clip norm here.
    model = MODELS["dense"]
    params = jax.tree.map(lambda leaf: leaf + 10.0, model.init(seeded_key(1)))
    records = table("dense")
    silent = records._replace(weight=jnp.zeros_like(records.weight))
    release, objective = engine(sampling, noise_multiplier=0.0), objective_of(model)
    gradient = jax.jit(
        lambda key, params, data: potential_gradient(key, release, objective, params, data)
    )(seeded_key(0), params, silent)
    expected = jax.tree.map(jnp.negative, jax.grad(model.log_prior)(params))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), gradient, expected)
    assert float(optax.tree.norm(gradient)) > 10 * CLIP_NORM
