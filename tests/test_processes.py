"""Processes that start, agree, and end when one of them is lost; real ones, over loopback."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from tacit import processes
from tacit.errors import InvalidArgumentError, LostWorkerError, TacitError

PROGRAM = Path(__file__).parent / "process_program.py"
SECONDS = 60  # to start and end on a busy machine; each takes about three

GOOD = {"num_processes": 2, "process_id": 0, "coordinator": "127.0.0.1:7000"}


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def start(part, *, total):
    """Starts all processes, and returns of each its exit code, what it told, and its errors."""
    port = free_port()
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    running = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), part, str(total), str(own), str(port)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for own in range(total)
    ]
    found = []
    try:
        for process in running:
            output, errors = process.communicate(timeout=SECONDS)
            told = {}
            for line in output.splitlines():
                if line.startswith("{"):  # the transport prints lines of its own
                    told |= json.loads(line)
            found.append((process.returncode, told, errors))
    finally:
        for process in running:
            process.kill()
    return found


@pytest.fixture(scope="module")
def agreed():
    return start("agree", total=2)


def test_all_processes_end_well(agreed):
    assert [code for code, _, _ in agreed] == [0, 0]
    assert [told["process"] for _, told, _ in agreed] == [[2, True], [2, False]]


def test_all_processes_hold_the_key_that_the_coordinator_drew_and_each_is_new(agreed):
    (_, first, _), (_, second, _) = agreed
    assert first["keys"] == second["keys"]
    assert first["keys"][0] != first["keys"][1]
    assert all(len(set(key)) > 1 for key in first["keys"])


def test_only_the_coordinator_acts(agreed):
    (_, first, _), (_, second, _) = agreed
    assert isinstance(first["found"], int)
    assert second["found"] is None


def test_when_the_coordinator_fails_all_stop_and_only_it_says_why(agreed):
    (_, first, _), (_, second, _) = agreed
    assert first["failed"] == ["KeyError", "'a private word'"]
    assert second["failed"][0] == "StoppedByCoordinatorError"
    assert "private word" not in second["failed"][1]
    assert first["still agree"] == second["still agree"]


def test_what_the_coordinator_finds_out_is_known_to_all(agreed):
    assert [told["text"] for _, told, _ in agreed] == [
        "0, of the coordinator: é",
    ] * 2


def test_a_disagreement_is_named_in_all_processes(agreed):
    for _, told, _ in agreed:
        assert told["agreed"]
        assert "plan must be the same in all processes; process 1 has another" in told["differ"]


def test_the_coordinator_alone_looks_at_a_shared_table_without_waiting_for_the_others(agreed):
    assert [told["fingerprint"] for _, told, _ in agreed] == [None, None]


def test_a_mesh_without_devices_of_one_process_is_refused_in_all(agreed):
    assert all("it has none of process 1" in told["idle"] for _, told, _ in agreed)


def test_processes_start_once(agreed):
    assert all("Call it once" in told["twice"] for _, told, _ in agreed)


def test_a_killed_worker_ends_all_others_with_one_error_and_without_waiting(agreed):
    begin = time.monotonic()
    found = start("2", total=3)
    assert time.monotonic() - begin < SECONDS
    assert found[2][0] == -9
    for code, told, errors in found[:2]:
        assert code == 1, errors
        message, seconds = told["lost"]
        assert "a process of this run was lost" in message
        assert seconds < 10  # far below the heartbeat timeout, which is for silent hosts
    assert found[0][1]["key"] not in agreed[0][1]["keys"]


def test_a_process_that_fails_alone_ends_at_once_and_the_others_with_it():
    begin = time.monotonic()
    (first, _, errors), (second, _, own) = start("fail", total=2)
    assert time.monotonic() - begin < SECONDS / 2  # JAX by itself would wait for a minute
    assert (first, second) == (1, 1)
    assert "a process of this run was lost" in errors
    assert "a private word" in own
    assert "a private word" not in errors


def test_a_killed_coordinator_ends_the_others():
    (first, _, _), (second, told, _) = start("0", total=2)
    assert first == -9
    # The error, or JAX's own abort where that is faster.
    assert second in (1, -6)
    assert "lost" in told or second == -6


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_processes": 0}, "num_processes must be a whole number of at least 1"),
        ({"process_id": 2}, "process_id must be below num_processes=2"),
        ({"process_id": -1}, "process_id must be a whole number of at least 0"),
        ({"coordinator": "127.0.0.1"}, "coordinator must be host:port"),
        ({"coordinator": ":7000"}, "coordinator must be host:port"),
        ({"coordinator": "host:700000"}, "coordinator must be host:port"),
        ({"coordinator": "host:"}, "coordinator must be host:port"),
        ({"coordinator": "a host:7000"}, "coordinator must be host:port"),
        ({"coordinator": None}, "coordinator must be host:port"),
        ({"heartbeat_timeout": 0}, "heartbeat_timeout must be a whole number"),
        ({"start_timeout": 0.5}, "start_timeout must be a whole number"),
    ],
)
def test_wrong_arguments_are_named_before_anything_starts(wrong, message):
    with pytest.raises(InvalidArgumentError, match=message):
        processes.start_processes(**{**GOOD, **wrong})
    assert processes.num_processes() == 1


def test_processes_cannot_start_after_a_computation():
    jax.block_until_ready(jax.numpy.zeros(1))
    with pytest.raises(InvalidArgumentError, match="before any JAX computation"):
        processes.start_processes(**GOOD)


def test_one_process_acts_itself_and_its_errors_are_its_own():
    def fail():
        raise KeyError("x")

    assert processes.on_coordinator(lambda: 3) == 3
    with pytest.raises(KeyError):
        processes.on_coordinator(fail)
    assert processes.is_coordinator()


# As JAX 0.10 words them; a layer that changes its words fails the tests with real processes.
LOSSES = [
    "UNKNOWN: Gloo all-reduce failed: [pair.cc:547] Connection closed by peer [127.0.0.1]:10651",
    "UNAVAILABLE: Task 1 heartbeat timeout. This indicates that the remote task has failed",
    "INTERNAL: Shutdown barrier has failed.",
]


@pytest.fixture
def as_if_connected(monkeypatch):
    monkeypatch.setattr(processes, "num_processes", lambda: 2)
    yield
    processes._is_broken.clear()  # or the interpreter would end early


@pytest.mark.usefixtures("as_if_connected")
@pytest.mark.parametrize("text", LOSSES)
def test_what_jax_says_of_a_lost_process_becomes_one_error(text):
    with (
        pytest.raises(LostWorkerError, match="lost after step 20"),
        processes.translating_lost_workers(after_step=20),
    ):
        raise ValueError(text)


@pytest.mark.usefixtures("as_if_connected")
@pytest.mark.parametrize(
    "error",
    [
        ValueError("the column 'heartbeat timeout' is missing"),
        RuntimeError("RESOURCE_EXHAUSTED: out of memory"),
        TacitError("UNKNOWN: Gloo"),
    ],
)
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as caught, processes.translating_lost_workers():
        raise error
    assert caught.value is error


def test_with_one_process_nothing_is_translated():
    with pytest.raises(ValueError, match="Gloo"), processes.translating_lost_workers():
        raise ValueError(LOSSES[0])
