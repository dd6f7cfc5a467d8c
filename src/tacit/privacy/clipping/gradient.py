"""How a query or a gradient is clipped and summed: the fast way if verified, else the reference.

`gradient_summation_of` decides from shapes how the gradients of a loss are clipped and summed: the
fast way (`book_keeping`) if it agreed with the reference (`bounds`) for this loss (`verification`).
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _tree
from tacit.privacy.clipping import bounds, slack
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.book_keeping import (
    clipped_sum_by_norms,
    lattice_of,
    ways,
)
from tacit.privacy.clipping.bounds import Clipped, Clipping, Flat
from tacit.privacy.clipping.equations import UnsupportedError
from tacit.privacy.clipping.operations import Map, NormPlan, make_norm_plan
from tacit.privacy.clipping.tracing import trace
from tacit.privacy.clipping.verification import is_verified
from tacit.privacy.lattice import Lattice
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Query, RecordLoss, Tree

__all__ = [
    "ClippingReport",
    "Summation",
    "clipped_gradient_sum",
    "explain_clipping",
    "find_norm_plan",
    "gradient_summation_of",
    "summation_of",
]


@dataclass(frozen=True, kw_only=True)
class Summation:
    """How the clipped sum of a query or of a loss's gradients is computed; decided by shapes.

    Attributes:
      lattice: where it is rounded to, and how much of the clip norm that takes.
      clipped_sum: a function of records, keys and a mask, with the settings of
        `bounds.clipped_sum`.
      shapes: the shapes and dtypes of the sum.
      heights: of the counters of norms beside it, in lattice units; empty without counters.
    """

    lattice: Lattice
    clipped_sum: Callable[..., Clipped]
    shapes: Tree
    heights: tuple[int, ...] = ()

    def counting(self, clipping: Clipping) -> Self:
        """Returns the same with counters of norms, where the rule leaves room for them."""
        if not isinstance(clipping, Flat):
            return self
        return replace(self, heights=slack.heights_on(self.lattice))

    @property
    def dtype(self) -> Any:
        """Of all numbers of the sum together."""
        return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(self.shapes)))

    def in_one(self, clipped: Clipped, adding: Adding) -> Array:
        """Returns all numbers of a sum one after the other, ``(num_limbs, size)``."""
        num_limbs = adding.num_limbs or 1
        dtype = jnp.int32 if adding.is_exact else self.dtype
        leaves = [leaf.reshape(num_limbs, -1).astype(dtype) for leaf in jax.tree.leaves(clipped)]
        return jnp.concatenate(leaves, axis=1)

    def apart(self, numbers: Array) -> Clipped:
        """Returns numbers one after the other as a tree of the sum's shapes, and the counters."""
        leaves, treedef = jax.tree.flatten(self.shapes)
        *parts, counters = jnp.split(numbers, np.cumsum([leaf.size for leaf in leaves]))
        shaped = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(parts, leaves, strict=True)
        ]
        return Clipped(jax.tree.unflatten(treedef, shaped), counters)


def summation_of(query: Query, record: Tree, key: Key) -> Summation:
    """Returns how a query is summed: record by record, each rounded by itself.

    Args:
      query: a function of one record and its key.
      record: the shapes of one record.
      key: a key, or its shape.
    """
    shapes = jax.eval_shape(lambda *one: _tree.at_least_float32(query(*one)), record, key)
    return Summation(
        lattice=Lattice(rounding=max(1.0, 0.5 * math.sqrt(_tree.size(shapes)))),
        clipped_sum=functools.partial(bounds.clipped_sum, query),
        shapes=shapes,
    )


def gradient_summation_of(loss: RecordLoss, params: Params, record: Tree, key: Key) -> Summation:
    """Returns how the gradients of a loss are summed.

    Args:
      loss: a function of parameters, one record and its key; any JAX program.
      params: the parameters.
      record: the shapes of one record.
      key: a key, or its shape.
    """
    plan = find_norm_plan(loss, params, record, key)
    if isinstance(plan, str):
        return summation_of(lambda record, key: jax.grad(loss)(params, record, key), record, key)
    data = jax.eval_shape(lambda *one: [leaf[None] for leaf in jax.tree.leaves(one)], record, key)
    return Summation(
        lattice=lattice_of(plan, jax.tree.leaves(params), data),
        clipped_sum=functools.partial(clipped_sum_by_norms, plan, params),
        shapes=jax.eval_shape(_tree.at_least_float32, params),
    )


def clipped_gradient_sum(
    loss: RecordLoss,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Tree:
    """Returns the sum over records of the clipped gradient of ``loss(params, record, key)``.

    Guarantee:
      As for `bounds.clipped_sum`, which this equals up to rounding.

    Args:
      loss: a function of parameters, one record and its key; any JAX program.
      params: the parameters.
      records: a batch; every leaf has a leading record axis.
      keys: one key for each record.
      mask: which rows are records and which are padding.
      clipping: the rule.
      clip_norm: the bound on one record's gradient.
      chunk_size: how many records are looked at together; by default as many as memory allows.
      adding: as integers, or as floats.
    """
    record = jax.eval_shape(lambda r: jax.tree.map(lambda leaf: leaf[0], r), records)
    key = jax.eval_shape(lambda k: k[0], keys)
    return (
        gradient_summation_of(loss, params, record, key)
        .clipped_sum(
            records,
            keys,
            mask,
            clipping=clipping,
            clip_norm=clip_norm,
            chunk_size=chunk_size,
            adding=adding,
        )
        .total
    )


def find_norm_plan(loss: RecordLoss, params: Params, record: Tree, key: Key) -> NormPlan | str:
    """Returns the verified plan for a loss, or why there is none."""
    try:
        plan = make_norm_plan(trace(loss, params, record, key))
        if is_verified(plan):
            return plan
    except UnsupportedError as reason:
        return str(reason)
    return "the fast way could not be verified against the reference on random records"


@dataclass(frozen=True, kw_only=True)
class ParameterPath:
    """How one parameter's per-record norm is obtained.

    Attributes:
      name: the parameter.
      shape: of the parameter.
      how: in words.
      num_formed: how many numbers are formed for each record on the way; 0 is best.
      advice: what would make it faster, if anything.
    """

    name: str
    shape: tuple[int, ...]
    how: str
    num_formed: int
    advice: str = ""


@dataclass(frozen=True, kw_only=True)
class ClippingReport:
    """How a loss is clipped; print it.

    Attributes:
      parameters: one entry for each leaf; empty where the reference is used for all.
      fallback: why the reference is used for all, or empty.
      released: a sentence on what the gradients are with respect to, where that is not obvious.
    """

    parameters: tuple[ParameterPath, ...]
    fallback: str = ""
    released: str = ""

    def __str__(self) -> str:
        return "\n".join(filter(None, [self.released, *self._lines()]))

    def _lines(self) -> list[str]:
        if self.fallback:
            return [f"All per-record gradients are formed: {self.fallback}."]
        rows = [
            (path.name, "x".join(map(str, path.shape)) or "scalar", path.how, path.num_formed)
            for path in self.parameters
        ]
        wide = [max(len(str(row[column])) for row in rows) for column in range(3)]
        lines = [
            "  ".join(
                str(cell).ljust(width) for cell, width in zip(row, wide, strict=False)
            ).rstrip()
            + (f"  ({row[3]} numbers a record)" if row[3] else "")
            for row in rows
        ]
        advice = [f"{path.name}: {path.advice}" for path in self.parameters if path.advice]
        return lines + advice


def explain_clipping(loss: RecordLoss, params: Params, record: Tree) -> ClippingReport:
    """Returns which way each parameter of a per-record loss is clipped, and what it costs.

    Args:
      loss: ``loss(params, record, key)`` of one record.
      params: the parameters, or their shapes.
      record: one record, or its shapes.

    Example:
      >>> import jax.numpy as jnp
      >>> def loss(params, record, key):
      ...     return jnp.sum(jnp.tanh(record @ params["kernel"] + params["bias"]))
      >>> params = {"kernel": jnp.ones((3, 2)), "bias": jnp.ones(2)}
      >>> print(explain_clipping(loss, params, jnp.ones(3)))
      bias    2    formed at add, the size of its values  (2 numbers a record)
      kernel  3x2  norms multiply at dot_general
    """
    found = find_norm_plan(loss, params, record, seeded_key(0))
    if isinstance(found, str):
        return ClippingReport(parameters=(), fallback=found)
    named = jax.tree_util.tree_leaves_with_path(params)
    shapes = [tuple(leaf.shape) for _, leaf in named]
    batch = jax.eval_shape(
        lambda r, k: jax.tree.map(lambda x: x[None], [*jax.tree.leaves(r), k]),
        record,
        seeded_key(0),
    )
    found_ways = ways(found, [leaf for _, leaf in named], batch)
    return ClippingReport(
        parameters=tuple(
            ParameterPath(
                name=jax.tree_util.keystr(path, simple=True, separator="/") or "parameters",
                shape=shape,
                how=way.words,
                num_formed=way.num_formed,
                advice=_advice(found, leaf, way.num_formed, math.prod(shape)),
            )
            for leaf, ((path, _), shape, way) in enumerate(
                zip(named, shapes, found_ways, strict=True)
            )
        )
    )


def _advice(plan: NormPlan, leaf: int, formed: int, size: int) -> str:
    if formed < max(size, 4096):
        return ""
    if len(plan.reads[leaf]) > 1:
        return (
            "it acts in several places (tied weights, or a prior inside the loss); a prior belongs"
            " in the model's log_prior, outside the clip"
        )
    if any(path.map is Map.GENERAL for path in plan.paths[leaf]):
        return "it is transformed before use by more than elementwise functions"
    return ""
