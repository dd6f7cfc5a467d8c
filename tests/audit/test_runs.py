"""Whole runs under attack: canaries in any method, membership inference on any model.

Seeds are fixed. With another seed an honest run fails such a test with probability at most
1 - confidence, a twentieth here; in truth far less, as the attacks do not reach the bound.
"""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from audit.bugs import BUGS, plant_bug
from laws.cases import MODELS, table
from tacit.audit import AuditResult, audit_membership, audit_method
from tacit.audit.bounds import AuditedData
from tacit.audit.membership import (
    FunctionTrainer,
    LiRA,
    PlanTrainer,
    canary_scores,
    lira_scores,
    shadow_coins,
    weighted,
)
from tacit.audit.runs import dirac_model, dirac_records, membership_figures
from tacit.data import as_records
from tacit.errors import InvalidArgumentError
from tacit.inference import HMC, SGD, SGLD, Plan, calibrate, fit
from tacit.models import MLP, Categorical, FixedGaussian, GaussianPrior, bayesian
from tacit.models.base import Moments
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch
from tacit.samplers import Points

NUM_CANARIES = 200
BUDGET = Budget(epsilon=1.0, delta=1e-5)
FULL = FullBatch(num_records=NUM_CANARIES)


def engine(sampling=FULL):
    return GaussianSum(sampling=sampling, clip_norm=1.0, noise_multiplier=1.0)


POISSON = PoissonBatch(num_records=NUM_CANARIES, batch_size=50, max_batch_size=120)
METHODS = {
    "SGD": SGD(release=engine(POISSON), optimizer=optax.sgd(0.1)),
    "SGLD": SGLD(release=engine(), step_size=1e-3),
    "HMC": HMC(gradient=engine(), ratio=engine(), step_size=0.01, num_leapfrog=2),
}


def audit(method):
    plan = calibrate(Plan(method=method, num_steps=10), BUDGET)
    return audit_method(plan, budget=BUDGET, num_canaries=NUM_CANARIES, seed=1)


@pytest.mark.parametrize("method", METHODS)
def test_no_violation_is_found_in_an_honest_run_of_any_method(method):
    found = audit(METHODS[method])
    assert found.verdict == "no violation found"
    assert found.claimed_epsilon <= 1.0
    assert found.data.public


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_a_violation_of_a_whole_run(bug, monkeypatch):
    plant_bug(monkeypatch, bug)
    found = audit(METHODS["SGLD"])
    assert found.verdict.startswith("VIOLATION: epsilon is at least ")
    assert found.lower_bound > 1.5


def test_each_canary_has_a_coordinate_of_its_own():
    model = dirac_model(3, loudness=5.0)
    records = dirac_records(np.array([True, False, True]), num_records=4)
    np.testing.assert_array_equal(records.weight, [1, 0, 1, 0])
    likelihoods = [
        model.log_likelihood(jnp.array([1.0, 2.0, 3.0]), _row(records, row), None)
        for row in range(4)
    ]
    np.testing.assert_allclose(likelihoods, [5.0, 10.0, 15.0, 0.0])


def _row(records, row):
    return type(records)(records.x[row], records.y[row], records.weight[row])


def test_a_promise_of_nothing_cannot_be_audited():
    plan = Plan(method=METHODS["SGLD"], num_steps=2)
    with pytest.raises(InvalidArgumentError, match="finite to be audited"):
        audit_method(plan, budget=Budget.non_private(), num_canaries=10)
    with pytest.raises(InvalidArgumentError, match="at most the plan's 200 records"):
        audit_method(plan, budget=BUDGET, num_canaries=201)


# Membership inference.

NUM_FEATURES = 400
MODEL = bayesian(
    MLP(num_inputs=NUM_FEATURES, num_outputs=2),
    prior=GaussianPrior(std=1.0),
    likelihood=Categorical(num_classes=2),
)


def noise_to_memorise():
    """More features than records, and labels that mean nothing: who is not seen is not known."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(NUM_CANARIES, NUM_FEATURES)).astype(np.float32)
    return as_records(x, generator.integers(0, 2, NUM_CANARIES))


def trainer():
    method = SGD(release=engine(), optimizer=optax.sgd(5.0))
    plan = calibrate(Plan(method=method, num_steps=30), BUDGET)
    return PlanTrainer(plan=plan, model=MODEL, budget=BUDGET)


def attacked(attack=None, chosen=None):
    return audit_membership(
        chosen or trainer(), noise_to_memorise(), num_canaries=NUM_CANARIES, attack=attack, seed=1
    )


def test_no_violation_is_found_in_an_honest_run_by_shadow_models():
    found = attacked(LiRA(num_shadows=8))
    assert found.verdict == "no violation found"
    assert not found.data.public
    assert "NOT covered by any guarantee" in str(found)


@pytest.mark.parametrize("attack", [None, LiRA(num_shadows=8)])
def test_every_attack_finds_that_the_noise_was_forgotten(attack, monkeypatch):
    plant_bug(monkeypatch, "no noise")
    found = attacked(attack)
    assert found.violation is not None
    assert found.details["membership"]["auc"] > 0.8


def test_any_function_that_returns_a_posterior_can_be_audited():
    whole = trainer()

    def train(records, seed):
        return fit(whole.plan, MODEL, records, budget=BUDGET, seed=seed).posterior

    found = attacked(None, FunctionTrainer(train))
    assert found.verdict == "no violation found"
    assert found.claimed_epsilon <= 1.0


def test_shadow_models_of_a_function_are_its_own():
    seen = []

    def train(records, seed):
        seen.append((seed, float(records.weight.sum())))
        # Knows the present records by heart, up to a little.
        known = jnp.where(records.weight > 0, 5.0, 0.0) + 0.1 * np.random.default_rng(seed).normal()
        kept = {"network": known[None, None]}
        return Posterior(
            model=by_heart, sampler=Points(), kept=kept, statement={"epsilon": 1.0, "delta": 1e-5}
        )

    by_heart = bayesian(
        MLP(num_inputs=1, num_outputs=1),
        prior=GaussianPrior(std=1.0),
        likelihood=FixedGaussian(std=1.0),
    )._replace(
        log_likelihood=lambda params, record, key: params["network"][record.y.astype(int)],
        predict=lambda params, x, key: Moments(x[0], x[0]),
    )
    table = as_records(np.zeros((100, 1), np.float32), np.arange(100.0))
    found = audit_membership(
        FunctionTrainer(train), table, num_canaries=100, attack=LiRA(num_shadows=4), seed=3
    )
    assert len(seen) == 5
    assert len({seed for seed, _ in seen}) == 5
    assert found.details["membership"]["auc"] == 1.0
    assert found.violation is not None


def test_a_posterior_without_a_statement_cannot_be_audited():
    def train(records, seed):
        kept = jax.tree.map(lambda leaf: leaf[None, None], MODEL.init(jax.random.key(0)))
        return Posterior(model=MODEL, sampler=Points(), kept=kept)

    with pytest.raises(InvalidArgumentError, match="with a privacy statement"):
        attacked(None, FunctionTrainer(train))


def test_each_canary_is_in_half_of_the_shadow_models():
    tossed = shadow_coins(10, 300, seed=0)
    assert np.all(tossed.sum(axis=0) == 5)
    # The rows are not halves of the canaries: a canary says nothing about another.
    assert abs(np.corrcoef(tossed[:, 0], tossed[:, 1])[0, 1]) < 1
    with pytest.raises(InvalidArgumentError, match="even number of at least 4"):
        shadow_coins(5, 3, seed=0)


def test_lira_beats_the_plain_score_where_records_differ_in_difficulty():
    generator = np.random.default_rng(0)
    count = 2000
    difficulty = 5 * generator.normal(size=count)
    present = generator.integers(0, 2, count).astype(bool)

    def scores(there):
        return difficulty + 1.5 * there + generator.normal(size=there.shape)

    coins = shadow_coins(16, count, seed=1)
    target, shadows = scores(present), scores(coins)
    area = {
        name: _area(values, present)
        for name, values in {
            "plain": target,
            "online": lira_scores(target, shadows, coins, is_online=True),
            "offline": lira_scores(target, shadows, coins, is_online=False),
        }.items()
    }
    # With known means the area would be Phi(1.5 / sqrt 2) = 0.856; eight models each blur it.
    assert area["plain"] < 0.62
    assert area["online"] > 0.8
    assert area["offline"] > 0.8


def _area(scores, present):
    return membership_figures(scores, present)["auc"]


def test_lira_needs_models_with_and_without_each_canary():
    with pytest.raises(InvalidArgumentError, match="Use shadow_coins"):
        lira_scores([0.0], [[1.0], [2.0]], [[True], [True]], is_online=False)
    with pytest.raises(InvalidArgumentError, match="agree in the number"):
        lira_scores([0.0, 1.0], [[1.0], [2.0]], [[True], [False]], is_online=False)


# Results.


def test_a_result_says_what_it_is_and_is_valid_json():
    data = AuditedData(name="synthetic canaries", num_records=3, public=True, statement="made up")
    found = AuditResult(
        attack="a test",
        data=data,
        claimed_epsilon=float("inf"),
        claimed_delta=1e-5,
        lower_bound=0.12399,
        confidence=0.95,
        details={"right": 3},
    )
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert document.keys() == {
        "attack",
        "data",
        "claimed",
        "lower_bound",
        "confidence",
        "verdict",
        "details",
    }
    assert document["data"].keys() == {"name", "num_records", "public", "statement"}
    assert document["claimed"] == {"epsilon": "infinity", "delta": 1e-5}
    assert "epsilon at least 0.123, with 95 % confidence" in str(found)


def test_an_absent_person_weighs_nothing_in_any_of_their_rows():
    grouped = table("grouped")
    absent = weighted(grouped, np.arange(12) != 3)
    assert np.all(np.asarray(absent.weight[3]) == 0)
    np.testing.assert_array_equal(absent.weight[:3], grouped.weight[:3])
    draws = jax.tree.map(lambda leaf: leaf[None], MODELS["grouped"].init(jax.random.key(0)))
    scores = canary_scores(MODELS["grouped"], draws, grouped)
    assert scores.shape == (12,)
    assert np.isfinite(scores).all()
