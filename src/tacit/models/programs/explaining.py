"""Explaining: what a private method would do with each site of a program."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from tacit.models.programs.analysing import analyse_program
from tacit.models.programs.arguments import signature_of, split_arguments
from tacit.models.programs.sites import Site

__all__ = ["ProgramReport", "explain_program"]


@dataclass(frozen=True, kw_only=True)
class ProgramReport:
    """How a program is split; print it.

    Attributes:
      plate: the record plate.
      num_records: how many records there are.
      private: the names of the arguments that hold records.
      sites: what each site is, how it is treated and why.
      is_checked: whether the split could be compared with NumPyro's density on made-up records.
    """

    plate: str
    num_records: int
    private: tuple[str, ...]
    sites: tuple[Site, ...]
    is_checked: bool

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
        return "\n".join([head, *table, checked])


def explain_program(
    model: Callable[..., Any],
    *args: Any,
    guide: Callable[..., Any] | None = None,
    plate: str | None = None,
    public: Collection[str] = (),
    **kwargs: Any,
) -> ProgramReport:
    """Returns what each site of a program is, how a private method treats it, and why.

    No value of a record is read. Other keyword arguments are the program's own.

    Args:
      model: a NumPyro model.
      *args: what it is called with.
      guide: its guide, if there is one already.
      plate: the name of the record plate; found where it is not given.
      public: names of arguments that hold no private value.

    Raises:
      InvalidArgumentError: if the program cannot be split; the message names the site and the
        remedy.

    Example:
      >>> import jax.numpy as jnp
      >>> import numpyro
      >>> import numpyro.distributions as dist
      >>> def model(x):
      ...     mean = numpyro.sample("mean", dist.Normal(0, 1))
      ...     with numpyro.plate("records", x.shape[0]):
      ...         numpyro.sample("x", dist.Normal(mean, 1), obs=x)
      >>> print(explain_program(model, jnp.arange(5.0)))
      5 records in the plate 'records', from the arguments x; all other arguments are public ...
      site  what it is     shape   treatment                why
      mean  shared latent  scalar  outside the clip, exact  all records share it
      x     observation    1       inside the clip          it belongs to a record of the plate ...
      On made-up records, shared part and record terms add up to NumPyro's density.
    """
    arguments = split_arguments(args, kwargs, public=public, signature=signature_of(model))
    found = analyse_program(model, guide, arguments, plate=plate)
    return ProgramReport(
        plate=found.program.plate,
        num_records=arguments.num_records,
        private=arguments.names,
        sites=found.sites,
        is_checked=found.is_checked,
    )
