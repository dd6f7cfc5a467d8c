"""Agreement: a program's density on several records must be the sum of what each one adds.

A program may mix records inside its plate (a softmax over them, a mean taken before the plate). Run
on one record at a time it is still private, but it is another program than the one that was
written. So both are compared site by site, on made-up records.
"""

import inspect
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.distributions import Delta

from tacit.errors import InvalidArgumentError
from tacit.models.programs.blanks import made_up_records, row_shapes
from tacit.models.programs.facts import SiteFacts
from tacit.models.programs.running import Program, Run
from tacit.typing import Array, Key

__all__ = ["require_agreement"]

_NUM_ROWS = 3
_TOLERANCE = 1e-3
"""Relative to the sizes of the terms: float32 sums of thousands of values differ by 1e-5."""

Values: TypeAlias = dict[str, Array]


def require_agreement(
    program: Program,
    params: Mapping[str, Any],
    shapes: Sequence[jax.ShapeDtypeStruct],
    facts: Mapping[str, SiteFacts],
) -> bool:
    """Raises where a site's density on several records is not the sum of its one-record terms.

    Args:
      program: what to check.
      params: constrained parameters.
      shapes: of the records.
      facts: of the sites of guide and model.

    Returns:
      Whether it could be compared. A program that has no finite density on any made-up record
      cannot be, and a warning says so.
    """
    shared_key, own_key = jax.random.split(jax.random.key(0))

    # It runs a few times at most: compiling it well would take longer than that.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def compare(records: Sequence[Array]) -> tuple[Values, Values]:
        def alone(record: Sequence[Array], key: Key) -> tuple[Values, Values]:
            run = program.run(params, shared_key, [leaf[None] for leaf in record], key)
            return _densities(run), _own_latents(run, facts, program.plate)

        keys = jax.random.split(own_key, _NUM_ROWS)
        apart, latents = jax.vmap(alone)(list(records), keys)
        rows = {
            name: _as_rows(value, facts[name], program.plate) for name, value in latents.items()
        }
        together = program.run({**params, **rows}, shared_key, records, own_key)
        return apart, _densities(together)

    for records in made_up_records(row_shapes(shapes, _NUM_ROWS)):
        apart, together = jax.device_get(compare(records))
        for label, values in apart.items():
            name = label.removeprefix("guide: ")
            # A sum is finite only where its terms are: one record alone has no standard deviation.
            mixes = np.isfinite(together[label]) and not np.all(np.isfinite(values))
            if np.isfinite(together[label]) and not mixes:
                expected = np.sum(values) if program.plate in facts[name].plates else values[0]
                size = 1.0 + np.sum(np.abs(values))
                mixes = np.abs(expected - together[label]) > _TOLERANCE * size
            if mixes:
                raise InvalidArgumentError(
                    f"the density of the site {name!r} on {_NUM_ROWS} made-up records is not the"
                    " sum of what each adds when the program is run on it alone: the program mixes"
                    f" records of the plate {program.plate!r} (a mean, a standard deviation, a"
                    " softmax, an index into a table of its own). Write it such that each record"
                    " sees itself, public constants, parameters and latents only."
                )
        if all(np.all(np.isfinite(value)) for value in [*apart.values(), *together.values()]):
            return True
    warnings.warn(
        "the program has no finite density on any made-up record, so it could not be checked that"
        " it treats its records apart. What it learns is private all the same, but a record whose"
        " density is not finite counts for nothing. If the program computes statistics over"
        " records, take them from public knowledge.",
        stacklevel=_outside(),
    )
    return False


def _outside() -> int:
    """The stack level, for a warning in the function that asks, of whoever called the library."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] == "tacit":
        frame, level = frame.f_back, level + 1
    return level


def _densities(run: Run) -> Values:
    guide = {f"guide: {name}": value for name, value in run.log_guide.items()}
    return {**run.log_model, **guide}


def _own_latents(run: Run, facts: Mapping[str, SiteFacts], plate: str) -> Values:
    """A record's own latents, but for those that are functions of it: they need no fixing."""
    return {
        name: site["value"]
        for name, site in [*run.model.items(), *run.guide.items()]
        if site["type"] == "sample"
        and not site["is_observed"]
        and plate in facts[name].plates
        and not _is_delta(run.guide.get(name, site)["fn"])
    }


def _is_delta(distribution: Any) -> bool:
    while hasattr(distribution, "base_dist"):
        distribution = distribution.base_dist
    return isinstance(distribution, Delta)


def _as_rows(values: Array, site: SiteFacts, plate: str) -> Array:
    """Joins the values of records, run one by one, along the record plate."""
    axis = site.plates[plate] - (site.event_dim or 0)
    return jnp.concatenate(list(values), axis=axis)
