"""Equations and sites: traced programs, and where a record meets parameters in them."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend import core

from tacit.typing import Array

__all__ = [
    "Environment",
    "Scan",
    "Site",
    "Split",
    "UnsupportedError",
    "Value",
    "bind",
    "dtype_of",
    "inlined",
    "is_float",
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


def inlined(
    closed: core.ClosedJaxpr, bind: Callable[[core.JaxprEqn, list[Any]], list[Any]] = bind
) -> core.ClosedJaxpr:
    """Returns the program with calls replaced by what they call, and constants as inputs.

    Args:
      closed: the program.
      bind: runs one equation that is not a call.
    """
    num_consts = len(closed.consts)

    def run(*arguments: Any) -> list[Any]:
        return _run_inlined(closed.jaxpr, arguments[:num_consts], arguments[num_consts:], bind)

    variables = (*closed.jaxpr.constvars, *closed.jaxpr.invars)
    return jax.make_jaxpr(run)(*(var.aval for var in variables))


def _run_inlined(
    jaxpr: core.Jaxpr,
    consts: Sequence[Any],
    arguments: Sequence[Any],
    bind: Callable[[core.JaxprEqn, list[Any]], list[Any]],
) -> list[Any]:
    environment: Environment = dict(zip(jaxpr.constvars, consts, strict=True))
    environment |= zip(jaxpr.invars, arguments, strict=True)

    def read(operand: core.Var | core.Literal) -> Any:
        return operand.val if isinstance(operand, core.Literal) else environment[operand]

    for equation in jaxpr.eqns:
        operands = [read(operand) for operand in equation.invars]
        inner = equation.params.get(_INLINED.get(equation.primitive.name, ""))
        if isinstance(inner, core.ClosedJaxpr):
            outs = _run_inlined(inner.jaxpr, inner.consts, operands, bind)
        elif isinstance(inner, core.Jaxpr):
            outs = _run_inlined(inner, (), operands, bind)
        else:
            outs = bind(equation, operands)
        environment |= zip(equation.outvars, outs, strict=True)
    return [read(out) for out in jaxpr.outvars]


def variable_of(operand: core.Var | core.Literal) -> core.Var:
    """Returns an operand that is known to be a variable."""
    assert isinstance(operand, core.Var)
    return operand


def _literal_or(operand: core.Var | core.Literal, rest: Any) -> Any:
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


class UnsupportedError(Exception):
    """The loss has a shape that the fast path does not handle; the reference does."""


class Value(NamedTuple):
    """A value of the parameter part that the record part reads.

    Attributes:
      scope: the scan whose body reads it, or None at the top.
      var: its variable in the traced program.
    """

    scope: int | None
    var: core.Var


@dataclass(frozen=True, kw_only=True)
class Site:
    """One operation of the record part that reads parameter values.

    Attributes:
      index: where its record operands and cotangents are found.
      scope: the scan in whose body it stands, or None.
      equation: the operation; None is the identity (the initial state of a scan).
      values: the parameter values among its operands, by position; others are record data.
      trained: the positions whose values depend on trained parameters.
      is_stacked: which of ``values`` have one slice for each iteration of the scan.
    """

    index: int
    scope: int | None
    equation: core.JaxprEqn | None
    values: dict[int, Value]
    trained: tuple[int, ...]
    is_stacked: dict[int, bool]

    @property
    def name(self) -> str:
        """The name of the operation."""
        return "identity" if self.equation is None else self.equation.primitive.name

    def apply(self, values: dict[int, Array], data: Sequence[Array]) -> list[Array]:
        """Runs the operation for one record and one iteration; returns its float results."""
        if self.equation is None:
            return [values[0]]
        rest = iter(data)
        operands = [
            values[at] if at in values else _literal_or(operand, rest)
            for at, operand in enumerate(self.equation.invars)
        ]
        return [out for out in bind(self.equation, operands) if is_float(out)]


@dataclass(frozen=True, kw_only=True)
class Scan:
    """An opened scan: where it stands and how its body is split."""

    index: int
    equation: core.JaxprEqn
    body: "Split"

    @property
    def num_consts(self) -> int:
        """How many operands are the same in every iteration."""
        return int(self.equation.params["num_consts"])

    @property
    def num_carry(self) -> int:
        """How many operands are carried from one iteration to the next."""
        return int(self.equation.params["num_carry"])

    @property
    def length(self) -> int:
        """How many iterations there are."""
        return int(self.equation.params["length"])


@dataclass
class Split:
    """A traced program split by what its variables depend on."""

    jaxpr: core.ClosedJaxpr
    # 0 for the parameter part, 1 for slices of stacked parameters, 2 for record data.
    level: dict[core.Var, int] = field(default_factory=dict)
    # On which trained parameters a variable of the parameter part depends.
    depends: dict[core.Var, frozenset[int]] = field(default_factory=dict)
    equations: dict[int, list[core.JaxprEqn]] = field(default_factory=lambda: {0: [], 1: [], 2: []})
    # By identity of an equation of the record part: its site, or the scan that it opens.
    special: dict[int, Any] = field(default_factory=dict)

    def inputs(self, level: int) -> list[core.Var]:
        """Returns the inputs of a level."""
        return [var for var in self.jaxpr.jaxpr.invars if self.level[var] == level]

    def level_of(self, operand: core.Var | core.Literal) -> int:
        """Returns the level of an operand; a literal is part of the program."""
        return 0 if isinstance(operand, core.Literal) else self.level[operand]

    def depends_of(self, operand: core.Var | core.Literal) -> frozenset[int]:
        """Returns the trained parameters on which an operand depends."""
        return frozenset() if isinstance(operand, core.Literal) else self.depends[operand]
