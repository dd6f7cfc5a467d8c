"""Facts: what an abstract run says about a program's sites; no value is ever computed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from numpyro.ops.provenance import eval_provenance

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.typing import Array

__all__ = ["SiteFacts", "SiteTrace", "Traced", "look_at"]

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
