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
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from tacit.privacy.clipping.dividing import divide
from tacit.privacy.clipping.equations import Environment, inlined, is_float, run_equations
from tacit.privacy.clipping.running import hoisted, run_records
from tacit.privacy.clipping.sites import Scan, Site, Split, UnsupportedError, Value
from tacit.typing import Array, Key, Params, RecordLoss, Tree

__all__ = ["Program", "trace"]


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
            values |= hoisted(scan, self.split, top)
        return values

    def trained_part(self, leaves: Sequence[Array], fixed: Environment) -> list[Array]:
        """Returns the trained values alone, in the order of ``values``."""
        everything = self.parameter_part(leaves, fixed)
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
        (loss,) = run_records(self.split, None, environment, values, nudges, saved)
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
    closed = inlined(original)
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
    divide(split, None, sites, scans)
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
