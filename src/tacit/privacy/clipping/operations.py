"""Operations: which norm rule serves an operation, and how a parameter turns into what it reads.

The norm of a record's gradient is wanted for the leaf, but the rules give it for the value. Where
the value is the leaf with its entries moved about, the norms are equal. Where every entry of the
value is a function of one entry of the leaf, the norm for the leaf is weighted by the derivative
of that function. An absolute value has the derivative one or minus one, which leaves norms as they
are; at an entry that is exactly zero JAX takes zero, so there the norm is a bound. Everything else
is *general*: the gradient is formed and pulled back to the leaf.

Only whitelisted operations keep a map out of the general class, so an operation that is not known
here costs time, never exactness. A `NormPlan` has the maps of all leaves of a program.
"""

import enum
import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from tacit.privacy.clipping.equations import Site, Split, Value, bind, dtype_of, shape_of
from tacit.privacy.clipping.rules import Dense, Layout, Lookup, Part
from tacit.privacy.clipping.tracing import Program
from tacit.typing import Array

__all__ = ["Map", "NormPlan", "Path", "make_norm_plan", "part_of"]


def part_of(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    """Returns what a site adds to the gradient of its operand ``at``, or None without a rule.

    Args:
      site: the operation.
      at: the position of the trained value among its operands.
      data: record operands for a batch: ``(batch, [iteration,] ...)``.
      cotangents: of its results, likewise.
    """
    rule = {
        "dot_general": _dot_part,
        "gather": _gather_part,
        "dynamic_slice": _slice_part,
    }.get(site.name)
    if rule is None or len(site.trained) != 1:
        return None
    return rule(site, at, data, cotangents)


def _dot_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    if len(data) != 1 or site.equation is None:
        return None  # both operands are parameters
    (left, right), (left_batch, right_batch) = site.equation.params["dimension_numbers"]
    axes = ((left, left_batch), (right, right_batch))
    contracted, group = axes[at]
    a_contracted, a_group = axes[1 - at]
    rank = len(shape_of(site.equation.invars[at]))
    a_rank = len(shape_of(site.equation.invars[1 - at]))
    free = tuple(i for i in range(rank) if i not in (*contracted, *group))
    a_free = tuple(i for i in range(a_rank) if i not in (*a_contracted, *a_group))
    inputs = _arranged(data[0], site, (a_group, a_free, a_contracted))
    out = list(range(len(group) + len(a_free) + len(free)))
    ends = (len(group), len(group) + len(free if at == 0 else a_free))
    first, second = out[ends[0] : ends[1]], out[ends[1] :]
    positions, features = (second, first) if at == 0 else (first, second)
    d = _arranged(cotangents[0], site, (tuple(out[: ends[0]]), tuple(positions), tuple(features)))
    return _dense(site, at, inputs, d, Layout(tuple(group), tuple(contracted), free))


def _gather_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    assert site.equation is not None
    params = site.equation.params
    numbers = params["dimension_numbers"]
    table = shape_of(site.equation.invars[0])
    indices = shape_of(site.equation.invars[1])
    is_row_lookup = (
        at == 0
        and site.scope is None
        and numbers.collapsed_slice_dims == (0,)
        and numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims
        and tuple(params["slice_sizes"]) == (1, *table[1:])
        and numbers.offset_dims == tuple(range(len(indices) - 1, len(indices) - 1 + len(table) - 1))
    )
    if not is_row_lookup:
        return None
    batch = len(data[0])
    rows = data[0].reshape(batch, -1)
    d = cotangents[0].reshape(batch, rows.shape[1], -1)
    if params["mode"] == lax.GatherScatterMode.CLIP:
        rows = jnp.clip(rows, 0, table[0] - 1)
    else:
        rows = jnp.where((rows >= 0) & (rows < table[0]), rows, -1)
    return Lookup(rows=rows, cotangents=d)


def _slice_part(site: Site, at: int, data: list[Array], cotangents: list[Array]) -> Part | None:
    """A slice of one row of a table, as ``table[i]`` is traced: a look-up of that row."""
    assert site.equation is not None
    table = shape_of(site.equation.invars[0])
    is_row = (
        at == 0
        and site.scope is None
        and len(table) > 0
        and tuple(site.equation.params["slice_sizes"]) == (1, *table[1:])
        and not isinstance(site.equation.invars[1], core.Literal)
        and 1 not in site.values
    )
    if not is_row:
        return None
    batch = len(cotangents[0])
    # A slice never leaves its operand: places beyond it are moved inside.
    rows = jnp.clip(data[0].reshape(batch, 1), 0, table[0] - 1)
    return Lookup(rows=rows, cotangents=cotangents[0].reshape(batch, 1, -1))


def _arranged(x: Array, site: Site, axes: tuple[tuple[int, ...], ...]) -> Array:
    """Returns ``(batch, [iteration,] a, b, c)`` with the named axes of one record joined."""
    lead = 1 if site.scope is None else 2
    order = [axis + lead for part in axes for axis in part]
    moved = x.transpose(*range(lead), *order)
    joined, place = [], lead
    for part in axes:
        length = 1
        for _ in part:
            length *= moved.shape[place]
            place += 1
        joined.append(length)
    return moved.reshape(*x.shape[:lead], *joined)


def _dense(site: Site, at: int, inputs: Array, d: Array, layout: Layout) -> Dense:
    """Turns the loop axis into positions, or into groups where weights differ by iteration."""
    is_stacked = site.is_stacked[at]
    if site.scope is not None:
        inputs, d = (_fold_loop(x, as_groups=is_stacked) for x in (inputs, d))
    return Dense(inputs=inputs, cotangents=d, layout=layout, is_stacked=is_stacked)


def _fold_loop(x: Array, *, as_groups: bool) -> Array:
    batch, length, groups, positions, features = x.shape
    if as_groups:
        return x.reshape(batch, length * groups, positions, features)
    return x.swapaxes(1, 2).reshape(batch, groups, length * positions, features)


class Map(enum.Enum):
    """How a value depends on a leaf."""

    MOVED = "the parameter itself, entries moved about"
    SIGNED = "the parameter up to the sign of each entry"
    ELEMENTWISE = "an elementwise function of the parameter"
    GENERAL = "some other function of the parameter"


class _Move(NamedTuple):
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
    moves: tuple[_Move, ...]

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


def _classify(program: Program, leaf: int, value: Value) -> Path:
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
            _extend(_Move(equation, level == 1), paths)
    return paths


def _extend(move: _Move, paths: dict[core.Var, Path]) -> None:
    """Continues the paths of an equation's operands to its results."""
    equation = move.equation
    trained = [
        operand for operand in equation.invars if isinstance(operand, core.Var) and operand in paths
    ]
    if trained:
        for out in equation.outvars:
            paths[out] = _after(move, trained, [paths[operand] for operand in trained], out)


def _after(move: _Move, trained: list[core.Var], incoming: list[Path], out: core.Var) -> Path:
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


@dataclass(frozen=True, kw_only=True)
class NormPlan:
    """How the norm of each parameter leaf is obtained; all of it decided before any record is seen.

    Attributes:
      program: the loss, taken apart.
      reads: the values through which each leaf acts.
      paths: how each of them depends on the leaf.
    """

    program: Program
    reads: tuple[tuple[Value, ...], ...]
    paths: tuple[tuple[Path, ...], ...]

    def uses(self, value: Value) -> list[tuple[Site, int]]:
        """Returns the sites that read a value, with its position among their operands."""
        return [
            (site, at)
            for site in self.program.sites
            for at in site.trained
            if site.values[at] == value
        ]

    def with_consts(self, consts: tuple[Any, ...]) -> "NormPlan":
        """Returns the plan for the same loss closing over other values."""
        return replace(self, program=replace(self.program, consts=consts))

    def is_direct(self, leaf: int) -> bool:
        """Whether the leaf's norm follows from that of one value."""
        return len(self.reads[leaf]) == 1 and self.paths[leaf][0].map is not Map.GENERAL


def make_norm_plan(program: Program) -> NormPlan:
    """Returns the plan for a program."""
    reads = tuple(
        tuple(value for value, leaves in program.values.items() if leaf in leaves)
        for leaf in range(program.num_params)
    )
    paths = tuple(
        tuple(_classify(program, leaf, value) for value in values)
        for leaf, values in enumerate(reads)
    )
    return NormPlan(program=program, reads=reads, paths=paths)
