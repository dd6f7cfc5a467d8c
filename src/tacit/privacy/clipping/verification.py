"""Verification: before a loss is clipped the fast way, that way is compared with the reference.

Parameters, records and what the loss closes over are replaced by random ones of the same shapes,
so no private record is looked at. The norm of every leaf must agree, from above and within what its
bounds on rounding allow, and so must the sum, clipped by those norms.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from tacit.privacy.clipping.bounds import Flat
from tacit.privacy.clipping.engine import Recipe, norms_and_sum
from tacit.privacy.clipping.sites import UnsupportedError
from tacit.rng import seeded_key
from tacit.typing import Array

__all__ = ["is_verified"]

_NUM_RECORDS = 4
_TOLERANCE = 1e-3
_TOO_SMALL, _TOO_LARGE = 1e-5, 0.5
"""Bounds must not fall short of squared norms. Where positions cancel they may be well above."""
_SCALES = (0.0, 0.5, 1.0)
"""How far parameters are shrunk until some record's gradient is finite; see `_shrunk`."""
_JAX_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")
_verdicts: dict[str, bool] = {}


def is_verified(recipe: Recipe) -> bool:
    """Returns whether the fast way agreed with the reference; asked once for each traced loss."""
    signature = str(recipe.program.original)
    if signature not in _verdicts:
        # The loss may be traced inside a compiled step; this must run now, outside of it.
        with jax.ensure_compile_time_eval(), jax.disable_jit(False):
            _verdicts[signature] = _agrees(recipe)
    return _verdicts[signature]


def _agrees(recipe: Recipe) -> bool:
    original = recipe.program.original
    generator = np.random.default_rng(0)
    num_params = recipe.program.num_params
    consts = [_random(generator, var.aval) for var in original.jaxpr.constvars]
    params = [_random(generator, var.aval) for var in original.jaxpr.invars[:num_params]]
    *data, keys = (
        _random(generator, var.aval, _NUM_RECORDS) for var in original.jaxpr.invars[num_params:]
    )
    mask = jnp.ones(_NUM_RECORDS, bool)
    settings: Any = {"clipping": Flat(), "clip_norm": 1.0}

    @jax.jit
    def compare(consts: Sequence[Any], params: list[Array], data: Any, keys: Any) -> Any:
        def loss(params: list[Array], record: list[Array], key: Any) -> Array:
            arguments = [*params, *record, key]
            return core.jaxpr_as_fun(core.ClosedJaxpr(original.jaxpr, consts))(*arguments)[0]

        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, data, keys)
        exact = [jnp.square(g).reshape(_NUM_RECORDS, -1).sum(1) for g in gradients]
        here = recipe.with_consts(tuple(consts))
        ruled, fast = norms_and_sum(here, params, data, keys, mask, **settings)
        (factor, *_) = Flat().factors(ruled, clip_norm=1.0)
        slow = [_weighted_sum(factor, gradient) for gradient in gradients]
        return exact, ruled, slow, fast

    for shrink in _SCALES:
        scaled = [_shrunk(leaf, shrink) for leaf in params]
        exact, ruled, slow, fast = jax.tree.map(
            functools.partial(np.asarray, dtype=np.float64), compare(consts, scaled, data, keys)
        )
        if np.isfinite([*exact, *ruled]).all(0).any():
            return _close(np.stack(exact), np.stack(ruled)) and all(
                np.linalg.norm(a - b) <= _TOLERANCE * (1e-6 + np.linalg.norm(a))
                for a, b in zip(slow, fast, strict=True)
            )
    return False  # random numbers told nothing; stay with the reference


def _weighted_sum(factor: Array, gradient: Array) -> Array:
    along = factor.reshape(-1, *(1 for _ in gradient.shape[1:]))
    return jnp.sum(jnp.where(along > 0, along * gradient, 0.0), axis=0)


def _shrunk(leaf: Array, power: float) -> Array:
    """Divides a parameter by a power of the number of entries that share one of its last axis.

    With one half, matrices keep the size of what they multiply: a deep network of large ones, or an
    exponential behind it, would overflow.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.ndim < 2:
        return leaf
    return leaf / jnp.asarray((leaf.size / leaf.shape[-1]) ** power, leaf.dtype)


def _close(exact: Any, ruled: Any) -> bool:
    """Whether squared norms ``(leaf, record)`` agree; a record is dropped where one is infinite."""
    usable = np.isfinite([*exact, *ruled]).all(0)
    exact, ruled = exact[:, usable], ruled[:, usable]
    floor = 1e-6 * exact.sum(0)
    is_bound = ruled >= (1 - _TOO_SMALL) * exact - floor
    return bool(np.all(is_bound & (ruled <= (1 + _TOO_LARGE) * exact + floor)))


def _random(generator: np.random.Generator, aval: Any, *lead: int) -> Any:
    shape = (*lead, *aval.shape)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.split(_key_like(aval.dtype), shape)
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return jnp.asarray(generator.normal(size=shape), aval.dtype)
    return jnp.asarray(generator.integers(0, 2, size=shape), aval.dtype)


def _key_like(dtype: Any) -> Any:
    """Returns some key of a generator, ours or one of JAX's own."""
    for key in (seeded_key(0), *(jax.random.key(0, impl=name) for name in _JAX_GENERATORS)):
        if key.dtype == dtype:
            return key
    raise UnsupportedError(f"keys of type {dtype} are not known here")
