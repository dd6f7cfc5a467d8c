"""A fit asks its ledger first, pays before each chunk, and resumes as a run of its own."""

import math

import jax
import numpy as np
import optax
import pytest

from tacit.data import as_records
from tacit.errors import BudgetExceededError, PrivacyWarning
from tacit.inference import SGD, Plan, calibrate, fit, load_checkpoint, save_checkpoint
from tacit.models import MLP, Categorical, GaussianPrior, bayesian
from tacit.privacy.budget import Budget
from tacit.privacy.cost import composed, count_releases, event_from_json
from tacit.privacy.filters import RDPFilter
from tacit.privacy.ledger import LedgerFile
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import PoissonBatch

BUDGET = Budget(epsilon=8.0, delta=1e-3)
MODEL = bayesian(
    MLP(num_inputs=2, hidden=(3,), num_outputs=2),
    prior=GaussianPrior(std=1.0),
    likelihood=Categorical(num_classes=2),
)
RECORDS = as_records(np.linspace(-1, 1, 200).reshape(100, 2), np.arange(100) % 2)
METHOD = SGD(
    release=GaussianSum(
        sampling=PoissonBatch(num_records=100, batch_size=10), clip_norm=1.0, noise_multiplier=4.0
    ),
    optimizer=optax.sgd(0.1),
)
PLAN = Plan(method=METHOD, num_steps=6)


@pytest.fixture
def ledger(tmp_path):
    return LedgerFile.create(tmp_path / "people.ledger")


@pytest.fixture
def census(ledger):
    return ledger.register("census", RDPFilter.of_budget(epsilon=2.0, delta=1e-3))


def test_a_plan_that_does_not_fit_is_refused_before_a_record_is_read(ledger, census):
    shapes = jax.eval_shape(lambda: RECORDS)
    long = Plan(method=METHOD, num_steps=5000)
    with pytest.raises(BudgetExceededError, match="'census' refuses"):
        fit(long, MODEL, shapes, budget=Budget(epsilon=math.inf, delta=1e-3), ledger=census)
    assert not ledger.state.data_sets["census"].runs
    fitting = calibrate(long, census.budget())
    census.require(ledger.state, fitting.cost)


def test_a_run_its_resumes_and_its_forks_are_all_paid_for(ledger, census, tmp_path):
    charged = []

    def on_chunk(checkpoint):
        record = ledger.state.data_sets["census"]
        charged.append((checkpoint.step, record.runs[checkpoint.run_id].steps_charged))
        save_checkpoint(checkpoint, tmp_path / str(checkpoint.step))

    whole = fit(
        PLAN, MODEL, RECORDS, budget=BUDGET, ledger=census, chunk_steps=2, on_chunk=on_chunk
    )
    assert charged == [(2, 2), (4, 4), (6, 6)]
    record = ledger.state.data_sets["census"]
    (run,) = record.runs.values()
    paid = composed(*(event_from_json(charge.cost) for charge in run.charges))
    assert count_releases(paid) == count_releases(whole.plan.cost)
    assert run.is_secure
    assert record.forks == []

    saved = load_checkpoint(tmp_path / "4", PLAN, MODEL, RECORDS)
    resumed = fit(PLAN, MODEL, RECORDS, budget=BUDGET, ledger=census, resume=saved)
    (fork,) = LedgerFile.open(ledger.path).state.data_sets["census"].forks
    assert fork == (run.run_id, 4, (run.run_id, resumed.checkpoint.run_id))
    assert ledger.state.data_sets["census"].runs[resumed.checkpoint.run_id].steps_charged == 2


def test_steps_made_without_a_ledger_are_not_forgotten_in_silence(census):
    saved = []
    fit(PLAN, MODEL, RECORDS, budget=BUDGET, chunk_steps=3, on_chunk=saved.append, seed=0)
    with pytest.warns(PrivacyWarning, match="3 steps before this checkpoint were made without"):
        fit(PLAN, MODEL, RECORDS, budget=BUDGET, ledger=census, resume=saved[0])
