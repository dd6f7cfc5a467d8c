"""Checkpoints: all that a run needs to go on, except its noise key, which is never stored."""

import os
from typing import NamedTuple

import jax

from tacit import _artefact
from tacit.inference.plan import Plan
from tacit.models import Model
from tacit.rng import seeded_key
from tacit.typing import Record, Tree

__all__ = ["Checkpoint", "load_checkpoint", "save_checkpoint"]


class Checkpoint(NamedTuple):
    """A run after ``step`` steps. A resumed run draws a fresh key, so no noise is ever reused.

    Two runs resumed from one checkpoint are two sets of releases; a ledger counts both.

    Attributes:
      step: how many steps of every chain were made (and are paid for).
      states: the chains' states; leaves have a leading chain axis.
      kept: states retained so far, ``(num_chains, num_kept, ...)``; None before the first.
      info: mean `Info` of the steps just before each of them.
    """

    step: int
    states: Tree
    kept: Tree
    info: Tree


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
        {"step": checkpoint.step, "has_kept": checkpoint.kept is not None},
    )


def load_checkpoint(
    directory: str | os.PathLike[str], plan: Plan, model: Model, records: Record
) -> Checkpoint:
    """Reads a checkpoint of a run of ``plan``; of the records only the shapes are used."""
    arrays, document = _artefact.read(directory, "checkpoint")
    kernel = plan.method.build(model)
    key = seeded_key(0)
    state = jax.eval_shape(kernel.init, key)
    _, info = jax.eval_shape(kernel.step, key, state, records)
    template: dict[str, Tree] = {"states": state, "kept": None, "info": None}
    if document["has_kept"]:
        template |= {"kept": jax.eval_shape(kernel.retain, state), "info": info}
    tree = _artefact.unflatten(arrays, template, prefix="checkpoint")
    return Checkpoint(document["step"], tree["states"], tree["kept"], tree["info"])
