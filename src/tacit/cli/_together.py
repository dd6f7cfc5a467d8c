"""A study on several processes: the coordinator decides, and all of them do the same."""

import hashlib
import importlib.metadata
import json
import math
from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
from dp_accounting import DpEvent

from tacit.cli._study import Study
from tacit.cli._within import open_data_set, prepare_within, with_noise_scale
from tacit.data import Schema
from tacit.estimators import Prepared, Recipe, prepare
from tacit.inference import Checkpoint
from tacit.privacy.budget import Budget, Ledger, Run, RunRequest
from tacit.privacy.ledger import DataSetLedger
from tacit.processes import from_coordinator, num_processes, on_coordinator, require_agreement

__all__ = ["open_shared_data_set", "prepare_together", "require_same_run", "require_same_start"]

_DELTA = 1e-5


class _LedgerElsewhere:
    """Stands for the ledger where this is not the coordinator, which alone reaches it."""

    def ask(self, cost: DpEvent) -> None:
        raise AssertionError("only the coordinator asks")

    def begin(self, request: RunRequest) -> Run:
        raise AssertionError("only the coordinator pays")


def open_shared_data_set(ledger: Path | None, data_set: str | None) -> Ledger | None:
    """Returns what is charged, if anything is; only the coordinator needs the file."""
    found = on_coordinator(lambda: open_data_set(ledger, data_set))
    return _LedgerElsewhere() if found is None and ledger is not None else found


def prepare_together(
    schema: Schema,
    recipe: Recipe,
    *,
    num_records: int,
    epsilon: float | None,
    delta: float | None,
    ledger: Ledger | None,
) -> tuple[Prepared, float]:
    """Returns what `prepare_within` gives on the coordinator, in all processes.

    What a ledger has left may change between two looks at it, so only one is taken.
    """
    own: list[tuple[Prepared, float]] = []

    def choose() -> str:
        book = ledger if isinstance(ledger, DataSetLedger) else None
        own_delta = (_DELTA if book is None else book.rule.delta) if delta is None else delta
        prepared, scale = prepare_within(
            schema,
            recipe,
            num_records=num_records,
            epsilon=epsilon,
            delta=own_delta,
            ledger=book,
        )
        own.append((prepared, scale))
        budget = prepared.budget
        return json.dumps([budget.epsilon, budget.delta, scale, asdict(prepared.recipe)])

    chosen = from_coordinator(choose)
    if own:
        return own[0]
    found_epsilon, found_delta, scale, fields = json.loads(chosen)
    hidden = fields["hidden"]
    filled = Recipe(**{**fields, "hidden": hidden if hidden is None else tuple(hidden)})
    is_private = math.isfinite(found_epsilon)
    budget = Budget(found_epsilon, found_delta) if is_private else Budget.non_private()
    prepared = prepare(schema, filled, num_records=num_records, budget=budget)
    return with_noise_scale(prepared, scale), scale


def require_same_run(study: Study, schema: Schema, *, num_records: int) -> None:
    """Raises unless all processes were started for the same run, by the same program."""
    require_agreement(
        **{
            "the version of tacit": importlib.metadata.version("tacit"),
            "the version of jax": jax.__version__,
            "the schema": schema.to_toml(),
            "the number of records": str(num_records),
            "the recipe": repr(study.recipe),
            "--seed": str(study.seed),
        }
    )


def require_same_start(checkpoint: Checkpoint) -> None:
    """Raises unless all processes have read the same checkpoint."""
    if num_processes() == 1:
        return
    digest = hashlib.sha256(str(checkpoint.step).encode())
    for leaf in jax.tree.leaves((checkpoint.states, checkpoint.kept)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    require_agreement(**{"the checkpoint": digest.hexdigest()})
