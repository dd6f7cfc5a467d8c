"""Checkpoints: all that a run needs to go on, except its noise key, which is never stored."""

import functools
import math
import os
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import jax
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tacit import _artefact
from tacit.errors import TacitError
from tacit.inference.compilation import step_on_table
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.privacy.accounting import round_up
from tacit.privacy.cost import Cost, event_from_json, event_to_json
from tacit.privacy.statement.text import ARITHMETIC
from tacit.privacy.stopping import Declared
from tacit.rng import seeded_key
from tacit.tables import Table
from tacit.typing import Record, Tree

__all__ = [
    "Checkpoint",
    "OnProgress",
    "ProgressBar",
    "load_checkpoint",
    "save_checkpoint",
]


class OnProgress(Protocol):
    """Is told how far a run is; all of it is public."""

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Is called after each chunk with steps made, steps planned and epsilon spent so far."""
        ...


class ProgressBar:
    """A bar in the terminal or the notebook.

    Example:
      >>> with ProgressBar("DP-SGLD") as bar:  # doctest: +SKIP
      ...     fit(plan, model, records, budget=budget, progress=bar)
    """

    def __init__(self, description: str = "fit", *, console: Console | None = None) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} steps"),
            TextColumn("epsilon {task.fields[epsilon]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task(description, total=None, epsilon="0")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def __call__(self, *, step: int, num_steps: int, epsilon: float) -> None:
        """Moves the bar."""
        text = "infinity" if math.isinf(epsilon) else round_up(epsilon)
        self._bar.update(self._task, completed=step, total=num_steps, epsilon=text)


class Checkpoint(NamedTuple):
    """A run after ``step`` steps. A resumed run draws a fresh key, so no noise is ever reused.

    What led to it goes with it, so that the statement of a resumed run counts all that was
    executed, whatever plan it is resumed under, and at least what was declared. Two runs resumed
    from one checkpoint are two sets of releases; a ledger counts both.

    Attributes:
      step: how many steps of every chain were made (and are paid for).
      states: the chains' states; leaves have a leading chain axis.
      kept: states retained so far, ``(num_chains, num_kept, ...)``; None before the first.
      info: mean `Info` of the steps just before each of them.
      cost: all that was executed to come here, with what the plan had spent before.
      run_id: what the ledger called the run; None where there was no ledger.
      declared: what the run was declared to be before its first step, which its statement is made
        of however early it ends; None where that is not known.
    """

    step: int
    states: Tree
    kept: Tree
    info: Tree
    cost: Cost
    run_id: str | None = None
    declared: Declared | None = None


def save_checkpoint(checkpoint: Checkpoint, directory: str | os.PathLike[str]) -> None:
    """Writes ``checkpoint.safetensors`` and ``checkpoint.json``."""
    arrays = _artefact.flatten(
        {"states": checkpoint.states, "kept": checkpoint.kept, "info": checkpoint.info},
        prefix="checkpoint",
    )
    _artefact.write(
        directory,
        "checkpoint",
        arrays,
        {
            "step": checkpoint.step,
            "has_kept": checkpoint.kept is not None,
            "cost": event_to_json(checkpoint.cost.event),
            "arithmetic": ARITHMETIC,
            "is_secure": checkpoint.cost.is_secure,
            "run_id": checkpoint.run_id,
            "declared": _declared_to_json(checkpoint.declared),
        },
    )


def load_checkpoint(
    directory: str | os.PathLike[str],
    plan: Plan,
    model: Model,
    records: Record | Table,
) -> Checkpoint:
    """Reads a checkpoint of a run of ``plan``; of the records only the shapes are used.

    Raises:
      TacitError: where it is missing, damaged or of another plan, or where its steps were made in
        another arithmetic: the statement of the resumed run would not be true of them.
    """
    arrays, document = _artefact.read(directory, "checkpoint")
    if document.get("arithmetic") != ARITHMETIC:
        raise TacitError(
            f"the checkpoint in {directory} was made by a version of tacit with other noise. Resume"
            " it with that version, or begin anew."
        )
    kernel = plan.method.build(model)
    key = seeded_key(0)
    state = jax.eval_shape(kernel.init, key)
    _, info = jax.eval_shape(functools.partial(step_on_table, kernel), key, state, records)
    states = _artefact.unflatten(
        arrays, state, prefix="checkpoint['states']", leading=(plan.num_chains,)
    )
    kept = None
    if document["has_kept"]:
        retained = {"kept": jax.eval_shape(kernel.retain, state), "info": info}
        kept, info = (
            _artefact.unflatten(
                arrays,
                template,
                prefix=f"checkpoint['{name}']",
                leading=(plan.num_chains, None),
            )
            for name, template in retained.items()
        )
    return Checkpoint(
        step=document["step"],
        states=states,
        kept=kept,
        info=None if kept is None else info,
        cost=Cost(event_from_json(document["cost"]), is_secure=document["is_secure"]),
        run_id=document["run_id"],
        # Earlier versions did not write it.
        declared=_declared_from_json(document.get("declared")),
    )


def _declared_to_json(declared: Declared | None) -> dict[str, Any] | None:
    if declared is None:
        return None
    return {"num_steps": declared.num_steps, "cost": event_to_json(declared.cost)}


def _declared_from_json(document: dict[str, Any] | None) -> Declared | None:
    if document is None:
        return None
    return Declared(document["num_steps"], event_from_json(document["cost"]))
