"""Tracing: take a per-record loss apart into what needs the record and what does not.

The traced program of a loss is split in two. The *parameter part* depends on parameters and
constants only; it runs once for a batch. The *record part* touches the record; it runs under
`vmap`. Where the record part reads a value of the parameter part, there is a *site*: one
operation, such as a matrix product, with a parameter value on one side and record data on the
other. All that a record's gradient is made of passes through the sites.

A `scan` with parameters in it is opened: its body is split in the same way, sites in the body
have a loop axis, and the body's parameter part is hoisted out of the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from tacit.typing import Array, Key, Params, RecordLoss, Tree

__all__ = ["Program", "Site", "UnsupportedError", "Value", "dtype_of", "shape_of", "trace"]

_INLINED = {"jit": "jaxpr", "pjit": "jaxpr", "remat2": "jaxpr", "checkpoint": "jaxpr",
            "closed_call": "call_jaxpr", "core_call": "call_jaxpr"}  # fmt: skip

Environment: TypeAlias = dict[core.Var, Any]


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
        return [out for out in _bind(self.equation, operands) if _is_float(out)]


@dataclass(frozen=True, kw_only=True)
class _Scan:
    """An opened scan: where it stands and how its body is split."""

    index: int
    equation: core.JaxprEqn
    body: "_Split"

    @property
    def num_consts(self) -> int:
        return int(self.equation.params["num_consts"])

    @property
    def num_carry(self) -> int:
        return int(self.equation.params["num_carry"])

    @property
    def length(self) -> int:
        return int(self.equation.params["length"])


@dataclass
class _Split:
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
        return [var for var in self.jaxpr.jaxpr.invars if self.level[var] == level]

    def level_of(self, operand: core.Var | core.Literal) -> int:
        return 0 if isinstance(operand, core.Literal) else self.level[operand]

    def depends_of(self, operand: core.Var | core.Literal) -> frozenset[int]:
        return frozenset() if isinstance(operand, core.Literal) else self.depends[operand]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A loss, taken apart.

    Attributes:
      num_params: how many parameter leaves there are.
      sites: all sites.
      values: trained values that sites read, and the parameter leaves each depends on.
      lengths: the number of iterations of each opened scan.
    """

    num_params: int
    sites: tuple[Site, ...]
    values: dict[Value, frozenset[int]]
    lengths: dict[int, int]
    split: _Split
    scans: tuple[_Scan, ...]
    consts: tuple[Any, ...]
    original: core.ClosedJaxpr

    def parameter_part(self, leaves: Sequence[Array]) -> dict[Value, Array]:
        """Returns all values of the parameter part that the record part reads."""
        top: Environment = dict(
            zip(self.split.inputs(0), [*self.consts, *leaves], strict=True)
        ) | dict(zip(self.split.jaxpr.jaxpr.constvars, self.split.jaxpr.consts, strict=True))
        _run(self.split.equations[0], top)
        values = {Value(None, var): value for var, value in top.items()}
        for scan in self.scans:
            values |= _hoisted(scan, self.split, top)
        return values

    def trained_part(self, leaves: Sequence[Array]) -> list[Array]:
        """Returns the trained values alone, in the order of ``values``."""
        everything = self.parameter_part(leaves)
        return [everything[value] for value in self.values]

    def record_part(
        self, values: dict[Value, Array], data: Sequence[Array], nudges: Sequence[list[Array]]
    ) -> tuple[Array, list[list[Array]]]:
        """Returns one record's loss, and the record operands of every site.

        Args:
          values: of the parameter part.
          data: the leaves of the record and its key.
          nudges: zeros added to the results of each site; the derivative with respect to them
            is the cotangent at the site.
        """
        saved: list[list[Array]] = [[] for _ in self.sites]
        environment: Environment = dict(zip(self.split.inputs(2), data, strict=True))
        (loss,) = _run_records(self.split, None, environment, values, nudges, saved)
        return loss, saved

    def nudge_shapes(self) -> list[list[tuple[tuple[int, ...], Any]]]:
        """Returns the shapes and dtypes of each site's float results, with their loop axis."""
        shapes = []
        for site in self.sites:
            avals: list[Any] = (
                [next(iter(site.values.values())).var.aval]
                if site.equation is None
                else [var.aval for var in site.equation.outvars]
            )
            loop = () if site.scope is None else (self.lengths[site.scope],)
            shapes.append([((*loop, *a.shape), a.dtype) for a in avals if _is_float(a)])
        return shapes


def trace(loss: RecordLoss, params: Params, record: Tree, key: Key) -> Program:
    """Returns a loss taken apart; raises `UnsupportedError` where that cannot be done.

    Args:
      loss: of one record.
      params: parameters, or their shapes.
      record: one record, or its shapes.
      key: one key, or its shape.
    """
    original = jax.make_jaxpr(loss)(params, record, key)
    leaves = jax.tree.leaves(params)
    if any(leaf.dtype not in (jnp.float32, jnp.float64) for leaf in leaves):
        raise UnsupportedError("parameters that are not float32 are summed by the reference")
    closed = _inlined(original)
    split = _Split(closed)
    for var in closed.jaxpr.constvars:
        split.level[var], split.depends[var] = 0, frozenset()
    # What the loss closes over comes first, then the parameters, then the record and its key.
    first, end = len(original.consts), len(original.consts) + len(leaves)
    for at, var in enumerate(closed.jaxpr.invars):
        split.level[var] = 0 if at < end else 2
        split.depends[var] = frozenset({at - first}) if first <= at < end else frozenset()

    sites: list[Site] = []
    scans: list[_Scan] = []
    _divide(split, None, sites, scans)
    (result,) = closed.jaxpr.outvars
    if split.level_of(result) != 2:
        raise UnsupportedError("the loss does not depend on the record")
    values: dict[Value, frozenset[int]] = {}
    for site in sites:
        for at in site.trained:
            value = site.values[at]
            owner = split if value.scope is None else scans[value.scope].body
            values[value] = owner.depends[value.var]
    return Program(
        num_params=len(leaves),
        sites=tuple(sites),
        values=values,
        lengths={scan.index: scan.length for scan in scans},
        split=split,
        scans=tuple(scans),
        consts=tuple(original.consts),
        original=original,
    )


def _divide(split: _Split, scope: int | None, sites: list[Site], scans: list[_Scan]) -> None:
    """Sorts the equations of a program by level, and finds sites and scans to open."""
    for equation in split.jaxpr.jaxpr.eqns:
        level = max((split.level_of(operand) for operand in equation.invars), default=0)
        depends = frozenset().union(*(split.depends_of(operand) for operand in equation.invars))
        if equation.primitive.name == "stop_gradient":
            depends = frozenset()  # what is behind it trains nothing: an attack, a target network
        for out in equation.outvars:
            split.level[out] = level
            split.depends[out] = depends if _is_float(out.aval) and level < 2 else frozenset()
        split.equations[level].append(equation)
        trained = tuple(
            at
            for at, operand in enumerate(equation.invars)
            if split.level_of(operand) < 2 and split.depends_of(operand)
        )
        if level < 2 or not trained:
            continue
        if equation.primitive.name == "scan" and scope is None:
            split.special[id(equation)] = _open(split, equation, trained, sites, scans)
        else:
            split.special[id(equation)] = _site(split, scope, equation, trained, sites)


def _site(
    split: _Split,
    scope: int | None,
    equation: core.JaxprEqn,
    trained: tuple[int, ...],
    sites: list[Site],
) -> Site:
    values = {
        at: Value(scope, operand)
        for at, operand in enumerate(equation.invars)
        if isinstance(operand, core.Var) and split.level[operand] < 2
    }
    stacked = {at: split.level[value.var] == 1 for at, value in values.items()}
    site = Site(
        index=len(sites),
        scope=scope,
        equation=equation,
        values=values,
        trained=trained,
        is_stacked=stacked,
    )
    sites.append(site)
    return site


def _open(
    outer: _Split,
    equation: core.JaxprEqn,
    trained: tuple[int, ...],
    sites: list[Site],
    scans: list[_Scan],
) -> tuple[_Scan, dict[int, Site]]:
    """Splits the body of a scan; a trained initial state becomes an identity site before it."""
    params = equation.params
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    if params["jaxpr"].consts:
        raise UnsupportedError("a scan that holds constants is left to the reference")
    body = _Split(_inlined(params["jaxpr"]))
    for var in body.jaxpr.jaxpr.constvars:
        body.level[var], body.depends[var] = 0, frozenset()
    for at, (var, operand) in enumerate(zip(body.jaxpr.jaxpr.invars, equation.invars, strict=True)):
        outside = outer.level_of(operand)
        is_carry = num_consts <= at < num_consts + num_carry
        if is_carry or outside == 2:
            body.level[var], body.depends[var] = 2, frozenset()
        else:
            body.level[var] = 0 if at < num_consts else 1
            body.depends[var] = outer.depends_of(operand)
    initial = {
        at: Site(
            index=len(sites) + place,
            scope=None,
            equation=None,
            values={0: Value(None, _variable(equation.invars[at]))},
            trained=(0,),
            is_stacked={0: False},
        )
        for place, at in enumerate(
            at for at in trained if num_consts <= at < num_consts + num_carry
        )
    }
    sites.extend(initial.values())
    scan = _Scan(index=len(scans), equation=equation, body=body)
    scans.append(scan)
    _divide(body, scan.index, sites, scans)
    return scan, initial


def _hoisted(scan: _Scan, outer: _Split, top: Environment) -> dict[Value, Array]:
    """Runs the parameter part of a scan's body outside the loop."""
    body = scan.body
    inner: Environment = dict(zip(body.jaxpr.jaxpr.constvars, body.jaxpr.consts, strict=True))
    stacked: Environment = {}
    for var, operand in zip(body.jaxpr.jaxpr.invars, scan.equation.invars, strict=True):
        if body.level[var] == 2:
            continue
        value = operand.val if isinstance(operand, core.Literal) else top[operand]
        (inner if body.level[var] == 0 else stacked)[var] = value
    _run(body.equations[0], inner)

    def one_slice(slices: list[Array]) -> list[Array]:
        environment = inner | dict(zip(stacked, slices, strict=True))
        _run(body.equations[1], environment)
        return [environment[var] for var in names]

    names = list(stacked) + [var for eq in body.equations[1] for var in eq.outvars]
    slices = jax.vmap(one_slice)(list(stacked.values())) if stacked else []
    return {Value(scan.index, var): value for var, value in inner.items()} | {
        Value(scan.index, var): value for var, value in zip(names, slices, strict=True)
    }


def _run_records(  # noqa: PLR0917
    split: _Split,
    scope: int | None,
    environment: Environment,
    values: dict[Value, Array],
    nudges: Sequence[list[Array]],
    saved: list[list[Array]],
) -> list[Array]:
    """Runs the record part of a program, nudging and noting every site on the way."""

    def read(operand: core.Var | core.Literal) -> Any:
        if isinstance(operand, core.Literal):
            return operand.val
        return environment[operand] if operand in environment else values[Value(scope, operand)]

    for equation in split.equations[2]:
        operands = [read(operand) for operand in equation.invars]
        special = split.special.get(id(equation))
        if isinstance(special, tuple):
            scan, initial = special
            outs = _run_scan(scan, initial, operands, values, nudges, saved)
        else:
            outs = _bind(equation, operands)
        if isinstance(special, Site):
            saved[special.index] = [
                value
                for at, (value, operand) in enumerate(zip(operands, equation.invars, strict=True))
                if at not in special.values and not isinstance(operand, core.Literal)
            ]
            outs = _nudged(outs, nudges[special.index])
        environment |= zip(equation.outvars, outs, strict=True)
    return [read(out) for out in split.jaxpr.jaxpr.outvars]


def _run_scan(  # noqa: PLR0917
    scan: _Scan,
    initial: dict[int, Site],
    operands: list[Array],
    values: dict[Value, Array],
    nudges: Sequence[list[Array]],
    saved: list[list[Array]],
) -> list[Array]:
    """Runs an opened scan: nudges come in with the slices, record operands leave with them."""
    for at, site in initial.items():
        (operands[at],) = _nudged([operands[at]], nudges[site.index])
    body, first_carry = scan.body, scan.num_consts
    first_slice = first_carry + scan.num_carry
    inside = [special for special in body.special.values() if isinstance(special, Site)]
    invars = body.jaxpr.jaxpr.invars
    stacked = {
        value: array
        for value, array in values.items()
        if value.scope == scan.index and body.level[value.var] == 1
    }

    def step(carry: list[Array], xs: Any) -> tuple[list[Array], Any]:
        slices, own, own_nudges = xs
        environment = dict(zip(invars, [*operands[:first_carry], *carry, *slices], strict=True))
        environment = {var: value for var, value in environment.items() if body.level[var] == 2}
        all_nudges: dict[int, list[Array]] = dict(
            zip([site.index for site in inside], own_nudges, strict=True)
        )
        noted: dict[int, list[Array]] = {}
        outs = _run_records(
            body,
            scan.index,
            environment,
            values | dict(zip(stacked, own, strict=True)),
            all_nudges,  # type: ignore[arg-type]
            noted,  # type: ignore[arg-type]
        )
        notes = [noted[site.index] for site in inside]
        return outs[: scan.num_carry], (outs[scan.num_carry :], notes)

    carry, (ys, notes) = lax.scan(
        step,
        operands[first_carry:first_slice],
        (
            operands[first_slice:],
            list(stacked.values()),
            [nudges[site.index] for site in inside],
        ),
        length=scan.length,
        reverse=scan.equation.params["reverse"],
    )
    for site, note in zip(inside, notes, strict=True):
        saved[site.index] = note
    return [*carry, *ys]


def _nudged(outs: list[Array], nudges: list[Array]) -> list[Array]:
    rest = iter(nudges)
    return [out + next(rest) if _is_float(out) else out for out in outs]


def _run(equations: list[core.JaxprEqn], environment: Environment) -> None:
    for equation in equations:
        operands = [
            operand.val if isinstance(operand, core.Literal) else environment[operand]
            for operand in equation.invars
        ]
        environment |= zip(equation.outvars, _bind(equation, operands), strict=True)


def _bind(equation: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    primitive: Any = equation.primitive
    outs = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(outs) if primitive.multiple_results else [outs]


def _variable(operand: core.Var | core.Literal) -> core.Var:
    assert isinstance(operand, core.Var)
    return operand


def dtype_of(operand: core.Var | core.Literal) -> Any:
    """Returns the dtype of a variable of a traced program."""
    aval: Any = operand.aval
    return aval.dtype


def shape_of(operand: core.Var | core.Literal) -> tuple[int, ...]:
    """Returns the shape of a variable of a traced program."""
    aval: Any = operand.aval
    return tuple(aval.shape)


def _literal_or(operand: core.Var | core.Literal, rest: Any) -> Any:
    return operand.val if isinstance(operand, core.Literal) else next(rest)


def _inlined(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
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
            outs = _bind(equation, operands)
        environment |= zip(equation.outvars, outs, strict=True)
    return [read(out) for out in jaxpr.outvars]


def _is_float(value: Any) -> bool:
    return bool(jnp.issubdtype(value.dtype, jnp.floating))
