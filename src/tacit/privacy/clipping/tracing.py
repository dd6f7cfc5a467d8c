"""Tracing: take a per-record loss apart into what needs the record and what does not, and run both.

The traced program of a loss is split in two. The *parameter part* depends on parameters and
constants only; it runs once for a batch. The *record part* touches the record; it runs under
`vmap`. Where the record part reads a value of the parameter part, there is a *site*: one
operation, such as a matrix product, with a parameter value on one side and record data on the
other. All that a record's gradient is made of passes through the sites.

A `scan` with parameters in it is opened: its body is split in the same way, sites in the body
have a loop axis, and the body's parameter part is hoisted out of the loop.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from tacit.privacy.clipping.equations import (
    Environment,
    Scan,
    Site,
    Split,
    UnsupportedError,
    Value,
    bind,
    inlined,
    is_float,
    run_equations,
    variable_of,
)
from tacit.privacy.clipping.unfolding import is_unfoldable, unfolded
from tacit.privacy.lattice import materialised, materialised_backwards
from tacit.typing import Array, Key, Params, RecordLoss, Tree

__all__ = ["Program", "trace"]


def _bind_unfolded(equation: core.JaxprEqn, operands: list[Any]) -> list[Any]:
    if is_unfoldable(equation):
        image, kernel = operands
        return [unfolded(image, kernel, equation.params)]
    return bind(equation, operands)


def _divide(split: Split, scope: int | None, sites: list[Site], scans: list[Scan]) -> None:
    """Sorts the equations of a program by level, and finds sites and scans to open."""
    for equation in split.jaxpr.jaxpr.eqns:
        level = max((split.level_of(operand) for operand in equation.invars), default=0)
        depends = frozenset().union(*(split.depends_of(operand) for operand in equation.invars))
        if equation.primitive.name == "stop_gradient":
            depends = frozenset()  # what is behind it trains nothing: an attack, a target network
        for out in equation.outvars:
            split.level[out] = level
            split.depends[out] = depends if is_float(out.aval) and level < 2 else frozenset()
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
    split: Split,
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
    outer: Split,
    equation: core.JaxprEqn,
    trained: tuple[int, ...],
    sites: list[Site],
    scans: list[Scan],
) -> tuple[Scan, dict[int, Site]]:
    """Splits the body of a scan; a trained initial state becomes an identity site before it."""
    params = equation.params
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    if params["jaxpr"].consts:
        raise UnsupportedError("a scan that holds constants is left to the reference")
    body = Split(inlined(params["jaxpr"], _bind_unfolded))
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
            values={0: Value(None, variable_of(equation.invars[at]))},
            trained=(0,),
            is_stacked={0: False},
        )
        for place, at in enumerate(
            at for at in trained if num_consts <= at < num_consts + num_carry
        )
    }
    sites.extend(initial.values())
    scan = Scan(index=len(scans), equation=equation, body=body)
    scans.append(scan)
    _divide(body, scan.index, sites, scans)
    return scan, initial


def _hoisted(scan: Scan, outer: Split, top: Environment) -> dict[Value, Array]:
    """Runs the parameter part of a scan's body outside the loop."""
    body = scan.body
    inner: Environment = dict(zip(body.jaxpr.jaxpr.constvars, body.jaxpr.consts, strict=True))
    stacked: Environment = {}
    for var, operand in zip(body.jaxpr.jaxpr.invars, scan.equation.invars, strict=True):
        if body.level[var] == 2:
            continue
        value = operand.val if isinstance(operand, core.Literal) else top[operand]
        (inner if body.level[var] == 0 else stacked)[var] = value
    run_equations(body.equations[0], inner)

    def one_slice(slices: list[Array]) -> list[Array]:
        environment = inner | dict(zip(stacked, slices, strict=True))
        run_equations(body.equations[1], environment)
        return [environment[var] for var in names]

    names = list(stacked) + [var for eq in body.equations[1] for var in eq.outvars]
    slices = jax.vmap(one_slice)(list(stacked.values())) if stacked else []
    return {Value(scan.index, var): value for var, value in inner.items()} | {
        Value(scan.index, var): value for var, value in zip(names, slices, strict=True)
    }


def _run_records(  # noqa: PLR0917
    split: Split,
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
        if isinstance(special, Site) and scope is None:
            # Norms and sums must read the same numbers as each other. If the operation itself reads
            # them as well, they are computed and stored once.
            operands = [
                value if at in special.values else materialised(value)
                for at, value in enumerate(operands)
            ]
        if isinstance(special, tuple):
            scan, initial = special
            outs = _run_scan(scan, initial, operands, values, nudges, saved)
        else:
            outs = bind(equation, operands)
        if isinstance(special, Site):
            saved[special.index] = [
                value
                for at, (value, operand) in enumerate(zip(operands, equation.invars, strict=True))
                if at not in special.values and not isinstance(operand, core.Literal)
            ]
            outs = _nudged(outs, nudges[special.index], is_looped=scope is not None)
        environment |= zip(equation.outvars, outs, strict=True)
    return [read(out) for out in split.jaxpr.jaxpr.outvars]


def _run_scan(  # noqa: PLR0917
    scan: Scan,
    initial: dict[int, Site],
    operands: list[Array],
    values: dict[Value, Array],
    nudges: Sequence[list[Array]],
    saved: list[list[Array]],
) -> list[Array]:
    """Runs an opened scan: nudges come in with the slices, record operands leave with them."""
    for at, site in initial.items():
        (operands[at],) = _nudged([operands[at]], nudges[site.index], is_looped=False)
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
        saved[site.index] = materialised(note)
    return [*carry, *ys]


def _nudged(outs: list[Array], nudges: list[Array], *, is_looped: bool) -> list[Array]:
    rest = iter(nudges)
    nudged = [out + next(rest) if is_float(out) else out for out in outs]
    if is_looped:
        return nudged
    return [materialised_backwards(out) if is_float(out) else out for out in nudged]


@dataclass(frozen=True, kw_only=True)
class Program:
    """A loss, taken apart.

    Attributes:
      num_params: how many parameter leaves there are.
      sites: all sites.
      values: trained values that sites read, and the parameter leaves each depends on.
      lengths: the number of iterations of each opened scan.
      fixed: equations of the parameter part that no parameter reaches, such as random draws.
      reached: the others.
    """

    num_params: int
    sites: tuple[Site, ...]
    values: dict[Value, frozenset[int]]
    lengths: dict[int, int]
    split: Split
    scans: tuple[Scan, ...]
    consts: tuple[Any, ...]
    original: core.ClosedJaxpr
    fixed: tuple[core.JaxprEqn, ...]
    reached: tuple[core.JaxprEqn, ...]

    def fixed_part(self) -> Environment:
        """Returns the values that no parameter reaches.

        A batch computes them once, however often it differentiates the parameter part. (Inside
        loops the compiler does not always see that they are the same.)
        """
        inputs, jaxpr = self.split.inputs(0)[: len(self.consts)], self.split.jaxpr
        fixed = dict(zip(inputs, self.consts, strict=True))
        fixed |= zip(jaxpr.jaxpr.constvars, jaxpr.consts, strict=True)
        run_equations(self.fixed, fixed)
        return fixed

    def parameter_part(self, leaves: Sequence[Array], fixed: Environment) -> dict[Value, Array]:
        """Returns all values of the parameter part that the record part reads."""
        inputs = self.split.inputs(0)[len(self.consts) :]
        top = fixed | dict(zip(inputs, leaves, strict=True))
        run_equations(self.reached, top)
        values = {Value(None, var): value for var, value in top.items()}
        for scan in self.scans:
            values |= _hoisted(scan, self.split, top)
        return values

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
            shapes.append([((*loop, *a.shape), a.dtype) for a in avals if is_float(a)])
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
    closed = inlined(original, _bind_unfolded)
    split = Split(closed)
    for var in closed.jaxpr.constvars:
        split.level[var], split.depends[var] = 0, frozenset()
    # What the loss closes over comes first, then the parameters, then the record and its key.
    first, end = len(original.consts), len(original.consts) + len(leaves)
    for at, var in enumerate(closed.jaxpr.invars):
        split.level[var] = 0 if at < end else 2
        split.depends[var] = frozenset({at - first}) if first <= at < end else frozenset()

    sites: list[Site] = []
    scans: list[Scan] = []
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
    fixed, reached = _by_reach(split.equations[0], closed.jaxpr.invars[first:end])
    return Program(
        num_params=len(leaves),
        sites=tuple(sites),
        values=values,
        lengths={scan.index: scan.length for scan in scans},
        split=split,
        scans=tuple(scans),
        consts=tuple(original.consts),
        original=original,
        fixed=fixed,
        reached=reached,
    )


def _by_reach(
    equations: Sequence[core.JaxprEqn], params: Sequence[core.Var]
) -> tuple[tuple[core.JaxprEqn, ...], tuple[core.JaxprEqn, ...]]:
    """Returns the equations that no parameter reaches, and those that one does, in order."""
    touched = set(params)
    fixed, reached = [], []
    for equation in equations:
        if any(isinstance(x, core.Var) and x in touched for x in equation.invars):
            touched.update(equation.outvars)
            reached.append(equation)
        else:
            fixed.append(equation)
    return tuple(fixed), tuple(reached)
