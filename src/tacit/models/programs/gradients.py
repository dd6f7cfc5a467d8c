"""Gradient norms of a program's records, where truths and targets are the program's own draws."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray
from numpyro.distributions.transforms import biject_to
from numpyro.handlers import seed, substitute, trace
from numpyro.infer.util import _unconstrain_reparam

from tacit.errors import InvalidArgumentError
from tacit.models.programs.sites import in_plate
from tacit.typing import Array, Key

__all__ = ["gradient_norms"]


def gradient_norms(
    program: Callable[..., Any], args: Sequence[Any], key: Key, *, plate: str | None = None
) -> NDArray[np.float64]:
    """Returns the norm of each record's gradient with respect to the latents that records share.

    The latents are drawn from their priors, and so is what the program observes where its argument
    is None. Gradients are taken there, with respect to unconstrained latents, as aligned
    variational inference and samplers take them.

    Args:
      program: a NumPyro model with its records in one plate.
      args: made-up or public arguments of a call; None for targets that the program shall draw.
      key: of the draws.
      plate: the name of the record plate; by default the one with as many rows as ``args``.
    """
    sites = trace(seed(program, key)).get_trace(*args)
    name = plate or _plate_of(sites, args)
    shared, drawn = {}, {}
    for site, found in sites.items():
        if found["type"] != "sample":
            continue
        if in_plate(found, name):
            drawn[site] = found["value"]
        elif not found["is_observed"]:
            shared[site] = biject_to(found["fn"].support).inv(found["value"])
    if not shared or not drawn:
        raise InvalidArgumentError(
            "model must have latents outside of its record plate and observations inside; got the"
            f" sites {sorted(sites)} and the plate {name!r}."
        )
    flat, unflat = ravel_pytree(shared)

    @jax.jit
    def norms(flat: Array) -> Array:
        def densities(flat: Array) -> Array:
            known = substitute(seed(program, key), data=drawn)
            run = substitute(known, substitute_fn=partial(_unconstrain_reparam, unflat(flat)))
            found = trace(run).get_trace(*args)
            each = [_of_records(found[site], name) for site in drawn]
            return jnp.sum(jnp.stack(each), axis=0)

        return jnp.linalg.norm(jax.jacobian(densities)(flat), axis=1)

    return np.asarray(norms(flat), np.float64)


def _of_records(site: Any, plate: str) -> Array:
    """Returns the log density of a site for each row of the plate."""
    density = site["fn"].log_prob(site["value"])
    dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
    rows = jnp.moveaxis(density, dim, 0)
    return jnp.sum(rows.reshape(len(rows), -1), axis=1)


def _plate_of(sites: Any, args: Sequence[Any]) -> str:
    sizes = {name: site["value"].size for name, site in sites.items() if site["type"] == "plate"}
    leaves = [leaf for leaf in jax.tree.leaves(tuple(args)) if jnp.ndim(leaf)]
    num_rows = leaves[0].shape[0] if leaves else None
    fitting = [name for name, size in sizes.items() if size == num_rows]
    if len(fitting) != 1:
        raise InvalidArgumentError(
            f"plate must name the record plate, of {num_rows} records; the model has {sizes}."
        )
    return fitting[0]
