"""Sites: what each statement of a program is, how it is treated, and why."""

from collections.abc import Mapping
from dataclasses import dataclass

from tacit.models.programs.facts import SiteFacts

__all__ = ["Site", "describe_sites"]

_INSIDE = "inside the clip"
_OUTSIDE = "outside the clip, exact"
_OPTIMISED = "optimised"


@dataclass(frozen=True, kw_only=True)
class Site:
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
) -> tuple[Site, ...]:
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


def _site(name: str, site: SiteFacts, guide: Mapping[str, SiteFacts] | None, plate: str) -> Site:
    role, treatment, reason = _role(name, site, guide, plate)
    return Site(name=name, role=role, treatment=treatment, shape=site.shape, reason=reason)


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
