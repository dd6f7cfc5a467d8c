"""What each process of a test executes: ``process_program.py PART NUM_PROCESSES ID PORT``."""

import json
import os
import signal
import sys
import time

import jax
import numpy as np

import tacit
from tacit.errors import LostWorkerError, TacitError
from tacit.privacy.ledger.file import fingerprint_of
from tacit.processes import (
    from_coordinator,
    is_coordinator,
    num_processes,
    on_coordinator,
    require_same_everywhere,
    shared_fresh_key,
    start_processes,
    stop_processes,
)
from tacit.tables import device_mesh


def tell(name, value):
    print(json.dumps({name: value}), flush=True)


def secret():
    return jax.random.key_data(shared_fresh_key()).tolist()


def agree(own):
    tell("keys", [secret(), secret()])
    tell("found", on_coordinator(os.getpid))

    def fail():
        raise KeyError("a private word")

    try:
        on_coordinator(fail)
    except (KeyError, TacitError) as error:
        tell("failed", [type(error).__name__, str(error)])
    tell("still agree", secret())
    tell("text", from_coordinator(lambda: f"{own}, of the coordinator: é"))
    require_same_everywhere(plan="one", budget="two")
    tell("agreed", True)
    try:
        require_same_everywhere(budget="two", plan=f"that of process {own}")
    except TacitError as error:
        tell("differ", str(error))
    # An odd number of records: the last shard is filled up.
    spread = tacit.distribute(tacit.as_records(np.ones((3, 1)), np.zeros(3)))
    tell("fingerprint", on_coordinator(lambda: fingerprint_of(spread, salt=b"s")))
    try:
        tacit.distribute(spread.rows, device_mesh(records=1))
    except TacitError as error:
        tell("idle", str(error))
    try:
        start_processes(num_processes=2, process_id=0, coordinator="127.0.0.1:7000")
    except TacitError as error:
        tell("twice", str(error))
    stop_processes()


def lose(process_id, lost):
    tell("key", secret())
    if process_id == lost:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        while True:
            on_coordinator(lambda: None)
    except LostWorkerError as error:
        tell("lost", [str(error), time.monotonic() - begin])
        raise


def fail(process_id):
    on_coordinator(lambda: None)
    if process_id == 1:
        raise KeyError("a private word")
    while True:
        on_coordinator(lambda: None)


if __name__ == "__main__":
    part, total, own, port = sys.argv[1], *map(int, sys.argv[2:])
    start_processes(num_processes=total, process_id=own, coordinator=f"127.0.0.1:{port}")
    tell("process", [num_processes(), is_coordinator()])
    if part == "agree":
        agree(own)
    elif part == "fail":
        fail(own)
    else:
        lose(own, lost=int(part))
