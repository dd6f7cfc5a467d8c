"""``tacit fit`` by several real processes: the run that one process makes, and no step unpaid."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from cli.tables import tacit, write_patients
from tacit.privacy.ledger import LedgerFile

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="finds processes as Linux does")

SECONDS = 120  # about twenty on a quiet core
MODEL = ("--hidden", "none", "--epsilon", 2, "--schema", "schema.toml")
LEDGER = ("--ledger", "people.ledger", "--data-set", "patients")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("processes")
    write_patients(found)
    return found


@pytest.fixture
def table(folder, monkeypatch):
    monkeypatch.chdir(folder)
    for name in ("people.ledger", "other.ledger"):
        if not Path(name).exists():
            tacit("ledger", "create", name, "--data-set", "patients", "--epsilon", 20,
                  "--delta", 1e-3)  # fmt: skip
    return folder


def launch(*options):
    return subprocess.Popen(
        [sys.executable, "-m", "tacit", "launch", "-n", "2", "--", "fit", "data.csv",
         *map(str, (*MODEL, *options))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip


def runs_in(ledger):
    return list(LedgerFile.open(ledger).state.data_sets["patients"].runs.values())


def process_id_of(number, output):
    """Finds a process of a launch by its command line."""
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words = (place / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if output in words and [b"--process-id", b"%d" % number] == words[-5:-3]:
            return int(place.name)
    raise AssertionError(f"process {number} is not there")


def test_two_processes_make_the_run_that_one_makes_and_pay_once(table):
    options = ("--steps", 8, "--seed", 0, "--data-set", "patients", "--json")
    process = launch(*options, "--ledger", "people.ledger", "--output", "two")
    told, errors = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, errors
    assert json.loads(told)["output"] == "two"  # nothing else is on standard output

    tacit("fit", "data.csv", *MODEL, *options, "--ledger", "other.ledger", "--output", "one")
    of_two, of_one = (load_file(table / run / "posterior.safetensors") for run in ("two", "one"))
    assert of_two.keys() == of_one.keys()
    for name, values in of_one.items():
        if name.startswith("kept") and values.shape[1] >= 1000:
            # Draws that are corrected for noise are others where a last place is another, since
            # eigenvectors have no sign; their distribution is the same.
            std = values.std(axis=1)
            error = 4 * std * np.sqrt(2 / values.shape[1])
            assert (np.abs(of_two[name].mean(axis=1) - values.mean(axis=1)) < error).all()
            np.testing.assert_allclose(of_two[name].std(axis=1), std, rtol=0.2)
            continue
        if name.startswith("parts"):
            # What widths are made of comes from a sample of curvatures, of whose eigenvectors the
            # same is true.
            np.testing.assert_allclose(of_two[name], values, rtol=0.05)
            continue
        # Sums in another order: a few units of the last place, over eight steps.
        np.testing.assert_allclose(of_two[name], values, rtol=1e-4, atol=1e-5)
    (run,) = runs_in("people.ledger")
    assert run.steps_charged == run.num_steps == 8
    spent = [
        LedgerFile.open(n).data_set("patients").spent for n in ("people.ledger", "other.ledger")
    ]
    assert spent[0] == spent[1]


def wait_for_checkpoint(process, run):
    path, deadline = run / "checkpoint.json", time.monotonic() + SECONDS
    while not path.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return path


def test_ctrl_c_stops_all_processes_after_what_is_paid_for(table):
    process = launch("--steps", 4000, "--output", "stopped", "--json")
    try:
        checkpoint = wait_for_checkpoint(process, table / "stopped")
        process.send_signal(signal.SIGINT)
        told, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 130, errors
    found = json.loads(told)
    assert found["interrupted"]
    assert found["step"] == json.loads(checkpoint.read_text())["step"] < 4000
    assert "Traceback" not in errors


def test_a_killed_worker_ends_the_run_with_an_exact_ledger_and_one_process_goes_on(table):
    before = runs_in("people.ledger")
    process = launch("--steps", 4000, *LEDGER, "--output", "killed")
    try:
        checkpoint = wait_for_checkpoint(process, table / "killed")
        os.kill(process_id_of(1, b"killed"), signal.SIGKILL)
        told, errors = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGKILL
    assert "a process of this run was lost" in errors
    assert "kept in 'killed'; go on with --resume" in errors
    assert "Traceback" not in told + errors
    assert "Check failure" not in told + errors

    kept = json.loads(checkpoint.read_text())["step"]
    (run,) = runs_in("people.ledger")[len(before) :]
    assert run.steps_charged in (kept, kept + 200)  # paid for before it is made
    assert 0 < kept < 4000

    tacit("fit", "--resume", "--output", "killed")
    rest = runs_in("people.ledger")[-1]
    assert (rest.parent, rest.parent_step) == (run.run_id, kept)
    assert rest.steps_charged == 4000 - kept
    statement = json.loads((table / "killed/statement.json").read_text())
    assert statement["num_steps"] == 4000
    assert statement["is_secure"]
