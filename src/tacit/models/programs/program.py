"""A program and its guide on a few records: run, started and compared with its parts.

A program may mix records inside its plate (a softmax over them, a mean taken before the plate). Run
on one record at a time it is still private, but it is another program than the one that was
written. So both are compared site by site, on made-up records.
"""

import copy
import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro.distributions import Delta, constraints
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import autoguide
from numpyro.infer.initialization import init_to_uniform
from numpyro.infer.util import compute_log_probs
from numpyro.primitives import Messenger

from tacit.compiling import compiled_once
from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import Call, RecordRows, made_up_records, shapes_with_rows
from tacit.models.programs.sites import SiteFacts, SiteTrace, in_plate
from tacit.typing import Array, Key, Scalar

__all__ = [
    "GuidedProgram",
    "ProgramRun",
    "adopt_set_up",
    "anywhere",
    "autoguides_of",
    "fresh_guide",
    "initial_params",
    "initial_sites",
    "no_guide",
    "possible_params",
    "require_additive",
    "require_private_guide",
]

_READS_ALL_RECORDS = (
    autoguide.AutoDAIS,
    autoguide.AutoSemiDAIS,
    autoguide.AutoSurrogateLikelihoodDAIS,
    autoguide.AutoLaplaceApproximation,
)


def require_private_guide(guide: Any) -> None:
    """Raises for autoguides whose own working reads every record past the clip."""
    for part in autoguides_of(guide):
        if isinstance(part, _READS_ALL_RECORDS):
            raise InvalidArgumentError(
                f"guide must not be {type(part).__name__}: its own working (a Hessian, or steps"
                " along the likelihood) reads every record, past the clip. Use AutoNormal,"
                " AutoMultivariateNormal or AutoLowRankMultivariateNormal."
            )


def autoguides_of(guide: Any) -> list[Any]:
    """Returns the parts of a guide that NumPyro made, each with a model of its own."""
    if isinstance(guide, autoguide.AutoGuideList):
        return [part for each in guide for part in autoguides_of(each)]
    return [guide] if isinstance(guide, autoguide.AutoGuide) else []


def fresh_guide(guide: Any, plate: str) -> Any:
    """Returns a copy of an autoguide that was not set up; other guides as they are.

    An autoguide keeps what it was first called with, and looks at the model's density there. The
    copy's model has one row in its record plate and does not look at observations inside it.
    """
    if not isinstance(guide, autoguide.AutoGuide):
        return guide
    fresh = copy.copy(guide)
    for name, value in vars(guide).items():
        if isinstance(value, dict):
            setattr(fresh, name, dict(value))
    fresh.prototype_trace = None
    fresh.model = RecordRows(
        _Unobserved(guide.model, plate), plate=plate, num_rows=1, takes_key=False, record_key=None
    )
    if isinstance(guide, autoguide.AutoGuideList):
        fresh._guides = [fresh_guide(part, plate) for part in guide]
    return fresh


def adopt_set_up(guide: Any, fresh: Any) -> None:
    """Sets an autoguide up as its copy was, in place of whatever it kept before."""
    if not isinstance(guide, autoguide.AutoGuide):
        return
    own = {"model", "_guides"}
    vars(guide).update({name: value for name, value in vars(fresh).items() if name not in own})
    if isinstance(guide, autoguide.AutoGuideList):
        for part, fresh_part in zip(guide, fresh, strict=True):
            adopt_set_up(part, fresh_part)


def no_guide(*args: Any, **kwargs: Any) -> None:
    """A guide that leaves out every latent."""


def anywhere(model: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the model with latents that are drawn from their supports, whatever their prior.

    Unlike the prior itself, this can be drawn from for every continuous latent.
    """

    def draw(site: Any) -> Any:
        is_latent = site["type"] == "sample" and not site["is_observed"]
        if not is_latent or site["value"] is not None or site["fn"].support.is_discrete:
            return None
        if site["kwargs"]["rng_key"] is None:
            site["kwargs"]["rng_key"] = numpyro.prng_key()
        return init_to_uniform(site)

    run: Callable[..., Any] = substitute(model, substitute_fn=draw)
    return run


class _Unobserved(Messenger):  # type: ignore[misc]
    """Leaves the observations in a plate out of the density."""

    def __init__(self, fn: Callable[..., Any], plate: str) -> None:
        super().__init__(fn)
        self._plate = plate

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "sample" and msg["is_observed"] and in_plate(msg, self._plate):
            msg["fn"] = msg["fn"].mask(False)


class ProgramRun(NamedTuple):
    """One run of guide and model.

    Attributes:
      guide: the guide's sites.
      model: the model's sites.
      log_guide: the log density at each of the guide's sites.
      log_model: the log density at each of the model's sites.
    """

    guide: SiteTrace
    model: SiteTrace
    log_guide: Mapping[str, Scalar]
    log_model: Mapping[str, Scalar]

    def difference(self, keep: Callable[[Any], bool]) -> Scalar:
        """Log model less log guide, over the sites to keep."""
        total = jnp.zeros(())
        for name, value in self.log_model.items():
            if keep(self.model[name]):
                total = total + value
        for name, value in self.log_guide.items():
            if keep(self.guide[name]):
                total = total - value
        return total


@dataclass(frozen=True, kw_only=True, eq=False)
class GuidedProgram:
    """A model and a guide that are called alike, and the plate in which their records are.

    Attributes:
      model: the model.
      guide: the guide.
      build: puts records into a call; holds no record.
      plate: the name of the record plate.
      size: the size that the model declares for it when it is called with all records.
      model_takes_key: whether the model's plate draws indices then.
      guide_takes_key: whether the guide's plate does.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    build: Callable[[Sequence[Array]], Call]
    plate: str
    size: int
    model_takes_key: bool
    guide_takes_key: bool

    def with_rows(
        self, num_rows: int, record_key: Key | None
    ) -> tuple[Callable[..., Any], Callable[..., Any]]:
        """Returns guide and model for so many records."""
        keys = (None, None) if record_key is None else tuple(jax.random.split(record_key))
        guide, model = (
            RecordRows(fn, plate=self.plate, num_rows=num_rows, takes_key=takes_key, record_key=key)
            for fn, takes_key, key in (
                (self.guide, self.guide_takes_key, keys[0]),
                (self.model, self.model_takes_key, keys[1]),
            )
        )
        return guide, model

    def run(
        self,
        params: Mapping[str, Any],
        key: Key,
        records: Sequence[Array],
        record_key: Key | None = None,
    ) -> ProgramRun:
        """Draws latents from the guide and evaluates both densities, for one particle.

        Args:
          params: the constrained parameters, and values of latents that are not to be drawn.
          key: of this particle.
          records: arrays of equal numbers of rows.
          record_key: where draws inside the record plate come from.
        """
        args, kwargs = self.build(records)
        guide, model = self.with_rows(records[0].shape[0], record_key)
        # The stack of NumPyro's Trace_ELBO, so that the same key gives the same latents.
        model_seed, guide_seed = jax.random.split(key)
        log_guide, guide_sites = compute_log_probs(
            seed(guide, guide_seed), args, kwargs, dict(params)
        )
        log_model, model_sites = compute_log_probs(
            replay(seed(model, model_seed), guide_sites), args, kwargs, dict(params)
        )
        return ProgramRun(guide_sites, model_sites, log_guide, log_model)

    @property
    def sets_up(self) -> bool:
        """Whether the guide sets itself up when it is called, as NumPyro's autoguides do.

        That is left to NumPyro, operation by operation: traced, it puts latents in another order.
        """
        return bool(autoguides_of(self.guide))

    def is_of_records(self, site: Any) -> bool:
        """Whether a site is inside the record plate."""
        return in_plate(site, self.plate)


def initial_sites(
    program: GuidedProgram, model_seed: Key, guide_seed: Key, records: Sequence[Array]
) -> tuple[SiteTrace, SiteTrace]:
    """Returns the sites of guide and model as ``SVI.init`` visits them."""
    args, kwargs = program.build(records)
    guide, model = program.with_rows(records[0].shape[0], None)
    guide_sites = trace(seed(guide, guide_seed)).get_trace(*args, **kwargs)
    values = {name: site["value"] for name, site in _params(guide_sites).items()}
    started = substitute(replay(seed(model, model_seed), guide_sites), values)
    return guide_sites, trace(started).get_trace(*args, **kwargs)


def initial_params(
    program: GuidedProgram, model_seed: Key, guide_seed: Key, blank: Sequence[Array]
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


def possible_params(
    program: GuidedProgram, blank: Sequence[Array]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the same for some key, where possible without compiling operations one by one."""
    if program.sets_up:
        keys = jax.random.split(jax.random.key(0))
        return initial_params(program, keys[0], keys[1], blank)
    bounds: dict[str, Any] = {}

    @compiled_once
    def start(key: Key) -> tuple[dict[str, Any], list[Any]]:
        model_seed, guide_seed = jax.random.split(key)
        values, found = initial_params(program, model_seed, guide_seed, blank)
        bounds.update(found)
        return values, list(filter(_is_traced, jax.tree.leaves(found)))

    values, computed = start(jax.random.key(0))
    computed = iter(computed)
    return values, jax.tree.map(lambda leaf: next(computed) if _is_traced(leaf) else leaf, bounds)


def _is_traced(leaf: object) -> bool:
    return isinstance(leaf, jax.core.Tracer)


def _params(sites: SiteTrace) -> dict[str, Any]:
    return {name: site for name, site in sites.items() if site["type"] == "param"}


_NUM_ROWS = 3
_TOLERANCE = 1e-3
"""Relative to the sizes of the terms: float32 sums of thousands of values differ by 1e-5."""

Values: TypeAlias = dict[str, Array]


def require_additive(
    program: GuidedProgram,
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

    @compiled_once
    def compare(params: Mapping[str, Any], records: Sequence[Array]) -> tuple[Values, Values]:
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

    for records in made_up_records(shapes_with_rows(shapes, _NUM_ROWS)):
        apart, together = jax.device_get(compare(params, records))
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


def _densities(run: ProgramRun) -> Values:
    guide = {f"guide: {name}": value for name, value in run.log_guide.items()}
    return {**run.log_model, **guide}


def _own_latents(run: ProgramRun, facts: Mapping[str, SiteFacts], plate: str) -> Values:
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
