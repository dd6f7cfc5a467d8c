"""``tacit launch``: processes that start, print, and end as one; whatever they execute."""

import os
import signal
import sys
import threading
import time

import pytest

from cli.tables import refused
from tacit.cli.launch import Launched, cores_for, free_address

PROCESS = """
import os, signal, sys, time
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
number = int(options["--process-id"])
folder = os.environ["FOLDER"]
open(f"{folder}/{number}", "w").write(" ".join(map(str, sorted(os.sched_getaffinity(0)))))
"""


@pytest.fixture
def launched(tmp_path, monkeypatch):
    monkeypatch.setenv("FOLDER", str(tmp_path))
    made = []

    def start(program, *, num_processes=2, cores=None):
        found = Launched()
        made.append(found)
        found.start(
            [sys.executable, "-c", PROCESS + program],
            num_processes=num_processes,
            coordinator="127.0.0.1:7000",
            cores=cores,
        )
        return found

    yield start
    for found in made:
        found.end()


def wait_for(path):
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.01)


def test_all_that_end_well_end_well(launched):
    assert launched("assert options['--num-processes'] == '3'", num_processes=3).wait() == 0


@pytest.mark.parametrize(
    ("program", "code"),
    [
        ("sys.exit(2 if number else 0)", 2),  # a worker failed
        ("time.sleep(0.2 * (1 - number)); sys.exit(2 if number else 130)", 130),  # it was told to
        ("os.kill(os.getpid(), signal.SIGKILL) if number else sys.exit(2)", 137),
    ],
)
def test_the_exit_code_is_that_of_the_process_that_failed(launched, program, code):
    assert launched(program).wait() == code


def test_when_one_fails_the_others_do_not_run_on(launched, monkeypatch):
    monkeypatch.setattr("tacit.cli.launch._GRACE", 0.2)
    begin = time.monotonic()
    found = launched("sys.exit(2) if number else time.sleep(60)")
    assert found.wait() == 2
    assert time.monotonic() - begin < 30
    assert found.processes[0].returncode == -signal.SIGTERM


def test_only_lines_of_workers_bear_a_number(launched, capfd):
    launched("print('warn', number, file=sys.stderr)").wait()
    assert sorted(capfd.readouterr().err.splitlines()) == ["[1] warn 1", "warn 0"]


STOPS = """
def stop(*_):
    open(f"{folder}/stopped-{number}", "w")
    sys.exit(130)
signal.signal(signal.SIGINT, stop)
open(f"{folder}/ready-{number}", "w")
while not os.path.exists(f"{folder}/stopped-0"):
    time.sleep(0.01)
"""


def test_ctrl_c_goes_to_the_coordinator_once(launched, tmp_path):
    found = launched(STOPS)

    def press():
        wait_for(tmp_path / "ready-0")
        wait_for(tmp_path / "ready-1")
        os.kill(os.getpid(), signal.SIGINT)

    presser = threading.Thread(target=press)
    presser.start()
    assert found.wait() == 130
    presser.join()
    assert not (tmp_path / "stopped-1").exists()


needs_cores = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs Linux and two cores",
)


@needs_cores
def test_each_process_keeps_to_its_own_cores(launched, tmp_path):
    cores = cores_for(2, 1)
    assert launched("", cores=cores).wait() == 0
    found = [{int(core) for core in (tmp_path / name).read_text().split()} for name in "01"]
    assert found == cores
    assert not found[0] & found[1]


def test_an_address_is_free_and_of_this_machine():
    host, _, port = free_address().partition(":")
    assert host == "127.0.0.1"
    assert 0 < int(port) < 2**16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", 0, "--", "fit"], "--num-processes must be a whole number of at least 1"),
        (["-n", 2, "--", "evaluate", "run"], "only fit runs in several processes"),
        (["-n", 2, "--", "fit", "--process-id", 1], "leave out --process-id"),
        (["-n", 2, "--", "fit", "--coordinator=a:1"], "leave out --coordinator=a:1"),
        (["-n", 2, "--cores-per-process", 0, "--", "fit"], "--cores-per-process must be a whole"),
        (["-n", 2, "--cores-per-process", 10**6, "--", "fit"], "need 2000000 cores"),
    ],
)
def test_a_wrong_launch_is_refused_before_anything_starts(arguments, message):
    assert message in refused("launch", *arguments)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--num-processes", 2], "missing: --process-id, --coordinator"),
        (["--process-id", 0, "--coordinator", "a:1"], "missing: --num-processes"),
        (["--num-processes", 2, "--process-id", 2, "--coordinator", "a:1"], "must be below"),
        (["--num-processes", 2, "--process-id", 0, "--coordinator", "a"], "must be host:port"),
    ],
)
def test_a_wrong_place_among_processes_is_refused(options, message):
    assert message in refused("fit", "data.csv", "--epsilon", 1, "-o", "run", *options)


def test_variables_say_the_same_as_options(monkeypatch):
    monkeypatch.setenv("TACIT_NUM_PROCESSES", "2")
    monkeypatch.setenv("TACIT_PROCESS_ID", "7")
    monkeypatch.setenv("TACIT_COORDINATOR", "host:7000")
    told = refused("fit", "data.csv", "--epsilon", 1, "-o", "run")
    assert "--process-id must be below num_processes=2, counted from 0; got 7" in told
