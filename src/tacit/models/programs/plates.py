"""Plates: find the one in which a program has its records."""

from collections.abc import Mapping

from tacit.errors import InvalidArgumentError
from tacit.models.programs.facts import SiteFacts

__all__ = ["find_plate"]


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
