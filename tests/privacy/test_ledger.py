"""The ledger: budgets set once, every charge kept, nothing refunded."""

import contextlib
import copy
import json
import os
import pickle
import stat
import warnings

import dp_accounting as dpa
import jax
import numpy as np
import pytest

from tacit.errors import (
    BudgetExceededError,
    InvalidArgumentError,
    LedgerError,
    PrivacyWarning,
    TacitError,
)
from tacit.privacy.budget import Budget, RunRequest
from tacit.privacy.calibration import smallest_noise
from tacit.privacy.cost import ConditionedPoissonDpEvent, Cost, event_from_json
from tacit.privacy.filters import GDPFilter, RDPFilter
from tacit.privacy.ledger import LedgerFile
from tacit.privacy.ledger.state import Fork

CHEAP = dpa.GaussianDpEvent(10.0)
RULE = RDPFilter.of_budget(epsilon=1.0, delta=1e-5)


@pytest.fixture
def ledger(tmp_path):
    return LedgerFile.create(tmp_path / "people.ledger")


@pytest.fixture
def census(ledger):
    return ledger.register("census", RULE)


def reopened(ledger):
    return LedgerFile.open(ledger.path)


def test_a_budget_is_set_once_and_outlives_the_process(ledger, census):
    with pytest.raises(LedgerError, match="a budget is set once"):
        ledger.register("census", RDPFilter.of_budget(epsilon=5.0, delta=1e-5))
    assert reopened(ledger).data_set("census").rule == RULE
    with pytest.raises(LedgerError, match=r"no data set 'other'; it has 'census'"):
        ledger.data_set("other")


@pytest.mark.parametrize("name", ["", "  ", "two\nlines", 3])
def test_a_data_set_has_a_readable_name(ledger, name):
    with pytest.raises(InvalidArgumentError, match="readable"):
        ledger.register(name, RULE)


@pytest.mark.parametrize("name", ["Census", "census ", "\N{FULLWIDTH LATIN SMALL LETTER C}ensus"])
def test_two_names_that_look_alike_are_not_two_budgets(ledger, census, name):
    with pytest.raises(LedgerError, match=r"looks like .* 'census'"):
        ledger.register(name, RULE)


def test_one_name_in_two_encodings_is_not_two_budgets(ledger):
    ledger.register("caf\N{LATIN SMALL LETTER E WITH ACUTE}", RULE)
    with pytest.raises(LedgerError, match="looks like"):
        ledger.register("cafe\N{COMBINING ACUTE ACCENT}", RULE)


def test_a_name_is_not_a_novel(ledger):
    with pytest.raises(InvalidArgumentError, match="at most 200"):
        ledger.register("x" * 201, RULE)


@pytest.mark.parametrize(
    "cost",
    [
        dpa.SelfComposedDpEvent(CHEAP, -1),
        dpa.SelfComposedDpEvent(CHEAP, 10**400),
        dpa.GaussianDpEvent(-5.0),
        dpa.GaussianDpEvent(float("nan")),
        dpa.GaussianDpEvent(1e-200),
        dpa.NonPrivateDpEvent(),
        dpa.PoissonSampledDpEvent(-0.1, CHEAP),
        ConditionedPoissonDpEvent(0.1, -5, 3, dpa.GaussianDpEvent(50.0)),
        ConditionedPoissonDpEvent(0.1, 100, -3, dpa.GaussianDpEvent(50.0)),
        dpa.SampledWithoutReplacementDpEvent(0, 0, CHEAP),
        dpa.SampledWithoutReplacementDpEvent(-10, -5, CHEAP),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", [RULE, GDPFilter(epsilon=1.0, delta=1e-5)], ids=["RDP", "GDP"])
def test_a_cost_that_is_nonsense_or_without_end_is_refused_and_refunds_nothing(ledger, rule, cost):
    data_set = ledger.register("people", rule)
    data_set.charge(Cost(CHEAP, is_secure=True))
    before = data_set.spent
    with pytest.raises(TacitError):
        data_set.charge(Cost(cost, is_secure=True))
    assert reopened(ledger).data_set("people").spent == before


def test_a_cost_that_does_not_say_whether_its_noise_is_secret_is_not_taken(census):
    with pytest.raises(TypeError, match="is_secure"):
        Cost(CHEAP)
    with pytest.raises(InvalidArgumentError, match="whether its noise is secret"):
        census.charge(CHEAP)
    assert census.spending.num_charges == 0


def test_a_ledger_stays_the_same_file_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here = LedgerFile.create("people.ledger").register("census", RULE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    other = LedgerFile.create("people.ledger").register("census", RULE)
    pickle.loads(pickle.dumps(here)).charge(Cost(CHEAP, is_secure=True))
    assert here.spent > 0
    assert other.spent == 0


def test_a_ledger_is_never_made_over_another_file(ledger, census):
    census.charge(Cost(CHEAP, is_secure=True))
    with pytest.raises(LedgerError, match="exists already"):
        LedgerFile.create(ledger.path)
    assert census.spending.num_charges == 1
    assert list(ledger.path.parent.iterdir()) == [ledger.path]  # no half ledger is left


def test_a_file_system_without_links_has_ledgers_too(tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    LedgerFile.create(tmp_path / "people.ledger").register("census", RULE)
    with pytest.raises(LedgerError, match="exists already"):
        LedgerFile.create(tmp_path / "people.ledger")
    assert LedgerFile.open(tmp_path / "people.ledger").data_set("census").spent == 0.0
    assert len(list(tmp_path.iterdir())) == 1


def test_a_ledger_is_readable_by_its_owner_only(ledger):
    assert stat.S_IMODE(ledger.path.stat().st_mode) == 0o600


def test_every_charge_is_kept_with_all_that_is_needed_to_account_for_it_again(ledger, census):
    run = census.begin(RunRequest(cost=Cost(CHEAP, is_secure=True), purpose="fit SGD", num_steps=3))
    run.charge(CHEAP, num_steps=3)
    record = reopened(ledger).state.data_sets["census"]
    (kept,) = record.runs[run.run_id].charges
    assert event_from_json(kept.cost) == CHEAP
    assert (kept.purpose, kept.num_steps) == ("fit SGD", 3)
    assert record.spending.num_charges == 1
    assert np.array_equal(record.spending.total, RULE.weigh(CHEAP))


def test_charges_are_refused_when_the_budget_is_used_up_and_stay_when_it_is(ledger, census):
    made = 0
    with contextlib.suppress(BudgetExceededError):
        while made < 20:
            census.charge(Cost(CHEAP, is_secure=True))
            made += 1
    assert 2 < made < 10
    again = reopened(ledger).data_set("census")
    assert again.spending.num_charges == made
    assert 0.8 < again.spent <= 1.0
    with pytest.raises(BudgetExceededError, match=r"people.ledger of 'census' refuses.* charged"):
        again.charge(Cost(CHEAP, is_secure=True))


def test_a_run_is_asked_for_the_whole_before_it_reads_a_record(ledger, census):
    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError("a record was read")

    whole = dpa.SelfComposedDpEvent(CHEAP, 1000)
    with pytest.raises(BudgetExceededError):
        census.begin(RunRequest(cost=Cost(whole, is_secure=True), records=Untouchable()))
    assert not ledger.state.data_sets["census"].runs


def test_other_handles_and_other_data_sets_are_seen_and_kept_apart(ledger, census):
    other = reopened(ledger).data_set("census")
    other.charge(Cost(CHEAP, is_secure=True))
    assert census.spending.num_charges == 1
    second = ledger.register("clinic", GDPFilter(epsilon=1.0, delta=1e-5))
    assert second.spent == 0.0
    second.charge(Cost(CHEAP, is_secure=True))
    assert (census.spending.num_charges, other.spending.num_charges) == (1, 1)


def test_calibration_to_what_is_left_finds_a_cost_that_the_ledger_pays_and_no_more(census):
    def plan(noise):
        step = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(noise))
        return dpa.SelfComposedDpEvent(step, 500)

    fresh = smallest_noise(plan, census.budget())
    census.charge(Cost(dpa.SelfComposedDpEvent(CHEAP, 2), is_secure=True))
    noise = smallest_noise(plan, census.budget())
    assert noise > 1.05 * fresh
    # Its privacy loss distribution alone would have allowed far less noise.
    assert noise > 1.05 * smallest_noise(plan, Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceededError):
        census.charge(Cost(plan(0.97 * noise), is_secure=True))
    census.charge(Cost(plan(noise), is_secure=True))
    with pytest.raises(BudgetExceededError):
        census.charge(Cost(plan(noise), is_secure=True))


def test_records_that_look_different_under_one_name_only_warn(ledger, census):
    records = {"x": np.arange(6.0).reshape(3, 2), "y": jax.numpy.arange(3)}
    request = RunRequest(cost=Cost(CHEAP, is_secure=True), records=records)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        census.begin(request)
        census.begin(request)
    changed = {**records, "x": records["x"] + 1e-9}
    with pytest.warns(PrivacyWarning, match="do not look like those of earlier runs on 'census'"):
        census.begin(RunRequest(cost=Cost(CHEAP, is_secure=True), records=changed)).charge(CHEAP)
    clinic = ledger.register("clinic", RULE)
    with pytest.warns(PrivacyWarning, match="look the same as those of 'census'"):
        clinic.begin(request)


def test_a_fingerprint_tells_shapes_apart_and_differs_between_ledgers(tmp_path):
    prints = set()
    for name in ("a", "b"):
        data = LedgerFile.create(tmp_path / name).register("census", RULE)
        for shape in ((2, 3), (3, 2)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                data.begin(RunRequest(cost=Cost(CHEAP, is_secure=True), records=np.zeros(shape)))
        prints |= LedgerFile.open(tmp_path / name).state.data_sets["census"].fingerprints
    assert len(prints) == 4


def test_two_runs_from_one_checkpoint_are_a_fork_and_both_are_charged(ledger, census):
    def run(num_steps, parent=None, step=None):
        cost = dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(50.0), num_steps)
        request = RunRequest(
            cost=Cost(cost, is_secure=True), num_steps=num_steps, parent=parent, parent_step=step
        )
        made = census.begin(request)
        made.charge(cost, num_steps=num_steps)
        return made.run_id

    root_request = RunRequest(cost=Cost(CHEAP, is_secure=True), num_steps=10)
    root = census.begin(root_request)
    root.charge(dpa.GaussianDpEvent(50.0), num_steps=6)  # and then it died
    first = run(4, root.run_id, 6)
    assert ledger.state.data_sets["census"].forks == []
    second = run(4, root.run_id, 6)
    whole = run(10)
    branch = run(5, whole, 5)
    record = reopened(ledger).state.data_sets["census"]
    assert record.forks == [
        Fork(root.run_id, 6, (first, second)),
        Fork(whole, 5, (whole, branch)),
    ]
    assert record.spending.num_charges == 5


def test_a_checkpoint_that_was_not_paid_for_here_warns(census):
    with pytest.warns(PrivacyWarning, match="was not charged here"):
        census.begin(
            RunRequest(cost=Cost(CHEAP, is_secure=True), parent="elsewhere", parent_step=5)
        )


def test_the_head_is_another_after_every_entry_and_old_heads_stay_known(ledger, census):
    before = ledger.head
    census.charge(Cost(CHEAP, is_secure=True))
    assert ledger.head != before
    assert ledger.verify(known_head=before).head.digest == ledger.head


def test_no_record_and_no_sum_of_records_is_in_the_file(ledger, census):
    secret = np.frombuffer(b"Zoe lives alone.", dtype=np.uint8)
    census.begin(RunRequest(cost=Cost(CHEAP, is_secure=True), records=secret)).charge(CHEAP)
    content = ledger.path.read_bytes()
    assert b"Zoe" not in content
    assert json.dumps(secret.tolist()).encode() not in content


def test_copies_of_a_handle_charge_the_same_file(ledger, census):
    copy.deepcopy(census).charge(Cost(CHEAP, is_secure=True))
    pickle.loads(pickle.dumps(census)).charge(Cost(CHEAP, is_secure=True))
    assert census.spending.num_charges == 2
