"""Repeats: say once in a traced program what it says several times.

A step that differentiates a record's loss and a regulariser on their own draws the same latents in
both. Compilers find such repeats in straight code, but in the body of a loop XLA first moves
constants out, a copy for each repeat, and after that takes the repeats for different.
"""

from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np
from jax.extend import core

from tacit.privacy.clipping.equations import bind, inlined

__all__ = ["without_repeats"]

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def without_repeats(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Returns a function of the same values in which no operation is made twice on one operand.

    Example:
      >>> import jax.numpy as jnp
      >>> twice = without_repeats(lambda x: jnp.sin(x) + jnp.sin(x))
      >>> str(jax.make_jaxpr(twice)(1.0)).count("sin")
      1
    """

    def run(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        config: Any = jax.config
        if config.jax_disable_jit:  # then nothing is traced, and branches not taken are not run
            return function(*args, **kwargs)
        closed, shape = jax.make_jaxpr(function, return_shape=True)(*args, **kwargs)
        arguments = [*closed.consts, *jax.tree.leaves((args, kwargs))]
        results = _run(inlined(closed), arguments)
        return jax.tree.unflatten(jax.tree.structure(shape), results)

    return run


def _run(closed: core.ClosedJaxpr, arguments: list[Any]) -> list[Any]:
    jaxpr = closed.jaxpr
    inputs = zip((*jaxpr.constvars, *jaxpr.invars), (*closed.consts, *arguments), strict=True)
    values: dict[core.Var, Any] = dict(inputs)
    first: dict[core.Var, core.Var] = {}  # of each repeated result, where it was made first
    made: dict[Hashable, list[core.Var]] = {}

    def read(operand: core.Var | core.Literal) -> Any:
        if isinstance(operand, core.Literal):
            return operand.val
        return values[first.get(operand, operand)]

    for equation in jaxpr.eqns:
        name = _name_of(equation, first)
        if name is not None and name in made:
            first |= zip(equation.outvars, made[name], strict=True)
            continue
        outs = bind(equation, list(map(read, equation.invars)))
        values |= zip(equation.outvars, outs, strict=True)
        if name is not None:
            made[name] = list(equation.outvars)
    return [read(out) for out in jaxpr.outvars]


def _name_of(equation: core.JaxprEqn, first: dict[core.Var, core.Var]) -> Hashable | None:
    """Returns what tells an equation from all that give something else; None if nothing does."""
    literals = [operand for operand in equation.invars if isinstance(operand, core.Literal)]
    if equation.effects or any(np.ndim(literal.val) for literal in literals):
        return None
    # As text, zeros of both signs differ and NaN equals itself.
    operands = tuple(
        (repr(operand.val), str(operand.aval))
        if isinstance(operand, core.Literal)
        else first.get(operand, operand)
        for operand in equation.invars
    )
    name = (equation.primitive, frozenset(equation.params.items()), operands)
    try:
        hash(name)
    except TypeError:
        return None
    return name
