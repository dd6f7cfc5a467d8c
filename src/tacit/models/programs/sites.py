"""Sites: what each statement of a program is, and how it is treated."""

from dataclasses import dataclass
from typing import Any

from tacit.models.programs.running import Program, Run

__all__ = ["Site", "describe_sites"]


@dataclass(frozen=True, kw_only=True)
class Site:
    """One statement of a program.

    Attributes:
      name: the site.
      role: what it is.
      treatment: where its density goes.
      shape: of its value; for what is inside the record plate, that of one record.
      reason: why.
    """

    name: str
    role: str
    treatment: str
    shape: tuple[int, ...]
    reason: str


def describe_sites(program: Program, run: Run) -> tuple[Site, ...]:
    """Returns the sites in the order in which the model, then the guide, visits them."""
    del program, run
    return ()


_ = Any
