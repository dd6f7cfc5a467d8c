"""Analysis: all that is found out about a program before a record is read."""

import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpyro
from numpyro.handlers import seed, trace
from numpyro.infer.autoguide import AutoGuide
from numpyro.infer.util import compute_log_probs

from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import Arguments, blank_records, shapes_with_rows
from tacit.models.programs.program import (
    GuidedProgram,
    adopt_set_up,
    anywhere,
    autoguides_of,
    fresh_guide,
    initial_sites,
    no_guide,
    possible_params,
    require_additive,
    require_private_guide,
)
from tacit.models.programs.sites import (
    ProgramSite,
    SiteFacts,
    Traced,
    describe_sites,
    look_at,
    one_for_each_record,
)
from tacit.typing import Array

__all__ = ["Analysis", "analyse_program", "find_plate", "prepare_program", "require_splittable"]


def find_plate(facts: Mapping[str, SiteFacts], num_records: int, *, plate: str | None) -> str:
    """Returns the name of the plate that holds every observed site with records in it.

    Args:
      facts: of a model that was run on all records.
      num_records: how many records there are.
      plate: the name that the caller gave, if any.

    Raises:
      InvalidArgumentError: if there is no such plate, or more than one.
    """
    observed = {name: site for name, site in facts.items() if site.is_observed and site.on_records}
    if not observed:
        raise InvalidArgumentError(
            "no observed site of the model depends on the records, so there is nothing to learn"
            " from them. Pass the records as arguments, and observe them by"
            " numpyro.sample(..., obs=...)."
        )
    plates = {name: site.sizes for name, site in facts.items() if site.kind == "plate"}
    if plate is not None:
        return _require_given(plate, plates, observed, num_records)
    fitting = [name for name, sizes in plates.items() if num_records in sizes]
    if not fitting:
        raise InvalidArgumentError(
            f"the model has no plate of {num_records} records (its plates: {plates or 'none'})."
            f' Put the site {next(iter(observed))!r} into \'with numpyro.plate("records",'
            " x.shape[0]):', so that a record's part of the density can be told from the others'."
        )
    holding = [name for name in fitting if all(name in site.plates for site in observed.values())]
    if not holding:
        raise InvalidArgumentError(_outside(fitting[0], observed))
    if len(holding) > 1:
        raise InvalidArgumentError(
            f"the plates {holding} could each be the one of the {num_records} records. Say which by"
            f" plate={holding[0]!r}."
        )
    return holding[0]


def _require_given(
    plate: str,
    plates: Mapping[str, tuple[int, int]],
    observed: Mapping[str, SiteFacts],
    num_records: int,
) -> str:
    if plate not in plates:
        raise InvalidArgumentError(f"plate must be one of {sorted(plates)}; got {plate!r}.")
    if num_records not in plates[plate]:
        raise InvalidArgumentError(
            f"plate {plate!r} has size {plates[plate][0]} and {plates[plate][1]} rows, but there"
            f" are {num_records} records. Make its size, or its subsample_size, x.shape[0]."
        )
    if not all(plate in site.plates for site in observed.values()):
        raise InvalidArgumentError(_outside(plate, observed))
    return plate


def _outside(plate: str, observed: Mapping[str, SiteFacts]) -> str:
    names = [name for name, site in observed.items() if plate not in site.plates]
    return (
        f"the site {names[0]!r} depends on records but is outside the record plate {plate!r}, so"
        " what one record adds to it cannot be bounded. Move it into that plate: every observed"
        " site with records must be in the same one."
    )


Facts: TypeAlias = Mapping[str, SiteFacts]


def require_splittable(
    program: GuidedProgram, params: Mapping[str, Any], shapes: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Facts, Facts]:
    """Raises unless records enter only where the record plate lets them.

    The program is run without values, on one record and on two. What is outside the record plate
    may depend on no record and must have the same shape in both; what is inside must have one row
    for each.

    Returns:
      The facts of the guide's and of the model's sites, on one record.
    """
    guide, model = _facts(program, params, shapes_with_rows(shapes, 1))
    on_two = _facts(program, params, shapes_with_rows(shapes, 2))
    for facts, other, whose in ((guide, on_two[0], "guide"), (model, on_two[1], "model")):
        _require_same_sites(facts, other, whose)
        for name, site in facts.items():
            if site.kind in ("sample", "param"):
                _require_rows(name, site, other[name], program.plate, whose)
                _require_no_record(name, site, program.plate, whose)
    _require_match(program, guide, model)
    _require_public_start(program, shapes_with_rows(shapes, 1))
    return guide, model


def _facts(
    program: GuidedProgram, params: Mapping[str, Any], shapes: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Facts, Facts]:
    def run(records: Any) -> Any:
        done = program.run(params, jax.random.key(0), records, jax.random.key(0))
        guide = {("guide", name): site for name, site in done.guide.items()}
        model = {("model", name): site for name, site in done.model.items()}
        densities = {("guide", name): value for name, value in done.log_guide.items()}
        densities |= {("model", name): value for name, value in done.log_model.items()}
        return guide | model, densities

    facts = look_at(run, shapes)
    guide = {name: site for (owner, name), site in facts.items() if owner == "guide"}
    model = {name: site for (owner, name), site in facts.items() if owner == "model"}
    return guide, model


def _require_same_sites(one: Facts, two: Facts, whose: str) -> None:
    different = set(one) ^ set(two)
    if different:
        raise InvalidArgumentError(
            f"the {whose} has the site {sorted(different)[0]!r} only for some numbers of records."
            " Its sites must not depend on how many records there are."
        )


def _require_rows(name: str, one: SiteFacts, two: SiteFacts, plate: str, whose: str) -> None:
    """Raises unless a site has one row for each record inside the plate, and none outside."""
    if one.kind == "param":
        if one.num_values != two.num_values:
            raise one_for_each_record(name)
        return
    if plate not in one.plates:
        if one.shape != two.shape or one.batch_shape != two.batch_shape:
            raise InvalidArgumentError(
                f"the site {name!r} of the {whose} has a row for each record but is outside the"
                f" record plate {plate!r}. Move it into that plate."
            )
        return
    if one.is_looped and not one.is_observed:
        raise InvalidArgumentError(
            f"the latent {name!r} of the {whose} belongs to a record and is drawn inside a scan,"
            " where it cannot have the record's own key. Draw its noise before the scan."
        )


def _require_no_record(name: str, site: SiteFacts, plate: str, whose: str) -> None:
    if site.kind != "sample" or plate in site.plates or not site.on_records:
        return
    what = "observation" if site.is_observed else "latent"
    raise InvalidArgumentError(
        f"the {what} {name!r} of the {whose} is outside the record plate {plate!r} but depends on"
        " records, so it cannot be computed without them, and what one record changes in it"
        " cannot be bounded. Use public constants there instead of statistics of the records, or"
        " move it into the plate."
    )


def _require_match(program: GuidedProgram, guide: Facts, model: Facts) -> None:
    for name, site in guide.items():
        if site.kind != "sample" or name not in model or model[name].is_observed:
            continue
        is_local = program.plate in model[name].plates
        if is_local != (program.plate in site.plates):
            inside, outside = ("model", "guide") if is_local else ("guide", "model")
            raise InvalidArgumentError(
                f"the latent {name!r} is inside the record plate {program.plate!r} in the {inside}"
                f" but not in the {outside}. It must be inside in both, or outside in both."
            )


def _require_public_start(program: GuidedProgram, shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
    """Raises where a parameter's start or constraint is a function of a record."""

    def run(records: Any) -> Any:
        guide, model = initial_sites(program, jax.random.key(0), jax.random.key(1), records)
        return {**model, **guide}, {}

    for name, site in look_at(run, shapes).items():
        if site.kind == "param" and site.on_records:
            raise InvalidArgumentError(
                f"the parameter {name!r} starts, or is bounded, at a value computed from records,"
                " which would let them out before the first step. Give it a public constant."
            )


def prepare_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    arguments: Arguments,
    *,
    plate: str | None,
) -> GuidedProgram:
    """Returns a program that can be run on any number of records.

    Model and guide are run without values on all records, as NumPyro would run them, to learn which
    plate is the records' and which keys they draw. An autoguide is set up on a blank record.
    """
    shapes = shapes_with_rows(arguments.records, arguments.num_records)
    facts = _facts_on_all(model, arguments, shapes)
    _require_supported(facts, "model")
    name = find_plate(facts, arguments.num_records, plate=plate)
    for part in autoguides_of(guide):
        _require_no_latent_of_records(_facts_on_all(part.model, arguments, shapes), name)
    program = GuidedProgram(
        model=model,
        guide=fresh_guide(guide, name),
        build=arguments.build,
        plate=name,
        size=facts[name].sizes[0],
        model_takes_key=facts[name].takes_key,
        guide_takes_key=False,
    )
    _set_up(program, blank_records(shapes_with_rows(shapes, 1)))
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


def _set_up(program: GuidedProgram, blank: Sequence[Array]) -> None:
    """Calls the guide once with values, since an autoguide keeps those of its first call.

    A function may call an autoguide, too. Where none exists there is nothing to set up, which saves
    the time of compiling the guide operation by operation.
    """
    kinds = set(map(type, [program.guide, *gc.get_objects()]))
    if not any(issubclass(kind, AutoGuide) for kind in kinds):
        return
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


class Analysis(NamedTuple):
    """What is known of a program that can be split.

    Attributes:
      program: ready to be run on any number of records.
      sites: what each is and how it is treated.
      facts: of the sites of model and guide, on one record.
      model: of the model's alone.
      guide: of the guide's alone; None where there is no guide.
      params: values at which constrained parameters may start.
      constraints: of the parameters.
      blank: one made-up record.
      is_checked: whether the split could be compared with NumPyro's density.
    """

    program: GuidedProgram
    sites: tuple[ProgramSite, ...]
    facts: Mapping[str, SiteFacts]
    model: Mapping[str, SiteFacts]
    guide: Mapping[str, SiteFacts] | None
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
    shapes = shapes_with_rows(arguments.records, 1)
    blank = blank_records(shapes)
    params, constraints = possible_params(program, blank)
    of_guide, of_model = require_splittable(program, params, shapes)
    facts = {**of_guide, **of_model}
    return Analysis(
        program=program,
        sites=describe_sites(None if guide is None else of_guide, of_model, program.plate),
        facts=facts,
        model=of_model,
        guide=None if guide is None else of_guide,
        params=params,
        constraints=constraints,
        blank=blank,
        is_checked=require_additive(program, params, shapes, facts),
    )
