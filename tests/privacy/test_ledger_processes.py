"""Several processes cannot overspend; one that is killed at any moment is never under-counted."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from dp_accounting import GaussianDpEvent, SelfComposedDpEvent

from tacit.privacy.filters import RDPFilter, Spending

SCRIPT = Path(__file__).with_name("ledger_processes.py")


def run(what, folder):
    done = subprocess.run(
        [sys.executable, str(SCRIPT), what, str(folder)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
class TestProcesses:
    def test_four_processes_together_spend_one_budget_and_no_more(self, tmp_path):
        told = run("race", tmp_path)
        assert told["codes"] == [0, 0, 0, 0]
        assert told["released"] == told["charges"] == sum(told["by_run"])
        assert sum(num_charges > 0 for num_charges in told["by_run"]) >= 2  # they really raced
        assert told["epsilon"] <= 0.4
        # As many as one process alone could have paid for.
        rule = RDPFilter.of_budget(epsilon=0.4, delta=1e-5)
        more = SelfComposedDpEvent(GaussianDpEvent(100.0), told["charges"] + 1)
        assert not Spending.none(rule).plus(more).is_within_budget

    def test_a_process_killed_at_any_moment_has_paid_for_all_that_it_released(self, tmp_path):
        seen = run("kills", tmp_path)["seen"]
        assert len(seen) == 25
        for number, (released, charged) in enumerate(seen, start=1):
            # At most one charge of each killed process has no release.
            assert released <= charged <= released + number
        assert seen[-1][0] >= len(seen)  # each of them had begun

    def test_a_killed_fit_has_paid_for_its_checkpoints_and_goes_on_as_a_new_run(self, tmp_path):
        told = run("fits", tmp_path)
        for number, (released, charged) in enumerate(told["seen"], start=1):
            assert released <= charged <= released + number
        first, second, _ = told["runs"]
        assert told["parents"] == [None, first, second]
        for (before, charged), (after, _) in zip(told["steps"], told["steps"][1:], strict=False):
            assert before < after <= before + charged
