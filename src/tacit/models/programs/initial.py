"""Initial values: parameters start where NumPyro starts them, without a record."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpyro
from numpyro.distributions import constraints
from numpyro.handlers import replay, seed, substitute, trace

from tacit.models.programs.facts import SiteTrace
from tacit.models.programs.guides import fresh_guide
from tacit.models.programs.running import Program
from tacit.typing import Array, Key

__all__ = ["initial_params", "initial_sites"]


def initial_sites(
    program: Program, model_seed: Key, guide_seed: Key, records: Sequence[Array]
) -> tuple[SiteTrace, SiteTrace]:
    """Returns the sites of guide and model as ``SVI.init`` visits them."""
    args, kwargs = program.build(records)
    guide, model = program.with_rows(records[0].shape[0], None)
    guide_sites = trace(seed(guide, guide_seed)).get_trace(*args, **kwargs)
    values = {name: site["value"] for name, site in _params(guide_sites).items()}
    started = substitute(replay(seed(model, model_seed), guide_sites), values)
    return guide_sites, trace(started).get_trace(*args, **kwargs)


def initial_params(
    program: Program, model_seed: Key, guide_seed: Key, blank: Sequence[Array]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the values with which constrained parameters start, and their constraints.

    An autoguide is set up anew, since it finds its start when it is first called.
    """
    anew = replace(program, guide=fresh_guide(program.guide, program.plate))
    # Distributions of blank records need not be possible ones.
    with numpyro.validation_enabled(False):
        guide_sites, model_sites = initial_sites(anew, model_seed, guide_seed, blank)
    found = {**_params(model_sites), **_params(guide_sites)}
    values = {name: site["value"] for name, site in found.items()}
    bounds = {
        name: site["kwargs"].get("constraint", constraints.real) for name, site in found.items()
    }
    return values, bounds


def _params(sites: SiteTrace) -> dict[str, Any]:
    return {name: site for name, site in sites.items() if site["type"] == "param"}
