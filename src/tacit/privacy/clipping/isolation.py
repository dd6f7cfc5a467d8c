"""Isolation: a per-record loss must see one record and say nothing except its result."""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from tacit.errors import CrossRecordError
from tacit.tables import as_table
from tacit.typing import Key, Params, RecordLoss, Tree

__all__ = ["require_isolated", "require_no_table"]

_SMALL_TABLE = 64
"""Up to so many records, an axis that is one longer or shorter may well be a layer's width."""

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def require_isolated(
    loss: RecordLoss,
    params: Params,
    record: Tree,
    key: Key,
    *,
    num_records: int,
    num_rows: int | None = None,
) -> None:
    """Raises `CrossRecordError` when a loss could mix records or leak one past the engine.

    The engine maps a loss over records one at a time, so ordinary code cannot mix them. What
    remains is refused here, from the traced program, before any record is read: collective
    operations over a mapped axis (batch normalisation, batch statistics), callbacks and debug
    prints (a record would leave without noise), and closing over an array with an axis as long as
    the table (the table itself, its transpose, or a column would enter past the sampler) or, if the
    rest of the array is like a row or the table is long, one longer or shorter (all but one). A
    loss of floating parameters is differentiated too, because a custom gradient can do what the
    loss itself does not. What cannot be detected: a statistic of the table, such as its mean,
    or a part of it of another length.

    Args:
      loss: a function of parameters, one record and its key; its result may be any tree.
      params: the parameters, or their shapes and dtypes.
      record: one record, or its shapes and dtypes.
      key: a key, or its shape and dtype.
      num_records: how many records there are.
      num_rows: how many rows the table has, where devices share it and it is filled up.
    """
    lengths = {num_records, num_records if num_rows is None else num_rows} - {1}
    row_sizes = {math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(record)}
    for closed in _traced(loss, params, record, key):
        for equation in closed.jaxpr.eqns:
            _require_silent(equation)
        for constant in _constants(closed):
            shape = tuple(jnp.shape(constant))
            if set(shape[:1]) & lengths or _is_table(shape, lengths, row_sizes):
                raise CrossRecordError(
                    f"the loss closes over an array of shape {shape}, like one row for each of the"
                    f" {num_records} records. Pass such data as part of the records, so that it is"
                    " sampled and clipped with them."
                )


def require_no_table(function: Callable[..., Any], *arguments: Tree, records: Tree) -> None:
    """Raises `CrossRecordError` when a function closes over the table that it may only be given.

    This is for what surrounds the engine: starts, priors, optimisers and whole steps, where the
    releases are all that may be known of the records. It looks at the traced program and at shapes
    and addresses, never at values. A closed-over array is refused if it is a leaf of ``records``,
    or has the table's length, or one more or less as in `require_isolated`, along one axis of
    several. What cannot be detected: a copy of a single column, and any statistic of the table.

    Args:
      function: what to trace.
      *arguments: of the function, or their shapes and dtypes.
      records: the table, a tree of arrays or wherever it is.
    """
    table = as_table(records)
    leaves, num_records = jax.tree.leaves(records), table.num_records
    # Where devices share it, it has more rows than records.
    lengths = {num_records, *(leaf.shape[0] for leaf in leaves)} - {1}
    row_sizes = {math.prod(leaf.shape) for leaf in jax.tree.leaves(table.record)}
    # Unlike `jax.make_jaxpr` this traces a function once only.
    for closed in _programs(jax.jit(function).trace(*arguments).jaxpr):
        for constant in _constants(closed):
            shape = tuple(jnp.shape(constant))
            if _is_table(shape, lengths, row_sizes) or _is_one_of(constant, leaves):
                raise CrossRecordError(
                    f"the model or method closes over an array of shape {shape}, like the table of"
                    f" {num_records} records. Priors, starts and optimisers may not know the"
                    " records: only the log likelihood does, one at a time, as its argument."
                )


def _traced(loss: RecordLoss, params: Params, record: Tree, key: Key) -> Iterator[core.ClosedJaxpr]:
    """Yields the programs in a loss and, where it has one, in its gradient."""
    try:
        program, result = jax.make_jaxpr(loss, return_shape=True)(params, record, key)
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise CrossRecordError(
            f"the loss uses a mapped axis ({error}), so it wants to see other records, as batch"
            " normalisation does. Use GroupNorm or LayerNorm, which look at one record."
        ) from error
    yield from _programs(program)
    leaves = jax.tree.leaves(params)
    is_scalar = isinstance(result, jax.ShapeDtypeStruct) and result.shape == ()
    if is_scalar and leaves and all(map(_is_floating, [*leaves, result])):
        yield from _programs(jax.make_jaxpr(jax.grad(loss))(params, record, key))


def _is_floating(array: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(array), jnp.floating)


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


def _constants(closed: core.ClosedJaxpr) -> Iterator[Any]:
    """Yields the arrays at rest in a program; tracers are arguments of an enclosing one."""
    literals = (
        operand.val
        for equation in closed.jaxpr.eqns
        for operand in equation.invars
        if isinstance(operand, core.Literal)
    )
    for constant in (*closed.consts, *literals):
        if not isinstance(constant, jax.core.Tracer):
            yield constant


def _is_table(shape: tuple[int, ...], lengths: set[int], row_sizes: set[int]) -> bool:
    """Whether an array of several axes has one as long as a table, or as all but one of its rows.

    Args:
      shape: of the array.
      lengths: of the table, without and with rows that fill it up.
      row_sizes: how many numbers the arrays of one record have.
    """
    for found, length in itertools.product(shape, lengths):
        rest = math.prod(shape) // max(found, 1)
        near = abs(found - length) == 1 and (length > _SMALL_TABLE or rest in row_sizes)
        if rest > 1 and (found == length or near):
            return True
    return False


def _is_one_of(constant: Any, leaves: list[Any]) -> bool:
    """Whether an array is, or shares its memory with, one of the leaves; values are not read."""
    for leaf in leaves:
        if constant is leaf:
            return True
        if jnp.shape(constant) != jnp.shape(leaf) or isinstance(leaf, jax.ShapeDtypeStruct):
            continue
        if not getattr(leaf, "is_fully_addressable", True):
            continue  # part of it is on other machines
        if np.shares_memory(np.asarray(constant), np.asarray(leaf)):
            return True
    return False


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
