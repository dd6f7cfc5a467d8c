"""DPSVI asks a durable ledger first, for runs and for single steps."""

import pytest

from numpyro_cases import KEY, private, table
from tacit.errors import BudgetExceededError
from tacit.privacy.filters import RDPFilter
from tacit.privacy.ledger import LedgerFile

pytestmark = pytest.mark.filterwarnings("ignore:the loss is NaN")

X, Y = table()


def test_runs_and_single_steps_are_asked_for_and_paid_and_know_what_they_go_on_from(tmp_path):
    ledger = LedgerFile.create(tmp_path / "people.ledger")
    census = ledger.register("census", RDPFilter.of_budget(epsilon=2.0, delta=1e-5))
    svi = private(ledger=census, noise_multiplier=20.0)
    first = svi.run(KEY, 2, X, Y, progress_bar=False)
    second = svi.run(KEY, 2, X, Y, progress_bar=False, init_state=first.state)
    svi.update(second.state, X, Y)
    record = ledger.state.data_sets["census"]
    whole, rest, single = record.runs.values()
    assert (rest.parent, rest.parent_step) == (whole.run_id, 2)
    assert [len(run.charges) for run in (whole, rest, single)] == [2, 2, 1]
    assert not whole.is_secure
    assert record.forks == []


def test_single_steps_are_refused_when_all_that_the_budget_is_for_cannot_be_paid(tmp_path):
    ledger = LedgerFile.create(tmp_path / "people.ledger")
    census = ledger.register("census", RDPFilter.of_budget(epsilon=0.5, delta=1e-5))
    svi = private(ledger=census, noise_multiplier=None, epsilon=1.0, delta=1e-5, num_steps=10)
    state = svi.init(KEY, X, Y)
    with pytest.raises(BudgetExceededError, match="'census' refuses"):
        svi.update(state, X, Y)
    assert not ledger.state.data_sets["census"].runs
