"""Whether the fast way agrees with the reference for a loss; asked once, on random numbers.

Parameters, records and what the loss closes over are replaced by random ones of the same shapes, so
no private record is looked at. The norm of every leaf must agree, from above and within what its
bounds on rounding allow, and so must the sum, clipped by those norms.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from numpy.typing import NDArray

from tacit.chacha20 import CHACHA20
from tacit.compiling import compiled_once
from tacit.privacy.clipping.book_keeping import norms_and_sum
from tacit.privacy.clipping.bounds import Flat
from tacit.privacy.clipping.equations import UnsupportedError
from tacit.privacy.clipping.operations import NormPlan
from tacit.typing import Array

__all__ = ["is_verified"]

_NUM_RECORDS = 4
_TOLERANCE = 1e-3
_TOO_SMALL, _TOO_LARGE = 1e-4, 0.5
"""Bounds must not fall short of squared norms, but by what the rounding of an ill-conditioned loss
changes in the cotangents themselves. Where positions cancel they may be well above."""
_SCALES = (0.0, 0.5, 1.0)
"""How far parameters are shrunk until some record's gradient is finite; see `_shrunk`."""
_GENERATORS = (CHACHA20, "threefry2x32", "rbg", "unsafe_rbg")
_verdicts: dict[str, bool] = {}


def is_verified(plan: NormPlan) -> bool:
    """Returns whether the fast way agreed with the reference; asked once for each traced loss."""
    signature = str(plan.program.original)
    if signature not in _verdicts:
        # The loss may be traced inside a compiled step; this must run now, outside of it.
        with jax.core.eval_context(), jax.disable_jit(False):
            _verdicts[signature] = _agrees(plan)
    return _verdicts[signature]


def _agrees(plan: NormPlan) -> bool:
    original = plan.program.original
    generator = np.random.default_rng(0)
    num_params = plan.program.num_params
    consts = [_random(generator, var.aval) for var in original.jaxpr.constvars]
    params = [_random(generator, var.aval) for var in original.jaxpr.invars[:num_params]]
    data = [
        _random(generator, var.aval, _NUM_RECORDS) for var in original.jaxpr.invars[num_params:]
    ]
    settings: Any = {"clipping": Flat(), "clip_norm": 1.0}

    @compiled_once
    def compare(consts: Sequence[Any], params: list[Any], *data_and_keys: Any) -> Any:
        consts = list(map(_typed, original.jaxpr.constvars, consts))
        params = list(map(_typed, original.jaxpr.invars, params))
        *data, keys = map(_typed, original.jaxpr.invars[num_params:], data_and_keys)

        def loss(params: list[Array], record: list[Array], key: Any) -> Array:
            arguments = [*params, *record, key]
            return core.jaxpr_as_fun(core.ClosedJaxpr(original.jaxpr, consts))(*arguments)[0]

        gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))(params, data, keys)
        exact = [jnp.square(g).reshape(_NUM_RECORDS, -1).sum(1) for g in gradients]
        here = plan.with_consts(tuple(consts))
        mask = jnp.ones(_NUM_RECORDS, bool)
        ruled, fast = norms_and_sum(here, params, data, keys, mask, **settings)
        (factor, *_) = Flat().factors(ruled, clip_norm=1.0)
        slow = [_weighted_sum(factor, gradient) for gradient in gradients]
        return exact, ruled, slow, fast.total

    for shrink in _SCALES:
        scaled = [_shrunk(leaf, shrink) for leaf in params]
        exact, ruled, slow, fast = jax.tree.map(
            functools.partial(np.asarray, dtype=np.float64), compare(consts, scaled, *data)
        )
        if np.isfinite([*exact, *ruled]).all(0).any():
            # In a leaf where all cancels, such as the bias of attention's keys, rounding is left.
            floor = 1e-6 * np.linalg.norm([np.linalg.norm(leaf) for leaf in slow])
            return _close(np.stack(exact), np.stack(ruled)) and all(
                np.linalg.norm(a - b) <= _TOLERANCE * np.linalg.norm(a) + floor
                for a, b in zip(slow, fast, strict=True)
            )
    return False  # random numbers told nothing; stay with the reference


def _weighted_sum(factor: Array, gradient: Array) -> Array:
    along = factor.reshape(-1, *(1 for _ in gradient.shape[1:]))
    return jnp.sum(jnp.where(along > 0, along * gradient, 0.0), axis=0)


def _shrunk(leaf: Any, power: float) -> Any:
    """Divides a parameter by a power of the number of entries that share one of its last axis.

    With one half, matrices keep the size of what they multiply: a deep network of large ones, or an
    exponential behind it, would overflow.
    """
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or leaf.ndim < 2:
        return leaf
    return leaf / np.asarray((leaf.size / leaf.shape[-1]) ** power, leaf.dtype)


def _close(exact: Any, ruled: Any) -> bool:
    """Whether squared norms ``(leaf, record)`` agree; a record is dropped where one is infinite."""
    usable = np.isfinite([*exact, *ruled]).all(0)
    exact, ruled = exact[:, usable], ruled[:, usable]
    floor = 1e-6 * exact.sum(0)
    is_bound = ruled >= (1 - _TOO_SMALL) * exact - floor
    return bool(np.all(is_bound & (ruled <= (1 + _TOO_LARGE) * exact + floor)))


def _random(generator: np.random.Generator, aval: Any, *lead: int) -> NDArray[Any]:
    """Returns random numbers, made on the host: JAX would compile a program for each shape."""
    shape = (*lead, *aval.shape)
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(shape, aval.dtype))
        return generator.integers(2**32, size=data.shape, dtype=np.uint32)
    if jnp.issubdtype(aval.dtype, jnp.floating):
        return generator.normal(size=shape).astype(aval.dtype)
    return generator.integers(0, 2, size=shape).astype(aval.dtype)


def _typed(var: core.Var, numbers: Any) -> Any:
    """Returns what `_random` made for a variable, as keys where it holds keys."""
    aval: Any = var.aval
    if not jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return numbers
    for generator in _GENERATORS:
        some = jax.eval_shape(functools.partial(jax.random.key, 0, impl=generator))
        if some.dtype == aval.dtype:
            return jax.random.wrap_key_data(numbers, impl=generator)
    raise UnsupportedError(f"keys of type {aval.dtype} are not known here")
