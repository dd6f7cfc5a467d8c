"""Classification: how a parameter leaf turns into a value that a site reads.

The norm of a record's gradient is wanted for the leaf, but the rules give it for the value. Where
the value is the leaf with its entries moved about, the norms are equal. Where every entry of the
value is a function of one entry of the leaf, the norm for the leaf is weighted by the derivative
of that function. An absolute value has the derivative one or minus one, which leaves norms as they
are; at an entry that is exactly zero JAX takes zero, so there the norm is a bound. Everything else
is *general*: the gradient is formed and pulled back to the leaf.

Only whitelisted operations keep a map out of the general class, so an operation that is not known
here costs time, never exactness.
"""

import enum
import functools
import math
from typing import NamedTuple

import jax
from jax.extend import core

from tacit.privacy.clipping.equations import bind, dtype_of, shape_of
from tacit.privacy.clipping.sites import Split, Value
from tacit.privacy.clipping.tracing import Program
from tacit.typing import Array

__all__ = ["Map", "Move", "Path", "classify"]


class Map(enum.Enum):
    """How a value depends on a leaf."""

    MOVED = "the parameter itself, entries moved about"
    SIGNED = "the parameter up to the sign of each entry"
    ELEMENTWISE = "an elementwise function of the parameter"
    GENERAL = "some other function of the parameter"


class Move(NamedTuple):
    """One operation that moves entries about, on a whole array or on each slice of a stack."""

    equation: core.JaxprEqn
    is_sliced: bool

    @property
    def name(self) -> str:
        """What it does, in words that are equal for equal moves."""
        return f"{self.equation.primitive.name} {self.equation.params} {self.is_sliced}"


class Path(NamedTuple):
    """A map together with how entries were moved."""

    map: Map
    moves: tuple[Move, ...]

    @property
    def order(self) -> tuple[str, ...]:
        """Tells orders of entries apart."""
        return tuple(move.name for move in self.moves)

    def back(self, array: Array, shape: tuple[int, ...]) -> Array:
        """Returns entries in the order of the value in the order of the leaf, which has a shape."""

        def moved(leaf: Array) -> Array:
            for equation, is_sliced in self.moves:
                one = functools.partial(_moved, equation)
                leaf = (jax.vmap(one) if is_sliced else one)(leaf)
            return leaf

        if not self.moves:
            return array
        (back,) = jax.linear_transpose(moved, jax.ShapeDtypeStruct(shape, array.dtype))(array)
        return back


def _moved(equation: core.JaxprEqn, array: Array) -> Array:
    return bind(equation, [array])[0]


# Permutations of entries, given that input and output have the same size.
_MOVES = {"reshape", "transpose", "squeeze", "expand_dims", "rev", "copy", "broadcast_in_dim"}
# Shifts and changes of sign keep distances too.
_SHIFTS = {"neg", "add", "sub", "add_any"}
_ELEMENTWISE = {
    *("mul", "div", "max", "min", "abs", "sign", "square", "sqrt", "rsqrt", "cbrt", "integer_pow"),
    *("pow", "exp", "exp2", "expm1", "log", "log1p", "logistic", "tanh", "sin", "cos", "erf"),
    *("erfc", "erf_inv", "select_n"),
}
_PREDICATES = {"ne", "eq", "lt", "gt", "le", "ge", "is_finite", "not", "and", "or", "stop_gradient"}
_INNER = {"custom_jvp_call": "call_jaxpr"}


def classify(program: Program, leaf: int, value: Value) -> Path:
    """Returns how a value of the parameter part depends on a leaf, and how entries were moved."""
    parameter = program.split.inputs(0)[len(program.consts) + leaf]
    top = _paths(program.split, {parameter: Path(Map.MOVED, ())}, levels=(0,))
    if value.scope is None:
        return top[value.var]
    scan = program.scans[value.scope]
    seeds = {
        inside: top[outside]
        for inside, outside in zip(scan.body.jaxpr.jaxpr.invars, scan.equation.invars, strict=True)
        if isinstance(outside, core.Var) and outside in top and scan.body.level[inside] < 2
    }
    return _paths(scan.body, seeds, levels=(0, 1))[value.var]


def _paths(
    split: Split, paths: dict[core.Var, Path], *, levels: tuple[int, ...]
) -> dict[core.Var, Path]:
    for level in levels:
        for equation in split.equations[level]:
            _extend(Move(equation, level == 1), paths)
    return paths


def _extend(move: Move, paths: dict[core.Var, Path]) -> None:
    """Continues the paths of an equation's operands to its results."""
    equation = move.equation
    trained = [
        operand for operand in equation.invars if isinstance(operand, core.Var) and operand in paths
    ]
    if trained:
        for out in equation.outvars:
            paths[out] = _after(move, trained, [paths[operand] for operand in trained], out)


def _after(move: Move, trained: list[core.Var], incoming: list[Path], out: core.Var) -> Path:
    """Returns the path to a result, given the operands that depend on the leaf and their paths."""
    equation = move.equation
    name, path = equation.primitive.name, incoming[0]
    shapes = {shape_of(operand) for operand in trained}
    found = Map.GENERAL
    if any(other.map is Map.GENERAL for other in incoming):
        pass
    elif name in _MOVES:
        if len(trained) == 1 and math.prod(*shapes) == math.prod(shape_of(out)):
            return path._replace(moves=(*path.moves, move))
    elif shapes != {shape_of(out)} or len({other.order for other in incoming}) > 1:
        pass  # something is broadcast, or a leaf that was moved in two ways meets itself
    elif len(trained) == 1 and (name in _SHIFTS or _keeps_values(equation)):
        found = path.map
    elif name == "abs" and path.map in (Map.MOVED, Map.SIGNED):
        found = Map.SIGNED
    elif name in _SHIFTS | _ELEMENTWISE or (
        name in _INNER and _is_elementwise(equation.params[_INNER[name]], out)
    ):
        found = Map.ELEMENTWISE
    return Path(found, path.moves if found is not Map.GENERAL else ())


def _keeps_values(equation: core.JaxprEqn) -> bool:
    """Whether an equation converts a number to its own type, as for weakly typed parameters."""
    operand, out = equation.invars[0], equation.outvars[0]
    is_conversion = equation.primitive.name == "convert_element_type"
    return is_conversion and dtype_of(operand) == dtype_of(out)


def _is_elementwise(closed: core.ClosedJaxpr, out: core.Var) -> bool:
    """Whether a called function does nothing but elementwise operations on one shape."""
    return all(
        equation.primitive.name in _SHIFTS | _ELEMENTWISE | _PREDICATES
        and all(shape_of(operand) in ((), shape_of(out)) for operand in equation.invars)
        for equation in closed.jaxpr.eqns
    )
