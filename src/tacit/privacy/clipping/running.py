"""Running: the two parts of a split program, with every site nudged and noted on the way."""

from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.extend import core

from tacit.privacy.clipping.equations import Environment, bind, is_float, run_equations
from tacit.privacy.clipping.sites import Scan, Site, Split, Value
from tacit.typing import Array

__all__ = ["hoisted", "run_records"]


def hoisted(scan: Scan, outer: Split, top: Environment) -> dict[Value, Array]:
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


def run_records(  # noqa: PLR0917
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
            outs = _nudged(outs, nudges[special.index])
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
        outs = run_records(
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
    return [out + next(rest) if is_float(out) else out for out in outs]
