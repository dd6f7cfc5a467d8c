"""Dividing: sort a program's equations by what they depend on, and find its sites."""

from jax.extend import core

from tacit.privacy.clipping.equations import inlined, is_float, variable_of
from tacit.privacy.clipping.sites import Scan, Site, Split, UnsupportedError, Value

__all__ = ["divide"]


def divide(split: Split, scope: int | None, sites: list[Site], scans: list[Scan]) -> None:
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
    body = Split(inlined(params["jaxpr"]))
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
    divide(body, scan.index, sites, scans)
    return scan, initial
