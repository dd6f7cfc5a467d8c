"""Structure: refuse programs that cannot be split, with the name of the site and the remedy."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax

from tacit.errors import InvalidArgumentError
from tacit.models.programs.blanks import row_shapes
from tacit.models.programs.facts import SiteFacts, look_at
from tacit.models.programs.initial import initial_sites
from tacit.models.programs.rows import one_for_each_record
from tacit.models.programs.running import Program

__all__ = ["require_splittable"]

Facts: TypeAlias = Mapping[str, SiteFacts]


def require_splittable(
    program: Program, params: Mapping[str, Any], shapes: Sequence[jax.ShapeDtypeStruct]
) -> tuple[Facts, Facts]:
    """Raises unless records enter only where the record plate lets them.

    The program is run without values, on one record and on two. What is outside the record plate
    may depend on no record and must have the same shape in both; what is inside must have one row
    for each.

    Returns:
      The facts of the guide's and of the model's sites, on one record.
    """
    guide, model = _facts(program, params, row_shapes(shapes, 1))
    on_two = _facts(program, params, row_shapes(shapes, 2))
    for facts, other, whose in ((guide, on_two[0], "guide"), (model, on_two[1], "model")):
        _require_same_sites(facts, other, whose)
        for name, site in facts.items():
            if site.kind in ("sample", "param"):
                _require_rows(name, site, other[name], program.plate, whose)
                _require_no_record(name, site, program.plate, whose)
    _require_match(program, guide, model)
    _require_public_start(program, row_shapes(shapes, 1))
    return guide, model


def _facts(
    program: Program, params: Mapping[str, Any], shapes: Sequence[jax.ShapeDtypeStruct]
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


def _require_match(program: Program, guide: Facts, model: Facts) -> None:
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


def _require_public_start(program: Program, shapes: Sequence[jax.ShapeDtypeStruct]) -> None:
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
