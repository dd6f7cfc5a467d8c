"""A study executed: nothing is spent before all is read and checked."""

import contextlib
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import jax
import numpy as np

from tacit import _tree
from tacit.cli._files import read_schema, read_table
from tacit.cli._interrupting import GentleInterrupt
from tacit.cli._notes import note
from tacit.cli._run_directory import RunDirectory, read_progress, require_no_run, reserved
from tacit.cli._stored import open_stored, require_classes
from tacit.cli._study import Study
from tacit.cli._together import (
    open_shared_data_set,
    prepare_together,
    require_same_run,
    require_same_start,
)
from tacit.cli._within import require_units, with_noise_scale
from tacit.data import Schema, Target, encode_table
from tacit.data.csv import to_numbers
from tacit.errors import InvalidArgumentError, TacitError
from tacit.estimators import Prepared, TableFit, fit_table, prepare
from tacit.estimators.fitting import study_of
from tacit.inference import Checkpoint, load_checkpoint
from tacit.inference.progress import OnProgress
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.stopping import claim_of
from tacit.processes import on_coordinator
from tacit.rng import seeded_key
from tacit.tables import Distributed, OnHost, as_table, distribute
from tacit.typing import Record

__all__ = ["Interrupted", "execute", "resume"]

Bar = Callable[[str], AbstractContextManager[OnProgress]]


class Interrupted(Exception):  # noqa: N818
    """A run was stopped by hand; what it made and paid for is kept.

    Its epsilon is what a statement of it would say: that of all steps that were declared, because
    it may have been stopped for what was seen of it.
    """

    def __init__(self, step: int, num_steps: int, epsilon: float | str) -> None:
        super().__init__(f"stopped after {step} of {num_steps} steps")
        self.step, self.num_steps, self.epsilon = step, num_steps, epsilon


def execute(study: Study, *, bar: Bar, overwrite: bool) -> TableFit:
    """Fits a study from its start.

    Raises:
      TacitError: for whatever is wrong, before anything is spent.
      Interrupted: when somebody pressed Ctrl-C.
    """
    if study.schema is None:
        raise InvalidArgumentError(
            "give the public description of the table: --schema schema.toml. For a draft of one:"
            f" tacit schema {study.table} --output schema.toml."
        )
    on_coordinator(lambda: require_no_run(study.output, overwrite=overwrite))
    schema = read_schema(study.schema)
    ledger = open_shared_data_set(study.ledger, study.data_set)
    records = _records(study, schema)
    num_records = as_table(records).num_records
    require_units(num_records, study.num_records)
    require_same_run(study, schema, num_records=num_records)
    prepared, scale = prepare_together(
        schema,
        study.recipe,
        num_records=num_records,
        epsilon=study.epsilon,
        delta=study.delta,
        ledger=ledger,
    )
    if scale > 1 and study.epsilon is not None:
        note(
            f"what the ledger has left is less than epsilon {study.epsilon:g} costs there: the run"
            f" has {scale:.2f} times the noise, and its statement a smaller epsilon."
        )
    done = replace(
        study,
        target=schema.target.name,
        epsilon=prepared.budget.epsilon,
        delta=prepared.budget.delta,
        noise_scale=scale,
    )
    return _Execution(done, prepared, records, ledger, bar).run(None)


def resume(study: Study, *, bar: Bar) -> TableFit:
    """Goes on with a run from its checkpoint, with fresh noise."""
    assert study.epsilon is not None
    assert study.delta is not None
    schema = read_schema(study.output / "schema.toml")
    ledger = open_shared_data_set(study.ledger, study.data_set)
    records = _records(study, schema)
    num_records = as_table(records).num_records
    require_units(num_records, study.num_records)
    budget = Budget(study.epsilon, study.delta) if study.is_private else Budget.non_private()
    prepared = prepare(schema, study.recipe, num_records=num_records, budget=budget)
    prepared = with_noise_scale(prepared, study.noise_scale)
    require_same_run(study, schema, num_records=num_records)
    checkpoint = load_checkpoint(study.output, prepared.plan, prepared.model, records)
    require_same_start(checkpoint)
    return _Execution(study, prepared, records, ledger, bar).run(checkpoint)


def _records(study: Study, schema: Schema) -> Record | OnHost:
    target = schema.target
    if study.target is not None and study.target != target.name:
        raise InvalidArgumentError(
            f"--target is {study.target!r}, but the schema's target is {target.name!r}. Correct one"
            " of them."
        )
    if study.table.is_dir():
        return open_stored(study, schema)
    frame = read_table(study.table, schema)
    if study.weight is not None and study.weight in frame:
        frame[study.weight] = to_numbers(frame[study.weight])
    records = encode_table(
        frame,
        schema,
        weight=study.weight,
        max_weight=study.max_weight,
        groups=study.groups,
        max_rows=study.max_rows,
    )
    if isinstance(target, Target):
        labels = np.asarray(records.y)
        if records.mask is not None:
            labels = labels[np.asarray(records.mask)]
        require_classes(labels, target)
    return records


@dataclass
class _Execution:
    study: Study
    prepared: Prepared
    records: Record | OnHost
    ledger: Ledger | None
    bar: Bar

    def run(self, checkpoint: Checkpoint | None) -> TableFit:
        folder, study = self.study.output, self.study
        recipe = study_of(self.prepared)["recipe"]
        earlier = [] if checkpoint is None else read_progress(folder, before=checkpoint.step)
        records = _spread(self.records)
        directory = RunDirectory(
            folder=folder,
            study=study.executed(num_records=as_table(self.records).num_records, recipe=recipe),
            schema=self.prepared.schema,
            is_resumed=checkpoint is not None,
            earlier=earlier,
        )
        moments: list[dict[str, Any]] = []
        last = checkpoint

        def keep(made: Checkpoint) -> None:
            nonlocal last
            directory.keep(made)
            last = made

        with contextlib.ExitStack() as stack:
            place = reserved(folder, self._num_bytes())
            reservation = on_coordinator(lambda: stack.enter_context(place))
            interrupt = stack.enter_context(GentleInterrupt())
            with self.bar(self.prepared.recipe.method) as on_progress:

                def tell(*, step: int, num_steps: int, epsilon: float) -> None:
                    moments.append({"step": step, "epsilon": _for_json(epsilon)})
                    on_progress(step=step, num_steps=num_steps, epsilon=epsilon)
                    if step < num_steps:  # a finished run is not worth stopping
                        interrupt.raise_if_asked()

                try:
                    table = fit_table(
                        records,
                        self.prepared,
                        seed=study.seed,
                        ledger=self.ledger,
                        progress=tell,
                        resume=checkpoint,
                        on_chunk=keep,
                    )
                except KeyboardInterrupt:
                    if moments:
                        directory.note_progress(moments)
                    self._stop(last)
                except TacitError:
                    if moments:  # others drew on the ledger meanwhile, or the disk is full
                        directory.note_progress(moments)
                        note(
                            f"{moments[-1]['step']} steps are paid for and kept; go on with: tacit"
                            f" fit --resume --output {folder}"
                        )
                    raise

            def finish() -> None:
                assert reservation is not None
                reservation.release()
                directory.finish(table, moments)

            on_coordinator(finish)
        return table

    def _stop(self, last: Checkpoint | None) -> NoReturn:
        assert self.prepared.recipe.num_steps is not None
        step, epsilon = 0, 0.0
        if last is not None:
            claim = claim_of(
                last.cost.event,
                num_steps=last.step,
                declared=last.declared,
                budget=self.prepared.budget,
            )
            is_private = math.isfinite(claim.budget.epsilon)
            step, epsilon = last.step, claim.budget.spent(claim.cost) if is_private else math.inf
        raise Interrupted(step, self.prepared.recipe.num_steps, _for_json(epsilon)) from None

    def _num_bytes(self) -> int:
        """Returns about twice what posterior and checkpoint will need."""
        plan = self.prepared.plan
        shape = jax.eval_shape(plan.method.build(self.prepared.model).init, seeded_key(0))
        num_states = len(plan.kept_steps) + 1
        return 2**21 + 4 * 4 * _tree.size(shape) * num_states * plan.num_chains


def _spread(records: Record | OnHost) -> Record | Distributed | OnHost:
    """Lets each device keep, or read, its own rows where there are several."""
    return distribute(records) if jax.device_count() > 1 else records


def _for_json(epsilon: float) -> float | str:
    return epsilon if math.isfinite(epsilon) else "infinity"
