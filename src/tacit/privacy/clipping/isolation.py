"""Isolation: a per-record loss must see one record and say nothing except its result."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from numpy.typing import NDArray
from scipy.special import gammaln

from tacit.errors import CrossRecordError
from tacit.tables.base import as_table
from tacit.typing import Key, Params, RecordLoss, Tree

__all__ = ["require_isolated", "require_no_table"]

_MIN_DISTINCT, _MIN_BITS = 5, 32
"""A column with fewer values, and fewer ways to arrange them, may equal another by chance."""

_TOLERANCE = 1e-6

_CALLBACKS = frozenset({"pure_callback", "io_callback", "debug_callback", "debug_print"})


def require_isolated(
    loss: RecordLoss, params: Params, record: Tree, key: Key, *, records: Tree
) -> None:
    """Raises `CrossRecordError` when a loss could mix records or leak one past the engine.

    The engine maps a loss over records one at a time, so ordinary code cannot mix them. What
    remains is refused here, from the traced program: collective operations over a mapped axis
    (batch normalisation, batch statistics), callbacks and debug prints (a record would leave
    without noise), and closing over the table (it would enter past the sampler). A loss of floating
    parameters is differentiated too, because a custom gradient can do what the loss itself does
    not. What counts as closing over the table, and what cannot be detected, is said at
    `require_no_table`; inside compiled code, where records have no values yet, it is a leaf of
    ``records`` itself, and `tacit.fit` and `DPSVI` compare values before they compile.

    Args:
      loss: a function of parameters, one record and its key; its result may be any tree.
      params: the parameters, or their shapes and dtypes.
      record: one record, or its shapes and dtypes.
      key: a key, or its shape and dtype.
      records: the table, a tree of arrays or wherever it is; traced where a step is compiled.
    """
    leaves = jax.tree.leaves(records)
    for closed in _traced(loss, params, record, key):
        for equation in closed.jaxpr.eqns:
            _require_silent(equation)
        for constant in _constants(closed):
            if _is_of_table(constant, leaves):
                raise CrossRecordError(
                    f"the loss closes over an array of shape {jnp.shape(constant)} that holds the"
                    " records or a column of them. Pass such data as part of the records, so that"
                    " it is sampled and clipped with them."
                )


def require_no_table(
    function: Callable[..., Any],
    *arguments: Tree,
    records: Tree,
    num_records: int | None = None,
) -> None:
    """Raises `CrossRecordError` when a function closes over the table that it may only be given.

    This is for what surrounds the engine: starts, priors, optimisers and whole steps, where the
    releases are all that may be known of the records. A closed-over array is refused if it

    * is a leaf of ``records`` or shares its memory, or
    * has along one of its axes a column of ``records``, up to scale and shift, in the order of the
      rows; or the column but for one row, or with one more, value for value (so the transposed
      table, a copy, one column, and all rows but one are found), or
    * is as long as the table and holds all rows of a batch's column, where ``records`` is a batch.

    It never depends on sizes that happen to agree: weights, fixed features and random draws of any
    shape pass, because their values are not those of the records. Columns that could agree by
    chance are left out: fewer than 5 distinct values in an arrangement of less than 32 bits, as a
    constant or a rare category. Values are compared only where an array of the table's length is
    closed over, on this machine, and nothing depends on them but this error, which the owner of
    the records sees.

    What cannot be detected: a statistic of the table, such as its mean; a part of it of another
    length, or in another order; a function of its columns; and, of a table whose rows are not in
    this process's memory, anything but its own leaves.

    Args:
      function: what to trace.
      *arguments: of the function, or their shapes and dtypes.
      records: the table, a tree of arrays or wherever it is; or a batch of it.
      num_records: how many records the table has of which ``records`` is a batch.
    """
    leaves = jax.tree.leaves(records)
    # Unlike `jax.make_jaxpr` this traces a function once only.
    for closed in _programs(jax.jit(function).trace(*arguments).jaxpr):
        for constant in _constants(closed):
            if _is_of_table(constant, leaves, num_records):
                raise CrossRecordError(
                    f"the model or method closes over an array of shape {jnp.shape(constant)} that"
                    f" holds the {as_table(records).num_records} records or a column of them."
                    " Priors, starts and optimisers may not know the records: only the log"
                    " likelihood does, one at a time, as its argument."
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
    """Yields what a program closes over: arrays at rest, and values of an enclosing program."""
    yield from closed.consts
    for equation in closed.jaxpr.eqns:
        for operand in equation.invars:
            if isinstance(operand, core.Literal):
                yield operand.val


def _is_of_table(constant: Any, leaves: list[Any], num_records: int | None = None) -> bool:
    """Whether an array is a leaf of a table, shares its memory, or holds one of its columns."""
    if any(constant is leaf for leaf in leaves):
        return True
    if not _is_at_hand(constant) or np.ndim(constant) == 0 or np.size(constant) == 0:
        return False
    return any(
        _shares_memory(constant, leaf) or _holds_column_of(constant, leaf, num_records)
        for leaf in filter(_is_at_hand, leaves)
    )


def _is_at_hand(array: Any) -> bool:
    """Whether the numbers of an array are in this process."""
    if isinstance(array, jax.core.Tracer | jax.ShapeDtypeStruct) or not hasattr(array, "dtype"):
        return False
    is_number = jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool
    return is_number and getattr(array, "is_fully_addressable", True)


def _shares_memory(constant: Any, leaf: Any) -> bool:
    """Whether two arrays lie in one place; those elsewhere than in host memory are copied here."""
    if not _is_on_host(constant) or not _is_on_host(leaf):
        return False
    return bool(np.shares_memory(np.asarray(constant), np.asarray(leaf)))


def _is_on_host(array: Any) -> bool:
    return not isinstance(array, jax.Array) or [d.platform for d in array.devices()] == ["cpu"]


def _holds_column_of(constant: Any, leaf: Any, num_records: int | None) -> bool:
    for axis, length in enumerate(np.shape(constant)):
        if num_records is not None and abs(length - num_records) <= 1:
            if _has_rows_of(_columns(constant, axis), _columns(leaf)):
                return True
        elif abs(length - leaf.shape[0]) <= 1:
            shorter, longer = sorted((_columns(constant, axis), _columns(leaf)), key=len)
            is_whole = len(shorter) == len(longer)
            if (_has_equal_column if is_whole else _has_all_but_one)(shorter, longer):
                return True
    return False


def _columns(array: Any, axis: int = 0) -> NDArray[np.float64]:
    """Returns the numbers along an axis, one column for each place on the others."""
    values = np.moveaxis(np.asarray(array), axis, 0)
    return np.nan_to_num(values.reshape(len(values), -1).astype(np.float64))


def _has_equal_column(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    """Whether a column of one array is one of the other, up to scale and shift."""
    (left, right) = (_standardised(columns) for columns in (one, other))
    pairs = np.argwhere(np.abs(left.T @ right) > 1 - _TOLERANCE)
    return any(_is_telling(one[:, i]) and _is_telling(other[:, j]) for i, j in pairs)


def _standardised(columns: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = columns - columns.mean(axis=0)
    norms = np.linalg.norm(centred, axis=0)
    return np.divide(centred, norms, out=np.zeros_like(centred), where=norms > 0)


def _has_all_but_one(shorter: NDArray[np.float64], longer: NDArray[np.float64]) -> bool:
    """Whether a column of ``shorter`` is one of ``longer`` but for one row."""
    # What is left out is the difference of the sums, and its square that of the squares.
    left_out = longer.sum(axis=0)[:, None] - shorter.sum(axis=0)
    squares = np.square(longer).sum(axis=0)[:, None] - np.square(shorter).sum(axis=0)
    scale = 1 + np.square(longer).sum(axis=0)[:, None]
    for i, j in np.argwhere(np.abs(squares - np.square(left_out)) <= _TOLERANCE * scale):
        before = np.logical_and.accumulate(longer[:-1, i] == shorter[:, j])
        after = np.logical_and.accumulate((longer[1:, i] == shorter[:, j])[::-1])[::-1]
        # The row that is left out follows ``before`` equal rows and goes before all the others.
        if np.any(np.append(True, before) & np.append(after, True)) and _is_telling(shorter[:, j]):
            return True
    return False


def _has_rows_of(columns: NDArray[np.float64], batch: NDArray[np.float64]) -> bool:
    """Whether a column holds every number of a column of a batch; whole numbers tell nothing."""
    for values in batch.T:
        fractions = np.unique(values[values != np.round(values)])
        if len(fractions) >= _MIN_DISTINCT and any(
            np.isin(fractions, column).all() for column in columns.T
        ):
            return True
    return False


def _is_telling(column: NDArray[np.float64]) -> bool:
    """Whether a column is one that another does not equal by chance."""
    counts = np.unique(column, return_counts=True)[1]
    arrangements = gammaln(len(column) + 1) - gammaln(counts + 1).sum()
    return len(counts) >= _MIN_DISTINCT or arrangements >= _MIN_BITS * math.log(2)


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
