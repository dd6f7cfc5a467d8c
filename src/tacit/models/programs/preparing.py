"""Preparing: find the record plate of a program, and set its guide up without a record."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpyro
from numpyro.handlers import seed, trace
from numpyro.infer.util import compute_log_probs

from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import Arguments
from tacit.models.programs.blanks import blank_records, row_shapes
from tacit.models.programs.facts import SiteFacts, Traced, look_at
from tacit.models.programs.guides import adopt_set_up, anywhere, autoguides_of, fresh_guide
from tacit.models.programs.plates import find_plate
from tacit.models.programs.running import Program
from tacit.typing import Array

__all__ = ["prepare_program"]


def prepare_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    plate: str | None,
) -> Program:
    """Returns a program that can be run on any number of records.

    Model and guide are run without values on all records, as NumPyro would run them, to learn which
    plate is the records' and which keys they draw. An autoguide is set up on a blank record.
    """
    shapes = row_shapes(arguments.records, arguments.num_records)
    facts = _facts_on_all(model, arguments, shapes)
    _require_supported(facts, "model")
    name = find_plate(facts, arguments.num_records, plate=plate)
    for part in autoguides_of(guide):
        _require_no_latent_of_records(_facts_on_all(part.model, arguments, shapes), name)
    program = Program(
        model=model,
        guide=fresh_guide(guide, name),
        build=arguments.build,
        plate=name,
        size=facts[name].sizes[0],
        model_takes_key=facts[name].takes_key,
        guide_takes_key=False,
    )
    _set_up(program, blank_records(row_shapes(shapes, 1)))
    adopt_set_up(guide, program.guide)

    def guide_on_all(records: Sequence[Array]) -> Traced:
        args, kwargs = arguments.build(records)
        return trace(seed(program.guide, jax.random.key(0))).get_trace(*args, **kwargs), {}

    of_guide = look_at(guide_on_all, shapes)
    _require_supported(of_guide, "guide")
    takes_key = name in of_guide and of_guide[name].takes_key
    return replace(program, guide_takes_key=takes_key)


def _facts_on_all(
    model: Callable[..., Any], arguments: Arguments, shapes: Sequence[jax.ShapeDtypeStruct]
) -> dict[str, SiteFacts]:
    """What the model is when NumPyro runs it on all records, with latents anywhere."""

    def run(records: Sequence[Array]) -> Traced:
        args, kwargs = arguments.build(records)
        seeded = seed(anywhere(model), jax.random.key(0))
        densities, sites = compute_log_probs(seeded, args, kwargs, {})
        return sites, densities

    return look_at(run, shapes)


def _require_no_latent_of_records(facts: Mapping[str, SiteFacts], plate: str) -> None:
    """Raises where an autoguide's model has latents in the record plate."""
    for name, site in facts.items():
        if site.kind == "sample" and not site.is_observed and plate in site.plates:
            raise InvalidArgumentError(
                f"the latent {name!r} belongs to a record (it is in the record plate {plate!r}),"
                " and an autoguide would hold a parameter for each record, which no noise could"
                " hide. Write a guide that computes its distribution from the record (an"
                " amortised guide), block it from the autoguide so that it is drawn from its"
                " prior, or sum it out in the model."
            )


def _set_up(program: Program, blank: Sequence[Array]) -> None:
    """Calls the guide once with values, since an autoguide keeps those of its first call."""
    args, kwargs = program.build(blank)
    guide, _ = program.with_rows(1, None)
    with jax.ensure_compile_time_eval(), numpyro.validation_enabled(False):
        trace(seed(guide, jax.random.key(0))).get_trace(*args, **kwargs)


def _require_supported(facts: Mapping[str, SiteFacts], whose: str) -> None:
    for name, site in facts.items():
        if site.kind == "mutable":
            raise InvalidArgumentError(
                f"the site {name!r} of the {whose} is mutable state, which would carry records from"
                " one step to the next past the clip (batch normalisation does). Use a module"
                " without state: GroupNorm or LayerNorm."
            )
        if site.kind == "sample" and site.is_discrete and not site.is_observed:
            raise InvalidArgumentError(
                f"the latent {name!r} of the {whose} is discrete, so it has no gradient. Sum it out"
                " in the model: numpyro.distributions.MixtureSameFamily for a mixture, or a"
                " log-sum-exp over its values in numpyro.factor."
            )
