"""Floats that are computed once, and read by everything that uses them.

A compiler may compute an expression anew wherever it is used, and XLA does, also behind an
``optimization_barrier``, which it drops before it fuses. Each copy may be rounded in its own way:
in one loop ``x * y + z`` becomes a single operation and in the next it does not. Where terms
cancel, the two have nothing in common: one can be 0 and the other 2**26. A record whose norm is
taken from one copy and whose contribution comes from the other is not clipped at all.

So norms and sums read numbers that went through a call of the native kernel, which leaves them
where they are and does nothing, but no compiler knows that. Without the kernel they are copied in a
loop, and what is behind a loop reads its result.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from tacit import native
from tacit.typing import Array, Tree

__all__ = ["materialised"]


def materialised(tree: Tree) -> Tree:
    """Returns the same numbers. What is computed from them reads them and nothing before them.

    Example:
      >>> print(materialised(jnp.array([1.0, float("nan"), -0.0])))
      [ 1. nan -0.]
    """
    known: dict[int, Array] = {}

    def once(x: Array) -> Array:
        if not jnp.issubdtype(jnp.result_type(x), jnp.floating):
            return x
        if id(x) not in known:
            known[id(x)] = _same.bind(x)
        return known[id(x)]

    return jax.tree.map(once, tree)


_same = Primitive("tacit_same")


def _by_loop(x: Array) -> Array:
    """Copies the numbers in a loop, one half at a time."""
    if not x.size:
        return x
    flat = x.reshape(-1) if x.size > 1 else jnp.broadcast_to(x.reshape(1), (2,))
    half = -(-flat.size // 2)

    def copied(i: Array, copy: Array) -> Array:
        start = i * (flat.size - half)
        return lax.dynamic_update_slice(copy, lax.dynamic_slice(flat, [start], [half]), [start])

    return lax.fori_loop(0, 2, copied, jnp.zeros_like(flat))[: x.size].reshape(x.shape)


def _lower_on_cpu(context: Any, x: Any) -> Any:
    if not native.is_loaded():
        return _lower_by_loop(context, x)
    return jax.ffi.ffi_lowering("tacit_same", operand_output_aliases={0: 0})(context, x)


@functools.cache
def _compiled() -> Any:
    return jax.jit(_same.bind)


def _apply(x: Array) -> Array:
    with jax.disable_jit(False):
        return _compiled()(x)


def _batched(operands: Any, dims: Any) -> tuple[Array, int]:
    return _same.bind(*operands), dims[0]


_lower_by_loop = mlir.lower_fun(_by_loop, multiple_results=False)
_same.def_impl(_apply)
_same.def_abstract_eval(lambda x: x)
batching.primitive_batchers[_same] = _batched
ad.deflinear2(_same, lambda cotangent, _: [cotangent])
mlir.register_lowering(_same, _lower_by_loop)
mlir.register_lowering(_same, _lower_on_cpu, platform="cpu")
