"""A study executed, by one process or several: nothing is spent before all is read and checked."""

import contextlib
import hashlib
import importlib.metadata
import json
import math
import signal
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import jax
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _tree
from tacit.cli._options import note
from tacit.data import Schema, StoredRecords, Target, encode_table, open_records
from tacit.data.csv import to_numbers
from tacit.data.stored import digest_of
from tacit.errors import InvalidArgumentError, TacitError
from tacit.inference import Checkpoint, load_checkpoint
from tacit.inference.checkpoint import OnProgress
from tacit.privacy.budget import Budget, Ledger, Run, RunRequest
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.stopping import claim_of
from tacit.processes import from_coordinator, num_processes, on_coordinator, require_agreement
from tacit.rng import seeded_key
from tacit.studies.files import read_schema, read_table
from tacit.studies.preparation import (
    Prepared,
    open_data_set,
    prepare,
    prepare_within,
    require_units,
    with_noise_scale,
)
from tacit.studies.recipe import Recipe
from tacit.studies.run_folder import RunDirectory, read_progress, require_no_run, reserved
from tacit.studies.study import Study
from tacit.studies.table_fit import TableFit, fit_table, study_of
from tacit.tables import Distributed, OnHost, distribute
from tacit.tables.base import as_table
from tacit.typing import Record

__all__ = [
    "GentleInterrupt",
    "Interrupted",
    "execute",
    "open_shared_data_set",
    "open_stored",
    "prepare_together",
    "require_classes",
    "require_same_run",
    "require_same_start",
    "resume",
]


class GentleInterrupt:
    """While it is open, the first Ctrl-C only asks a run to stop; the second stops it at once.

    Example:
      >>> with GentleInterrupt() as interrupt:
      ...     interrupt.raise_if_asked()
    """

    def __init__(self) -> None:
        self._is_asked = False
        self._before: Any = None

    def __enter__(self) -> Self:
        # Elsewhere than in the main thread nobody can press Ctrl-C.
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._ask)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)

    def raise_if_asked(self) -> None:
        """Ends the run here, where all that was paid for is kept."""
        if self._is_asked:
            raise KeyboardInterrupt

    def _ask(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._is_asked:
            raise KeyboardInterrupt
        self._is_asked = True
        note("stopping after the steps that are paid for; Ctrl-C again stops now, and loses them")


_BLOCK = 2**13


def open_stored(study: Study, schema: Schema) -> OnHost:
    """Returns the records of a folder, or raises unless they were encoded for this study."""
    folder = study.table
    records = open_records(folder)
    settled = {"--weight": study.weight, "--groups": study.groups, "--max-rows": study.max_rows}
    extra = [name for name, value in settled.items() if value is not None]
    if extra:
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded already, with or without {', '.join(extra)}; leave it out"
            " here, and give it to tacit encode."
        )
    if study.output.resolve().is_relative_to(folder.resolve()):
        raise InvalidArgumentError(
            f"--output {str(study.output)!r} is in the folder of the private records, and a run is"
            " made to be published. Choose another folder."
        )
    if records.schema_digest != digest_of(schema):
        raise InvalidArgumentError(
            f"{str(folder)!r} was encoded with another schema. Give the --schema that it was"
            " encoded with, or encode the table again with this one."
        )
    if isinstance(schema.target, Target):
        require_classes(_some_labels(records), schema.target)
    return OnHost(records)


def require_classes(labels: NDArray[Any], target: Target) -> None:
    """Raises where all labels are the same."""
    if len(np.unique(labels)) < 2:
        raise InvalidArgumentError(
            f"column {target.name!r}: all rows are of one class, so nothing can be learnt. Add rows"
            " of the others. (Not for publication: it depends on the records.)"
        )


def _some_labels(records: StoredRecords) -> NDArray[Any]:
    """Returns the classes of the first records, up to where a second one occurs."""
    found: NDArray[Any] = np.zeros(0)
    for start in range(0, records.num_records, _BLOCK):
        block = records.read(np.arange(start, min(start + _BLOCK, records.num_records)))
        labels = np.asarray(block.y if block.mask is None else block.y[block.mask])
        found = np.unique(np.concatenate([found, labels]))
        if len(found) > 1:
            break
    return found


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
