"""Analysing: all that is found out about a program before a record is read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from tacit.models.programs.agreement import require_agreement
from tacit.models.programs.arguments import Arguments
from tacit.models.programs.blanks import blank_records, row_shapes
from tacit.models.programs.facts import SiteFacts
from tacit.models.programs.guides import anywhere, no_guide, require_private_guide
from tacit.models.programs.initial import initial_params
from tacit.models.programs.preparing import prepare_program
from tacit.models.programs.running import Program
from tacit.models.programs.sites import Site, describe_sites
from tacit.models.programs.structure import require_splittable
from tacit.typing import Array

__all__ = ["Analysis", "analyse_program"]


class Analysis(NamedTuple):
    """What is known of a program that can be split.

    Attributes:
      program: ready to be run on any number of records.
      sites: what each is and how it is treated.
      facts: of the sites of model and guide, on one record.
      params: values at which constrained parameters may start.
      constraints: of the parameters.
      blank: one made-up record.
      is_checked: whether the split could be compared with NumPyro's density.
    """

    program: Program
    sites: tuple[Site, ...]
    facts: Mapping[str, SiteFacts]
    params: Mapping[str, Any]
    constraints: Mapping[str, Any]
    blank: Sequence[Array]
    is_checked: bool


def analyse_program(
    model: Callable[..., Any],
    guide: Callable[..., Any] | None,
    arguments: Arguments,
    *,
    plate: str | None,
) -> Analysis:
    """Finds out how a program can be split, from shapes and made-up records alone.

    Args:
      model: the model.
      guide: the guide; None puts latents anywhere in their supports.
      arguments: what they are called with.
      plate: the name of the record plate, if the caller knows it.

    Raises:
      InvalidArgumentError: if it cannot be split.
    """
    require_private_guide(guide)
    run_model = anywhere(model) if guide is None else model
    program = prepare_program(run_model, guide or no_guide, arguments, plate=plate)
    shapes = row_shapes(arguments.records, 1)
    blank = blank_records(shapes)
    keys = jax.random.split(jax.random.key(0))
    params, constraints = initial_params(program, keys[0], keys[1], blank)
    of_guide, of_model = require_splittable(program, params, shapes)
    facts = {**of_guide, **of_model}
    return Analysis(
        program=program,
        sites=describe_sites(None if guide is None else of_guide, of_model, program.plate),
        facts=facts,
        params=params,
        constraints=constraints,
        blank=blank,
        is_checked=require_agreement(program, params, shapes, facts),
    )
