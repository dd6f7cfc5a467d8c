"""Equations: the few operations on traced programs (jaxprs) that taking one apart needs."""

import contextlib
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

__all__ = [
    "Environment",
    "bind",
    "dtype_of",
    "inlined",
    "is_float",
    "literal_or",
    "run_equations",
    "shape_of",
    "variable_of",
]

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
            "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}  # fmt: skip

Environment: TypeAlias = dict[core.Var, Any]
"""The values of variables, as far as a program was run."""


def run_equations(equations: Sequence[core.JaxprEqn], environment: Environment) -> None:
    """Runs equations in order, adding their results to the environment."""
    for equation in equations:
        operands = [
            operand.val if isinstance(operand, core.Literal) else environment[operand]
            for operand in equation.invars
        ]
        environment |= zip(equation.outvars, bind(equation, operands), strict=True)


def bind(equation: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    """Runs one equation; always returns a list."""
    primitive: Any = equation.primitive
    # The engine's noise has 64-bit numbers in programs that otherwise have none.
    with jax.enable_x64(True) if _is_wide(equation) else contextlib.nullcontext():
        outs = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(outs) if primitive.multiple_results else [outs]


def _is_wide(equation: core.JaxprEqn) -> bool:
    avals: list[Any] = [value.aval for value in (*equation.invars, *equation.outvars)]
    return any(getattr(getattr(a, "dtype", None), "itemsize", 0) == 8 for a in avals)


def inlined(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """Returns the program with calls replaced by what they call, and constants as inputs."""
    num_consts = len(closed.consts)

    def run(*arguments: Any) -> list[Any]:
        return _run_inlined(closed.jaxpr, arguments[:num_consts], arguments[num_consts:])

    variables = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
    return jax.make_jaxpr(run)(*(var.aval for var in variables))


def _run_inlined(jaxpr: core.Jaxpr, consts: Sequence[Any], arguments: Sequence[Any]) -> list[Any]:
    environment: Environment = dict(zip(jaxpr.constvars, consts, strict=True))
    environment |= zip(jaxpr.invars, arguments, strict=True)

    def read(operand: core.Var | core.Literal) -> Any:
        return operand.val if isinstance(operand, core.Literal) else environment[operand]

    for equation in jaxpr.eqns:
        operands = [read(operand) for operand in equation.invars]
        inner = equation.params.get(_INLINED.get(equation.primitive.name, ""))
        if isinstance(inner, core.ClosedJaxpr):
            outs = _run_inlined(inner.jaxpr, inner.consts, operands)
        elif isinstance(inner, core.Jaxpr):
            outs = _run_inlined(inner, (), operands)
        else:
            outs = bind(equation, operands)
        environment |= zip(equation.outvars, outs, strict=True)
    return [read(out) for out in jaxpr.outvars]


def variable_of(operand: core.Var | core.Literal) -> core.Var:
    """Returns an operand that is known to be a variable."""
    assert isinstance(operand, core.Var)
    return operand


def literal_or(operand: core.Var | core.Literal, rest: Any) -> Any:
    """Returns the value of a literal, or the next one of the rest."""
    return operand.val if isinstance(operand, core.Literal) else next(rest)


def dtype_of(operand: core.Var | core.Literal) -> Any:
    """Returns the dtype of a variable of a traced program."""
    aval: Any = operand.aval
    return aval.dtype


def shape_of(operand: core.Var | core.Literal) -> tuple[int, ...]:
    """Returns the shape of a variable of a traced program."""
    aval: Any = operand.aval
    return tuple(aval.shape)


def is_float(value: Any) -> bool:
    """Whether an array, or its description, holds floats: whether it can have a derivative."""
    return bool(jnp.issubdtype(value.dtype, jnp.floating))
