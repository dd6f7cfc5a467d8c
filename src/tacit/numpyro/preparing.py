"""Preparing: what a first call fixes, found from shapes, settings and the program alone."""

from collections.abc import Callable
from typing import Any

import jax
from numpyro.optim import _NumPyroOptim

from tacit.errors import InvalidArgumentError
from tacit.models.programs import Arguments, split_program
from tacit.numpyro.losses import PrivateLoss
from tacit.numpyro.optimisers import reads_the_loss
from tacit.numpyro.prepared import Prepared, takes
from tacit.numpyro.settings import PrivacySettings

__all__ = ["prepare"]


def prepare(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    settings: PrivacySettings,
    optim: _NumPyroOptim,
    loss: PrivateLoss | None,
    plate: str | None,
    num_particles: int,
    num_steps: int | None,
    seed: int | None,
) -> Prepared:
    """Takes a program apart and finds its noise; of the records only shapes are used.

    Args:
      model: a NumPyro model.
      guide: its guide.
      arguments: of the call.
      settings: what was asked for.
      optim: an optimiser in NumPyro's shape.
      loss: which losses are released; None for none.
      plate: the name of the record plate; found where it is None.
      num_particles: how many draws of the latents are averaged.
      num_steps: how many steps the budget is for, where the settings do not say.
      seed: where keys are known.
    """
    program = split_program(
        model,
        guide,
        arguments,
        plate=plate,
        num_particles=num_particles,
    )
    params = jax.eval_shape(program.init, jax.random.key(0))
    resolved = settings.resolve(
        num_rows=arguments.num_records,
        optim=optim,
        loss=loss,
        num_steps=num_steps,
    )
    num_records = resolved.method.num_records
    if program.plate_size not in (num_records, arguments.num_records):
        raise InvalidArgumentError(
            f"the plate {program.plate!r} says that there are {program.plate_size} records, but"
            f" there are {num_records}. Correct it, or say num_obs_total={program.plate_size}"
            " if the program is called with batches of so many."
        )
    if not resolved.method.has_losses and reads_the_loss(optim, params):
        raise InvalidArgumentError(
            "optim uses the value of the loss, and there is none without a release. Give"
            " loss_release=PrivateLoss(...), or an optimiser that uses gradients only."
        )
    if not resolved.is_table and takes(model, "mask"):
        raise InvalidArgumentError(
            "the model must not have an argument named mask where it is called with batches:"
            " update has one, for padding. Rename the model's."
        )
    # Only public constants and shapes stay: no record outlives the call.
    shapes = jax.eval_shape(lambda: arguments.records)
    return Prepared(
        arguments=arguments._replace(records=shapes),
        program=program,
        resolved=resolved,
        seed=seed,
    )
