"""A study executed, by one process or several: nothing is spent before all is read and checked."""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import os
import warnings
from dataclasses import asdict, replace
from pathlib import Path

import jax
import numpy as np
from dp_accounting import DpEvent

from tacit import _tree
from tacit.data import Schema
from tacit.errors import InvalidArgumentError, PrivacyWarning, TacitError
from tacit.inference import load_checkpoint
from tacit.inference.chains import Checkpoint, OnProgress
from tacit.privacy.budget import Budget, Ledger, Run, RunRequest
from tacit.privacy.ledger import DataSetLedger, LedgerFile
from tacit.privacy.stopping import claim_of
from tacit.processes import from_coordinator, num_processes, on_coordinator, require_same_everywhere
from tacit.rng import seeded_key
from tacit.studies.preparation import Prepared, Recipe, budget_left, prepare
from tacit.studies.run_folder import RunFolder, require_no_run, reserved
from tacit.studies.study import Study, read_records, read_schema, read_study
from tacit.studies.table_fit import TableFit, fit_table
from tacit.tables import OnHost, distribute
from tacit.tables.base import as_table
from tacit.typing import Record

__all__ = ["DELTA", "Interrupted", "execute", "resume"]

DELTA = 1e-5
"""The chance that a promise fails, where neither a study nor a ledger says it."""


class Interrupted(Exception):  # noqa: N818
    """A run was stopped by hand; what it made and paid for is kept, and `resume` goes on with it.

    Attributes:
      step: how many steps are kept.
      num_steps: of how many.
      output: the folder.
      epsilon: what a statement of it would say: that of all steps that were declared, because
        it may have been stopped for what was seen of it. ``"infinity"`` without privacy.
    """

    def __init__(self, step: int, num_steps: int, output: Path, epsilon: float | str) -> None:
        super().__init__(f"stopped after {step} of {num_steps} steps")
        self.step, self.num_steps, self.output, self.epsilon = step, num_steps, output, epsilon


def execute(
    study: Study, *, overwrite: bool = False, progress: OnProgress | None = None
) -> TableFit:
    """Fits a study from its start, and writes the folder of the run.

    Warns with `PrivacyWarning` of a schema that is a draft, of odd values in the table, and where
    the ledger needs more noise than the budget.

    Guarantee:
      As `tacit.fit`. Table, schema, budget, ledger, folder and disk space are checked before
      anything is spent. Of several processes only the first pays and writes.

    Args:
      study: what is to be fitted.
      overwrite: replaces a run in the folder, once the first steps of the new one are paid for.
      progress: is told steps and epsilon, first where the run begins. It may raise
        ``KeyboardInterrupt``, to stop the run where all that was paid for is kept.

    Raises:
      TacitError: for whatever is wrong.
      Interrupted: when somebody pressed Ctrl-C.
    """
    on_coordinator(lambda: require_no_run(study.output, overwrite=overwrite))
    schema = read_schema(study.schema)
    ledger, records = _open(study, schema)
    prepared = _prepare_everywhere(study, schema, as_table(records).num_records, ledger)
    if prepared.noise_scale > 1 and study.epsilon is not None:
        warnings.warn(
            f"what the ledger has left is less than epsilon {study.epsilon:g} costs there: the run"
            f" has {prepared.noise_scale:.2f} times the noise, and its statement a smaller epsilon",
            PrivacyWarning,
            stacklevel=2,
        )
    return _run(study, prepared, records, ledger, progress=progress)


def resume(
    output: str | os.PathLike[str],
    *,
    table: str | os.PathLike[str] | None = None,
    seed: int | None = None,
    progress: OnProgress | None = None,
) -> TableFit:
    """Goes on with a run from its checkpoint, with fresh noise.

    Args:
      output: the run's folder; its ``study.toml`` says all that the run needs.
      table: where the records are now, if they were moved.
      seed: for tests only; noise is never used twice, so the run's own is not.
      progress: as in `execute`.

    Raises:
      TacitError: for whatever is wrong, before anything is spent.
      Interrupted: when somebody pressed Ctrl-C.
    """
    file = Path(output) / "study.toml"
    study = read_study(file, changes={"table": table, "output": output})
    study = replace(study, seed=seed)
    budget = study.budget
    if budget is None:
        raise InvalidArgumentError(f"{file} must have budget.epsilon and delta.")
    schema = read_schema(study.output / "schema.toml")
    ledger, records = _open(study, schema)
    prepared = prepare(
        schema,
        study.recipe,
        num_records=as_table(records).num_records,
        budget=budget,
        noise_scale=study.noise_scale,
        tuning=study.tuning,
    )
    checkpoint = load_checkpoint(study.output, prepared.plan, prepared.model, records)
    _require_same_start(checkpoint)
    return _run(study, prepared, records, ledger, progress=progress, checkpoint=checkpoint)


def _run(
    study: Study,
    prepared: Prepared,
    records: Record | OnHost,
    ledger: Ledger | None,
    *,
    progress: OnProgress | None,
    checkpoint: Checkpoint | None = None,
) -> TableFit:
    executed = replace(
        study,
        target=prepared.schema.target.name,
        epsilon=prepared.budget.epsilon,
        delta=prepared.budget.delta,
        recipe=prepared.recipe,
        noise_scale=prepared.noise_scale,
        num_records=as_table(records).num_records,
    )
    folder = RunFolder(study=executed, schema=prepared.schema, last=checkpoint)

    def tell(*, step: int, num_steps: int, epsilon: float) -> None:
        folder.note_progress(step, epsilon)
        if progress is not None:
            progress(step=step, num_steps=num_steps, epsilon=epsilon)

    # Each device keeps, or reads, its own rows where there are several.
    spread = distribute(records) if jax.device_count() > 1 else records
    with contextlib.ExitStack() as stack:
        # Retained states that are written while the run goes on take their space themselves.
        num_states = 0 if study.half_precision else len(prepared.plan.kept_steps)
        place = reserved(folder.path, _num_bytes(prepared, num_states=num_states))
        reservation = on_coordinator(lambda: stack.enter_context(place))
        try:
            if progress is not None:
                before = float(folder.progress[-1]["epsilon"]) if folder.progress else 0.0
                step = 0 if checkpoint is None else checkpoint.step
                progress(step=step, num_steps=prepared.plan.kept_steps[-1], epsilon=before)
            table = fit_table(
                spread,
                prepared,
                seed=study.seed,
                ledger=ledger,
                progress=tell,
                resume=checkpoint,
                on_chunk=folder.keep,
                half_precision=folder.path if study.half_precision else None,
            )
        except KeyboardInterrupt:
            if folder.has_begun:
                folder.write_progress()
            raise _interrupted(prepared, folder) from None
        except TacitError as error:
            # Others drew on the ledger meanwhile, or the disk is full.
            if folder.has_begun and folder.last is not None:
                folder.write_progress()
                error.add_note(
                    f"{folder.last.step} steps are paid for and kept in {str(folder.path)!r}; go"
                    " on with `resume`"
                )
            raise

        def finish() -> None:
            assert reservation is not None
            reservation.release()
            folder.finish(table)

        on_coordinator(finish)
    return table


def _interrupted(prepared: Prepared, folder: RunFolder) -> Interrupted:
    step, epsilon, last = 0, 0.0, folder.last
    if last is not None:
        claim = claim_of(
            last.cost.event,
            num_steps=last.step,
            declared=last.declared,
            budget=prepared.budget,
        )
        is_private = math.isfinite(claim.budget.epsilon)
        step, epsilon = last.step, claim.budget.spent(claim.cost) if is_private else math.inf
    shown = epsilon if math.isfinite(epsilon) else "infinity"
    return Interrupted(step, prepared.plan.kept_steps[-1], folder.path, shown)


def _num_bytes(prepared: Prepared, *, num_states: int) -> int:
    """Returns about twice what posterior and checkpoint will need with so many retained states."""
    plan = prepared.plan
    shape = jax.eval_shape(plan.method.build(prepared.model).init, seeded_key(0))
    return 2**21 + 4 * 4 * _tree.size(shape) * (num_states + 1) * plan.num_chains


# Several processes


class _LedgerElsewhere:
    """Stands for the ledger where this is not the coordinator, which alone reaches it."""

    def ask(self, cost: DpEvent) -> None:
        raise AssertionError("only the coordinator asks")

    def begin(self, request: RunRequest) -> Run:
        raise AssertionError("only the coordinator pays")


def _open(study: Study, schema: Schema) -> tuple[Ledger | None, Record | OnHost]:
    """Returns what is charged and the records.

    Raises unless all processes were started for the same run; only the coordinator needs the
    ledger's file.
    """
    ledger: Ledger | None = None
    if study.ledger is not None and study.data_set is not None:
        path, name = study.ledger, study.data_set
        ledger = on_coordinator(lambda: LedgerFile.open(path).data_set(name)) or _LedgerElsewhere()
    records = read_records(study, schema)
    require_same_everywhere(
        **{
            "the version of tacit": importlib.metadata.version("tacit"),
            "the version of jax": jax.__version__,
            "the schema": schema.to_toml(),
            "the number of records": str(as_table(records).num_records),
            "the recipe": repr(study.recipe),
            "the seed": str(study.seed),
            "how settings were chosen": study.tuning,
        }
    )
    return ledger, records


def _prepare_everywhere(
    study: Study, schema: Schema, num_records: int, ledger: Ledger | None
) -> Prepared:
    """Returns what the coordinator prepares, in all processes.

    What a ledger has left may change between two looks at it, so only one is taken.
    """
    own: list[Prepared] = []

    def choose() -> str:
        book = ledger if isinstance(ledger, DataSetLedger) else None
        delta = DELTA if book is None else book.rule.delta
        filled = replace(study, delta=delta if study.delta is None else study.delta)
        budget = filled.budget
        if budget is None:
            assert book is not None
            budget = budget_left(
                schema, study.recipe, num_records=num_records, ledger=book, delta=filled.delta
            )
        prepared = prepare(
            schema,
            study.recipe,
            num_records=num_records,
            budget=budget,
            ledger=ledger,
            tuning=study.tuning,
        )
        own.append(prepared)
        recipe = asdict(prepared.recipe)
        return json.dumps([budget.epsilon, budget.delta, prepared.noise_scale, recipe])

    chosen = from_coordinator(choose)
    if own:
        return own[0]
    epsilon, delta, noise_scale, settings = json.loads(chosen)
    recipe = Recipe(**{**settings, "hidden": tuple(settings["hidden"])})
    budget = Budget(epsilon, delta) if math.isfinite(epsilon) else Budget.non_private()
    return prepare(
        schema,
        recipe,
        num_records=num_records,
        budget=budget,
        noise_scale=noise_scale,
        tuning=study.tuning,
    )


def _require_same_start(checkpoint: Checkpoint) -> None:
    """Raises unless all processes have read the same checkpoint."""
    if num_processes() == 1:
        return
    digest = hashlib.sha256(str(checkpoint.step).encode())
    for leaf in jax.tree.leaves((checkpoint.states, checkpoint.kept)):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    require_same_everywhere(**{"the checkpoint": digest.hexdigest()})
