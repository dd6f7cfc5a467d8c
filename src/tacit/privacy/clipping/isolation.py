"""Isolation: a per-record loss must see one record and say nothing except its result."""

from collections.abc import Iterator

import jax
from jax.extend import core

from tacit.errors import CrossRecordError
from tacit.typing import Key, Params, RecordLoss, Tree

__all__ = ["require_isolated"]

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def require_isolated(
    loss: RecordLoss, params: Params, record: Tree, key: Key, *, num_records: int
) -> None:
    """Raises `CrossRecordError` when a loss could mix records or leak one past the engine.

    The engine maps a loss over records one at a time, so ordinary code cannot mix them. What
    remains is refused here, from the traced program, before any record is read: collective
    operations over a mapped axis (batch normalisation, batch statistics), callbacks and debug
    prints (a record would leave without noise), and closing over an array with one row for each
    record (the table itself, or statistics of it, would enter past the sampler).

    Args:
      loss: a function of parameters, one record and its key; its result may be any tree.
      params: the parameters, or their shapes and dtypes.
      record: one record, or its shapes and dtypes.
      key: a key, or its shape and dtype.
      num_records: how many records there are.
    """
    try:
        program = jax.make_jaxpr(loss)(params, record, key)
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise CrossRecordError(
            f"the loss uses a mapped axis ({error}), so it wants to see other records, as batch"
            " normalisation does. Use GroupNorm or LayerNorm, which look at one record."
        ) from error
    for closed in _programs(program):
        for equation in closed.jaxpr.eqns:
            _require_silent(equation)
        for constant in closed.consts:
            _require_small(constant, num_records)


def _require_silent(equation: core.JaxprEqn) -> None:
    name = equation.primitive.name
    axes = equation.params.get("axes", ()) or equation.params.get("axis_name", ())
    if any(isinstance(axis, str) for axis in (axes if isinstance(axes, tuple) else (axes,))):
        raise CrossRecordError(
            f"the loss uses the collective operation {name!r} over a named axis, which mixes"
            " records (batch normalisation, batch statistics). Use GroupNorm or LayerNorm instead."
        )
    if equation.effects or name in _CALLBACKS:
        raise CrossRecordError(
            f"the loss has a side effect ({name!r}), by which a record could leave without noise."
            " Remove callbacks, debug prints and mutable state from the loss."
        )


def _require_small(constant: object, num_records: int) -> None:
    if isinstance(constant, jax.core.Tracer):  # parameters of an enclosing step, not data at rest
        return
    shape = tuple(getattr(constant, "shape", ()))
    if num_records > 1 and shape and shape[0] == num_records:
        raise CrossRecordError(
            f"the loss closes over an array of shape {shape}, one row for each of the"
            f" {num_records} records. Pass such data as part of the records, so that it is sampled"
            " and clipped with them."
        )


def _programs(closed: core.ClosedJaxpr) -> Iterator[core.ClosedJaxpr]:
    """Yields a traced program and all programs inside it (branches, loops, calls)."""
    yield closed
    for equation in closed.jaxpr.eqns:
        for parameter in jax.tree.leaves(equation.params, is_leaf=_is_program):
            if isinstance(parameter, core.ClosedJaxpr):
                yield from _programs(parameter)
            elif isinstance(parameter, core.Jaxpr):
                yield from _programs(core.ClosedJaxpr(parameter, ()))


def _is_program(value: object) -> bool:
    return isinstance(value, core.Jaxpr | core.ClosedJaxpr)
