"""Budgets refuse before anything is spent."""

import contextlib
import copy
import math
import pickle
import threading
import warnings

import dp_accounting as dpa
import pytest

from tacit.errors import BudgetExceededError, InvalidArgumentError, PrivacyWarning
from tacit.privacy.accounting import GDP, PLD, RDP, Adjacency, CLTApproximation
from tacit.privacy.budget import Budget, InMemoryLedger
from tacit.privacy.filters import Spending

CHEAP, DEAR = dpa.GaussianDpEvent(5.0), dpa.GaussianDpEvent(0.5)


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, "1"])
def test_an_impossible_epsilon_is_refused(epsilon):
    with pytest.raises(InvalidArgumentError, match="epsilon"):
        Budget(epsilon=epsilon, delta=1e-5)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_an_impossible_delta_is_refused(delta):
    with pytest.raises(InvalidArgumentError, match="delta"):
        Budget(epsilon=1.0, delta=delta)


def test_what_a_budget_allows_is_what_its_accountant_bounds():
    budget = Budget(1.0, 1e-5)
    assert budget.spent(CHEAP) <= 1.0 < budget.spent(DEAR)
    assert budget.allows(CHEAP)
    assert not budget.allows(DEAR)
    budget.require(CHEAP)


def test_threads_cannot_overspend_a_ledger_together(monkeypatch):
    ledger = InMemoryLedger(budget=Budget(1.0, 1e-5, RDP()))
    both_have_asked, decide = threading.Barrier(2), Spending.require

    def decide_together(self, *arguments, **settings):
        after = decide(self, *arguments, **settings)
        with contextlib.suppress(threading.BrokenBarrierError):
            both_have_asked.wait(timeout=0.2)
        return after

    monkeypatch.setattr(Spending, "require", decide_together)

    def charge():
        with contextlib.suppress(BudgetExceededError):
            ledger.charge(dpa.GaussianDpEvent(5.0))

    threads = [threading.Thread(target=charge) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(ledger.costs) == 1


def test_a_refusal_says_the_numbers_and_the_remedy():
    budget = Budget(1.0, 1e-5, GDP(adjacency=Adjacency.REPLACE_ONE))
    pattern = r"epsilon \d+\.\d{3} at delta 1e-05 \(GDP, adjacency replace-one\).*is 1\. Use more"
    with pytest.raises(BudgetExceededError, match=pattern):
        budget.require(DEAR)


def test_a_non_private_budget_allows_everything():
    assert Budget.non_private().epsilon == math.inf
    assert Budget.non_private().allows(dpa.NonPrivateDpEvent())
    assert not Budget(1e9, 0.5).allows(dpa.NonPrivateDpEvent())


def test_a_delta_of_one_over_n_warns():
    with pytest.warns(PrivacyWarning, match="1/1000"):
        Budget(1.0, 1e-3).warn_if_delta_is_large(1000)


def test_a_small_delta_or_no_promise_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Budget(1.0, 1e-4).warn_if_delta_is_large(1000)
        Budget.non_private().warn_if_delta_is_large(1000)


@pytest.mark.parametrize("accountant", [PLD(), CLTApproximation()])
def test_a_ledger_whose_accountant_forbids_adaptive_costs_warns(accountant):
    with pytest.warns(PrivacyWarning, match="Use RDP or GDP"):
        InMemoryLedger(budget=Budget(1.0, 1e-5, accountant))


def test_a_ledger_without_a_budget_only_remembers():
    ledger = InMemoryLedger()
    ledger.charge(CHEAP)
    ledger.charge(dpa.NonPrivateDpEvent())
    assert ledger.costs == [CHEAP, dpa.NonPrivateDpEvent()]


def test_a_ledger_refuses_the_charge_that_would_exceed_the_budget_and_forgets_it():
    ledger = InMemoryLedger(budget=Budget(2.0, 1e-5, RDP()))
    for _ in range(2):
        ledger.charge(CHEAP)
    with pytest.raises(BudgetExceededError):
        ledger.charge(dpa.SelfComposedDpEvent(CHEAP, 5))
    assert ledger.costs == [CHEAP, CHEAP]
    with contextlib.suppress(BudgetExceededError):
        for _ in range(10):
            ledger.charge(CHEAP)
    made = len(ledger.costs)
    assert 2 <= made < 7
    # A filter for costs chosen one by one is a little stricter than accounting for all at once.
    assert ledger.budget.allows(dpa.SelfComposedDpEvent(CHEAP, made))
    assert not Budget(1.7, 1e-5, RDP()).allows(dpa.SelfComposedDpEvent(CHEAP, made + 1))


def test_a_copy_of_a_ledger_in_memory_is_that_ledger_and_none_leaves_the_process():
    ledger = InMemoryLedger()
    copy.deepcopy({"ledger": ledger})["ledger"].charge(CHEAP)
    copy.copy(ledger).charge(CHEAP)
    assert len(ledger.costs) == 2
    with pytest.raises(InvalidArgumentError, match=r"Use tacit.LedgerFile"):
        pickle.dumps(ledger)
