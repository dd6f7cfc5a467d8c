"""Sites: what an abstract run says of each statement of a program, and how it is treated."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from numpyro.ops.provenance import eval_provenance

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.typing import Array

__all__ = [
    "Alignment",
    "ProgramReport",
    "ProgramSite",
    "SiteFacts",
    "SiteTrace",
    "Traced",
    "aligned_sites",
    "describe_sites",
    "in_plate",
    "look_at",
    "one_for_each_record",
]

SiteTrace: TypeAlias = Mapping[Any, Any]
"""The messages of a program's sites by name, as NumPyro's ``trace`` handler gives them."""

Traced: TypeAlias = tuple[SiteTrace, Mapping[Any, Array]]
"""The sites of a run, and the log densities of those that have one."""


class SiteFacts(NamedTuple):
    """What is known of a site without any value.

    Attributes:
      kind: NumPyro's word: sample, param, plate, deterministic, mutable.
      is_observed: whether its value was given.
      is_auxiliary: whether NumPyro was told that it is no latent (factors, parts of guides).
      is_discrete: whether it takes discrete values.
      is_looped: whether it stands in the body of a ``scan``.
      plates: the names of the plates that it is in, and their dimensions.
      shape: of its value.
      num_values: how many numbers it has; a module whose weights are all random keeps none.
      batch_shape: of its distribution; of a parameter, its shape.
      event_dim: of its distribution, or as declared for a parameter.
      sizes: of a plate, its declared size and its number of rows.
      takes_key: of a plate, whether it draws indices.
      on_records: whether its value, density or constraint depends on a record.
    """

    kind: str
    is_observed: bool
    is_auxiliary: bool
    is_discrete: bool
    is_looped: bool
    plates: Mapping[str, int]
    shape: tuple[int, ...]
    num_values: int
    batch_shape: tuple[int, ...]
    event_dim: int | None
    sizes: tuple[int, int]
    takes_key: bool
    on_records: bool


def look_at(
    run: Callable[[Sequence[Array]], Traced], shapes: Sequence[jax.ShapeDtypeStruct]
) -> dict[Any, SiteFacts]:
    """Returns the facts of each site of a run on records of these shapes.

    Raises:
      InvalidArgumentError: if the program needs values of records to decide what to do.
    """
    facts: dict[Any, SiteFacts] = {}

    def results(records: Sequence[Array]) -> dict[Any, Any]:
        sites, log_probs = run(records)
        facts.update({name: _facts(site) for name, site in sites.items()})
        return {name: _results(site, log_probs.get(name)) for name, site in sites.items()}

    try:
        origins = eval_provenance(results, records=list(shapes))
    except (jax.errors.JAXTypeError, jax.errors.JAXIndexError) as error:
        raise InvalidArgumentError(
            "the program needs the values of records to decide what to do, which would let them"
            " out: write it with jax.numpy, with sizes and choices from shapes and public"
            " arguments. A NumPy array that the program closes over and indexes (table[index]) has"
            f" the same effect: pass it as an argument. JAX says: {error}"
        ) from error
    return {
        name: known._replace(on_records=any(jax.tree.leaves(origins[name], is_leaf=_is_origin)))
        for name, known in facts.items()
    }


def _is_origin(value: object) -> bool:
    return isinstance(value, frozenset)


def _results(site: Any, log_prob: Any) -> list[Any]:
    """All that a site adds to an objective, or to its start."""
    if site["type"] not in ("sample", "param"):
        return []
    values = [log_prob, site["value"], site["scale"], site["kwargs"].get("constraint")]
    return [leaf for leaf in jax.tree.leaves(values) if isinstance(leaf, jax.Array)]


def _facts(site: Any) -> SiteFacts:
    kind = site["type"]
    is_sample = kind == "sample"
    shape = jnp.shape(site["value"]) if kind in ("sample", "plate", "deterministic") else ()
    if kind == "param" and len(jax.tree.leaves(site["value"])) == 1:
        shape = jnp.shape(jax.tree.leaves(site["value"])[0])
    fn = site.get("fn")
    return SiteFacts(
        kind=kind,
        is_observed=bool(site.get("is_observed", False)),
        is_auxiliary=is_sample and bool(site["infer"].get("is_auxiliary", False)),
        is_discrete=is_sample and _is_discrete(fn),
        is_looped=bool(site.get("_control_flow_done", False)),
        plates={frame.name: frame.dim for frame in site.get("cond_indep_stack", ())},
        shape=tuple(shape),
        num_values=_tree.size(site["value"]) if kind in ("sample", "param") else 0,
        batch_shape=tuple(fn.batch_shape) if is_sample and fn is not None else tuple(shape),
        event_dim=len(fn.event_shape)
        if is_sample and fn is not None
        else site.get("kwargs", {}).get("event_dim"),
        sizes=(int(site["args"][0]), len(site["value"])) if kind == "plate" else (0, 0),
        takes_key=kind == "plate" and site["kwargs"]["rng_key"] is not None,
        on_records=False,
    )


def _is_discrete(fn: Any) -> bool:
    support = fn.support
    return support is not None and bool(support.is_discrete)


def in_plate(site: Any, plate: str) -> bool:
    """Whether a site of a trace stands inside a plate."""
    return any(frame.name == plate for frame in site.get("cond_indep_stack", ()))


def one_for_each_record(name: str) -> InvalidArgumentError:
    """Returns the refusal of a parameter that has an entry for each record."""
    return InvalidArgumentError(
        f"the parameter {name!r} has an entry for each record. It would hold that record's own"
        " value, which no noise could hide. Make it a function of the record (an amortised"
        " guide), or a latent in a plate of public groups."
    )


_INSIDE = "inside the clip"
_OUTSIDE = "outside the clip, exact"
_OPTIMISED = "optimised"


@dataclass(frozen=True, kw_only=True)
class ProgramSite:
    """One statement of a program.

    Attributes:
      name: the site.
      role: what it is.
      treatment: where its density goes.
      shape: of its value; inside the record plate, that of one record with an axis of length 1.
      reason: why.
    """

    name: str
    role: str
    treatment: str
    shape: tuple[int, ...]
    reason: str


def describe_sites(
    guide: Mapping[str, SiteFacts] | None, model: Mapping[str, SiteFacts], plate: str
) -> tuple[ProgramSite, ...]:
    """Returns the sites that have a density or are optimised: the model's, then the guide's own.

    Args:
      guide: facts of the guide's sites; None where there is no guide.
      model: facts of the model's sites.
      plate: the record plate.
    """
    sites = [_site(name, site, guide, plate) for name, site in model.items() if _is_described(site)]
    for name, site in (guide or {}).items():
        if name not in model and _is_described(site):
            sites.append(_site(name, site, guide, plate))
    return tuple(sites)


def _is_described(site: SiteFacts) -> bool:
    return site.kind == "sample" or (site.kind == "param" and site.num_values > 0)


def _site(
    name: str, site: SiteFacts, guide: Mapping[str, SiteFacts] | None, plate: str
) -> ProgramSite:
    role, treatment, reason = _role(name, site, guide, plate)
    return ProgramSite(name=name, role=role, treatment=treatment, shape=site.shape, reason=reason)


def _role(
    name: str, site: SiteFacts, guide: Mapping[str, SiteFacts] | None, plate: str
) -> tuple[str, str, str]:
    if site.kind == "param":
        return "parameter", _OPTIMISED, "its gradient is clipped, summed and noised"
    is_inside = plate in site.plates
    if site.is_observed:
        what = "factor" if site.is_auxiliary else "observation"
        if is_inside:
            return what, _INSIDE, f"it belongs to a record of the plate {plate!r}"
        return what, _OUTSIDE, "no record is in it"
    is_left_out = guide is not None and name not in guide
    drawn = "; the guide leaves it out, so it is drawn from its prior" if is_left_out else ""
    if is_inside:
        if guide is not None and not is_left_out:
            drawn = "; its guide is a function of the record"
        return "local latent", _INSIDE, f"each record of the plate {plate!r} has its own{drawn}"
    role, reason = _shared_role(site)
    return role, _OUTSIDE, f"{reason}{drawn}"


def _shared_role(site: SiteFacts) -> tuple[str, str]:
    if site.is_auxiliary:
        return "part of the guide", "the guide makes shared latents of it"
    if site.plates:
        plates = ", ".join(f"{plate!r}" for plate in site.plates)
        return "group latent", f"one for each place of the plate {plates}, of a public size"
    return "shared latent", "all records share it"


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """What gradients are released with respect to: the shared draw, or the guide's parameters.

    All records of a step share the guide's draw of the latents. Where a record is seen through that
    draw alone, the gradient with respect to it is all there is to release: the guide's own gradient
    follows from it, without another look at a record.

    Attributes:
      sites: the shared latents on which densities of records depend; none where ``obstacle``.
      num_drawn: how many unconstrained numbers they are.
      num_params: how many parameters are optimised.
      obstacle: why the guide's parameters are taken instead; None where they are not.
    """

    sites: tuple[str, ...] = ()
    num_drawn: int = 0
    num_params: int = 0
    obstacle: str | None = None

    def __str__(self) -> str:
        if self.obstacle is None:
            return (
                "Gradients are released with respect to the shared draw"
                f" ({', '.join(self.sites)}): {self.num_drawn} numbers instead of"
                f" {self.num_params}"
            )
        return (
            "Gradients are released with respect to the guide's parameters"
            f" ({self.num_params} numbers), because {self.obstacle}"
        )


def aligned_sites(
    sites: tuple[ProgramSite, ...], alignment: Alignment | None
) -> tuple[ProgramSite, ...]:
    """Returns the sites with what an aligned release changes: nobody is asked about parameters."""
    if alignment is None or alignment.obstacle is not None:
        return sites
    reason = "its gradient follows from that at the shared draw"
    return tuple(
        replace(site, reason=reason) if site.treatment == _OPTIMISED else site for site in sites
    )


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """How a program is split; print it.

    Attributes:
      plate: the record plate.
      num_records: how many records there are.
      private: the names of the arguments that hold records.
      sites: what each site is, how it is treated and why.
      is_checked: whether the split could be compared with NumPyro's density on made-up records.
      alignment: what gradients are released with respect to; None where there is no guide yet.
    """

    plate: str
    num_records: int
    private: tuple[str, ...]
    sites: tuple[ProgramSite, ...]
    is_checked: bool
    alignment: Alignment | None = None

    def __str__(self) -> str:
        rows = [("site", "what it is", "shape", "treatment", "why")]
        rows += [
            (
                site.name,
                site.role,
                "x".join(map(str, site.shape)) or "scalar",
                site.treatment,
                site.reason,
            )
            for site in self.sites
        ]
        wide = [max(len(row[column]) for row in rows) for column in range(4)]
        table = [
            "  ".join(
                [*(cell.ljust(width) for cell, width in zip(row, wide, strict=False)), row[4]]
            )
            for row in rows
        ]
        checked = (
            "On made-up records, shared part and record terms add up to NumPyro's density."
            if self.is_checked
            else "It has no finite density on any made-up record, so the split was not checked."
        )
        head = (
            f"{self.num_records} records in the plate {self.plate!r}, from the arguments"
            f" {', '.join(self.private)}; all other arguments are public constants."
        )
        released = [] if self.alignment is None else [f"{self.alignment}."]
        return "\n".join([head, *table, *released, checked])
