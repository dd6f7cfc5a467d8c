"""Alignment: what records see of a guide, where that is a draw of the shared latents alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute
from numpyro.infer.util import _unconstrain_reparam, compute_log_probs
from numpyro.ops.provenance import eval_provenance

from tacit import _tree
from tacit.models.programs.analysis import Analysis
from tacit.models.programs.program import GuidedProgram
from tacit.models.programs.sites import Alignment, SiteFacts
from tacit.typing import Array, Key, Scalar

__all__ = ["SharedLatents", "alignment_of"]

Latents = Mapping[str, Array]


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedLatents:
    """The latents that all records share, as unconstrained numbers. It holds no record.

    Attributes:
      program: model and guide.
      shapes: of all of them, unconstrained, by name.
      seen: the names of those on which the density of a record depends.
      modules: what modules with random weights keep beside them; no numbers.
      blank: one made-up record, on which the guide is run.
    """

    program: GuidedProgram
    shapes: Mapping[str, jax.ShapeDtypeStruct]
    seen: tuple[str, ...]
    modules: Mapping[str, Any]
    blank: Sequence[Array]

    def draw(self, params: Mapping[str, Any], key: Key) -> dict[str, Array]:
        """Returns the draw of one particle: those that records see, as a function of parameters.

        Args:
          params: the constrained parameters.
          key: of the particle.
        """

        # As an argument the blank record is traced: nobody can stumble over its values.
        @jax.jit
        def on_blank(params: Mapping[str, Any], blank: Sequence[Array]) -> dict[str, Array]:
            found = _unconstrained(self.program, params, key, blank, tuple(self.shapes))
            return {name: found[name] for name in self.seen}

        return on_blank(params, self.blank)

    def log_density(
        self, draw: Latents, key: Key, rows: Sequence[Array], record_key: Key
    ) -> Scalar:
        """Returns the log density of ONE record given a draw of what it sees.

        Args:
          draw: as `draw` returns it.
          key: of the particle.
          rows: the record; one row of each array.
          record_key: the record's own key.
        """
        # What no record sees may stand anywhere.
        unseen = {
            name: jnp.zeros(shape.shape, shape.dtype)
            for name, shape in self.shapes.items()
            if name not in self.seen
        }
        values = {**unseen, **draw}
        densities = _densities(self.program, values, self.modules, (key, record_key), rows)
        return sum(densities.values(), start=jnp.zeros(()))


def _unconstrained(
    program: GuidedProgram,
    params: Mapping[str, Any],
    key: Key,
    blank: Sequence[Array],
    names: Sequence[str],
) -> dict[str, Array]:
    sites = program.run(params, key, blank, jax.random.key(0)).model
    return {
        name: biject_to(sites[name]["fn"].support).inv(jnp.asarray(sites[name]["value"]))
        for name in names
    }


def _densities(
    program: GuidedProgram,
    latents: Latents,
    modules: Mapping[str, Any],
    keys: tuple[Key, Key],
    rows: Sequence[Array],
) -> dict[str, Scalar]:
    """Returns the log density of each site in the record plate.

    Args:
      program: model and guide.
      latents: all that records share, unconstrained.
      modules: what modules with random weights keep beside them.
      keys: of the particle and of the record.
      rows: the records.
    """
    args, kwargs = program.build(rows)
    _, model = program.with_rows(rows[0].shape[0], keys[1])
    # The model's key is that of `GuidedProgram.run`, for what it draws beside the latents.
    model = seed(model, jax.random.split(keys[0])[0])
    model = substitute(model, substitute_fn=partial(_unconstrain_reparam, latents))
    densities, sites = compute_log_probs(model, args, kwargs, dict(modules))
    return {name: value for name, value in densities.items() if program.is_of_records(sites[name])}


def alignment_of(found: Analysis) -> tuple[Alignment | None, SharedLatents | None]:
    """Returns what gradients are released with respect to, and the latents where that is those.

    The first is None where there is no guide yet; the second where the guide's parameters are
    taken instead.
    """
    if found.guide is None:
        return None, None
    num_params = sum(site.num_values for site in found.facts.values() if site.kind == "param")

    def refused(why: str) -> tuple[Alignment, None]:
        return Alignment(num_params=num_params, obstacle=why), None

    obstacle = _obstacle(found.guide, found.model, found.program.plate)
    if obstacle is not None:
        return refused(obstacle)
    names = [
        name
        for name, site in found.model.items()
        if site.kind == "sample" and not site.is_observed and found.program.plate not in site.plates
    ]
    try:
        shapes = jax.eval_shape(
            lambda params, blank: _unconstrained(
                found.program, params, jax.random.key(0), blank, names
            ),
            found.params,
            found.blank,
        )
    except NotImplementedError:
        return refused("a shared latent has a support that unconstrained numbers do not map to")
    modules = {
        name: found.params[name]
        for name, site in found.model.items()
        if site.kind == "param" and name in found.params
    }
    seen = _seen(found, shapes, modules)
    if not seen:
        return refused("records see no latent that they share")
    latents = SharedLatents(
        program=found.program, shapes=shapes, seen=seen, modules=modules, blank=found.blank
    )
    num_drawn = _tree.size({name: shapes[name] for name in seen})
    return Alignment(sites=seen, num_drawn=num_drawn, num_params=num_params), latents


def _obstacle(
    guide: Mapping[str, SiteFacts], model: Mapping[str, SiteFacts], plate: str
) -> str | None:
    for name, site in guide.items():
        if site.kind == "sample" and plate in site.plates:
            return f"the guide's distribution of {name!r} is a function of the record"
    for name, site in model.items():
        if site.kind == "param" and site.num_values > 0:
            return f"records may see the model's parameter {name!r}, which is no latent"
    return None


def _seen(
    found: Analysis, shapes: Mapping[str, jax.ShapeDtypeStruct], modules: Mapping[str, Any]
) -> tuple[str, ...]:
    """Returns the latents on which the density of some site of a record depends."""
    keys = jax.random.split(jax.random.key(0))

    def densities(**latents: Array) -> dict[str, Scalar]:
        return _densities(found.program, latents, modules, (keys[0], keys[1]), found.blank)

    origins = eval_provenance(densities, **shapes)
    leaves = jax.tree.leaves(origins, is_leaf=lambda value: isinstance(value, frozenset))
    used = frozenset().union(*leaves)
    return tuple(name for name in shapes if name in used)
