import numpy as np
import pytest

from estimators.tables import patients
from tacit import Budget, LedgerFile
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.estimators import PrivateBayesClassifier, PrivateBayesRegressor, tune
from tacit.privacy.accounting import RDP
from tacit.privacy.budget import InMemoryLedger
from tacit.privacy.cost import composed
from tacit.privacy.filters import RDPFilter

TRAIN, TEST = patients(300), patients(seed=1)
NUMBERS = ["dose", "age"]
PUBLIC = {"bounds": ([0, 18], [10, 90]), "clip_norm": 1.0, "delta": 1e-3, "random_state": 0}
CANDIDATES = [{"learning_rate": 1e-7}, {"learning_rate": 1.0}, {"learning_rate": 1e-6}]


def test_the_best_candidate_is_kept_and_everything_is_counted_within_the_budget():
    ledger = InMemoryLedger()
    model = PrivateBayesClassifier(
        epsilon=8.0, **PUBLIC, classes=["no", "yes"], num_steps=20, ledger=ledger
    )
    found = tune(model, CANDIDATES, TRAIN[NUMBERS], TRAIN.ill)
    assert found.best == 1
    assert found.estimator.learning_rate == 1.0
    assert found.estimator.score(TEST[NUMBERS], TEST.ill) > 0.75
    statement = found.estimator.privacy_
    assert statement.releases == 3 * 20 + 1
    assert 7.8 < statement.epsilon <= 8.0
    assert statement.tuning == "counted"
    assert found.estimator.table_.statement["tuning"] == "counted"
    # What the ledger was charged in pieces is what the statement says in one.
    charged = Budget(epsilon=8.0, delta=1e-3).spent(composed(*ledger.costs))
    assert charged == pytest.approx(statement.epsilon, rel=2e-3)
    # 300 records, three scores, a tenth of the budget.
    assert found.noise_std == pytest.approx(np.sqrt(3) * 1.9 / 300, rel=0.3)


def test_people_with_several_rows_and_numbers_can_be_tuned_too():
    model = PrivateBayesRegressor(epsilon=20.0, **PUBLIC, max_rows=2, num_steps=5)
    groups = np.arange(len(TRAIN)) // 2
    found = tune(model, CANDIDATES[:2], TRAIN[NUMBERS], TRAIN.weeks, groups=groups)
    assert found.estimator.privacy_.num_units == 150
    assert found.estimator.privacy_.releases == 2 + 2 * 5 + 1
    assert found.estimator.privacy_.epsilon <= 20.0
    assert np.all((found.scores > -0.5) & (found.scores < 1.5))


def test_a_ledger_that_cannot_pay_for_all_refuses_before_anything_is_spent(tmp_path):
    ledger = LedgerFile.create(tmp_path / "l.db").register(
        "patients", RDPFilter.of_budget(epsilon=1.0, delta=1e-3)
    )
    model = PrivateBayesClassifier(
        epsilon=2.0, **PUBLIC, classes=["no", "yes"], num_steps=5, ledger=ledger
    )
    with pytest.raises(BudgetExceededError):
        tune(model, CANDIDATES, TRAIN[NUMBERS], TRAIN.ill)
    assert ledger.spent == 0.0


def test_private_bounds_are_asked_for_with_all_the_rest():
    ledger = InMemoryLedger(budget=Budget(epsilon=1.0, delta=1e-3, accountant=RDP()))
    settings = {name: value for name, value in PUBLIC.items() if name != "bounds"}
    model = PrivateBayesClassifier(
        epsilon=2.0, **settings, classes=["no", "yes"], num_steps=5, ledger=ledger
    )
    with pytest.raises(BudgetExceededError):
        tune(model, CANDIDATES, TRAIN[NUMBERS], TRAIN.ill)
    assert not ledger.costs


def test_a_ledger_with_just_the_budget_pays_for_tuning(tmp_path):
    ledger = LedgerFile.create(tmp_path / "l.db").register(
        "patients", RDPFilter.of_budget(epsilon=2.0, delta=1e-3)
    )
    model = PrivateBayesClassifier(
        epsilon=2.0, **PUBLIC, classes=["no", "yes"], num_steps=5, ledger=ledger
    )
    found = tune(model, CANDIDATES[:2], TRAIN[NUMBERS], TRAIN.ill)
    assert found.estimator.privacy_.epsilon <= 2.0
    assert 1.8 < ledger.spent <= 2.0


@pytest.mark.parametrize(
    ("candidates", "message"),
    [
        ([{"hidden": ()}], "at least two"),
        ([{"epsilon": 1.0}, {}], "candidates may change method, .*; got epsilon"),
    ],
)
def test_wrong_candidates_are_refused(candidates, message):
    with pytest.raises(InvalidArgumentError, match=message):
        tune(PrivateBayesClassifier(**PUBLIC), candidates, TRAIN[NUMBERS], TRAIN.ill)
