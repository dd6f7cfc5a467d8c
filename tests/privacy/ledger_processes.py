"""Processes that share a ledger and are killed; run by test_ledger_processes.py.

One process imports everything once and forks the others, which is cheap; no JAX backend has started
by then.
"""

import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from pathlib import Path

import dp_accounting as dpa

from tacit.errors import BudgetExceededError
from tacit.privacy.budget import RunRequest
from tacit.privacy.cost import Cost
from tacit.privacy.filters import GDPFilter, RDPFilter
from tacit.privacy.ledger import LedgerFile

COST = dpa.GaussianDpEvent(100.0)


def forked(work):
    """Runs work in a process of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            os._exit(code)
    return pid


def release(path):
    """What a real release is here: a line that is on the disk."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(handle, b"released\n")
    os.fsync(handle)
    os.close(handle)


def num_lines(path):
    return len(path.read_text().splitlines()) if path.exists() else 0


def num_charges(ledger):
    record = LedgerFile.open(ledger).state.data_sets["census"]
    return record.spending.num_charges


def race(folder):
    """Four processes charge until they are refused."""
    ledger = folder / "people.ledger"
    LedgerFile.create(ledger).register("census", RDPFilter.of_budget(epsilon=0.4, delta=1e-5))

    ready, is_ready = os.pipe()
    start, may_start = os.pipe()

    def work():
        run = (
            LedgerFile.open(ledger)
            .data_set("census")
            .begin(RunRequest(cost=Cost(COST, is_secure=True)))
        )
        os.write(is_ready, b".")
        os.read(start, 1)  # all have begun before the first is charged
        try:
            while True:
                run.charge(COST)
                release(folder / "released")
        except BudgetExceededError:
            pass

    children = [forked(work) for _ in range(4)]
    for _ in children:
        os.read(ready, 1)
    os.write(may_start, b"." * len(children))
    codes = [os.waitpid(pid, 0)[1] for pid in children]
    record = LedgerFile.open(ledger).state.data_sets["census"]
    return {
        "codes": codes,
        "charges": record.spending.num_charges,
        "released": num_lines(folder / "released"),
        "epsilon": record.spending.epsilon,
        "by_run": [len(run.charges) for run in record.runs.values()],
    }


def kills(folder, num_kills):
    """A process that charges and releases is killed at random points, and begun again."""
    ledger = folder / "people.ledger"
    LedgerFile.create(ledger).register("census", GDPFilter(epsilon=50.0, delta=1e-5))
    choose, seen = random.Random(0), []

    def work():
        run = (
            LedgerFile.open(ledger)
            .data_set("census")
            .begin(RunRequest(cost=Cost(COST, is_secure=True)))
        )
        while True:
            run.charge(COST)
            release(folder / "released")

    for _ in range(num_kills):
        before = num_lines(folder / "released")
        pid = forked(work)
        while num_lines(folder / "released") == before:  # it has begun
            time.sleep(0.001)
        time.sleep(choose.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen.append((num_lines(folder / "released"), num_charges(ledger)))
    return {"seen": seen}


def fits(folder):
    """A fit is killed three times; each goes on from the last checkpoint of the one before."""
    import numpy as np
    import optax

    import tacit
    from tacit.data import as_records
    from tacit.models import MLP, Categorical, GaussianPrior

    ledger = folder / "people.ledger"
    LedgerFile.create(ledger).register("census", RDPFilter.of_budget(epsilon=20.0, delta=1e-3))

    def work():
        warnings.simplefilter("ignore")
        data = LedgerFile.open(ledger).data_set("census")
        x = np.linspace(-1, 1, 100).reshape(50, 2)
        records = as_records(x, (x[:, 0] > 0).astype(int))
        model = tacit.bayesian(
            MLP(num_inputs=2, hidden=(3,), num_outputs=2),
            prior=GaussianPrior(std=1.0),
            likelihood=Categorical(num_classes=2),
        )
        noisy = tacit.GaussianSum(
            sampling=tacit.FullBatch(num_records=50), clip_norm=1.0, noise_multiplier=60.0
        )
        method = tacit.SGD(release=noisy, optimizer=optax.sgd(0.1))
        plan = tacit.Plan(method=method, num_steps=300)
        here = folder / "run"
        resume = (
            tacit.inference.load_checkpoint(here, plan, model, records)
            if (here / "checkpoint.json").exists()
            else None
        )

        def on_chunk(checkpoint):
            release(folder / "released")
            tacit.inference.save_checkpoint(checkpoint, here)

        tacit.fit(
            plan,
            model,
            records,
            budget=tacit.Budget(epsilon=20.0, delta=1e-3),
            ledger=data,
            resume=resume,
            on_chunk=on_chunk,
            chunk_steps=1,
        )

    choose, seen = random.Random(1), []
    for number in range(3):
        before = num_lines(folder / "released")
        pid = forked(work)
        while num_lines(folder / "released") < before + 3:
            if os.waitpid(pid, os.WNOHANG)[0]:
                raise RuntimeError(f"fit {number} ended by itself")
            time.sleep(0.001)
        time.sleep(choose.uniform(0.0, 0.05))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        seen.append((num_lines(folder / "released"), num_charges(ledger)))
    record = LedgerFile.open(ledger).state.data_sets["census"]
    return {
        "seen": seen,
        "parents": [run.parent for run in record.runs.values()],
        "runs": list(record.runs),
        "steps": [(run.parent_step or 0, run.steps_charged) for run in record.runs.values()],
    }


if __name__ == "__main__":
    # Only Python threads of our own would be a danger to a fork, and there are none.
    warnings.simplefilter("ignore")
    what, where = sys.argv[1], Path(sys.argv[2])
    if what == "race":
        print(json.dumps(race(where)))
    elif what == "kills":
        print(json.dumps(kills(where, num_kills=25)))
    else:
        print(json.dumps(fits(where)))
