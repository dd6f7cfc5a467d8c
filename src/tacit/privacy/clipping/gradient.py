"""Clipped gradient sums: the fast exact way where it was verified, the reference elsewhere."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit import _tree
from tacit.privacy.clipping import reference
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.clipping.engine import Recipe, clipped_sum_by_norms, lattice_of, make_recipe
from tacit.privacy.clipping.sites import UnsupportedError
from tacit.privacy.clipping.tracing import trace
from tacit.privacy.clipping.verification import is_verified
from tacit.privacy.lattice import Lattice
from tacit.typing import Array, Key, Params, Query, RecordLoss, Tree

__all__ = [
    "Summation",
    "clipped_gradient_sum",
    "find_recipe",
    "gradient_summation_of",
    "summation_of",
]


@dataclass(frozen=True, kw_only=True)
class Summation:
    """How the clipped sum of a query or of a loss's gradients is computed; decided by shapes.

    Attributes:
      lattice: where it is rounded to, and how much of the clip norm that takes.
      clipped_sum: a function of records, keys and a mask, with the settings of
        `reference.clipped_sum`.
      shapes: the shapes and dtypes of the sum.
    """

    lattice: Lattice
    clipped_sum: Callable[..., Tree]
    shapes: Tree

    @property
    def dtype(self) -> Any:
        """Of all numbers of the sum together."""
        return jnp.result_type(jnp.float32, *(leaf.dtype for leaf in jax.tree.leaves(self.shapes)))

    def in_one(self, total: Tree, adding: Adding) -> Array:
        """Returns a sum's numbers one after the other, ``(num_limbs, size)``."""
        num_limbs = adding.num_limbs or 1
        dtype = jnp.int32 if adding.is_exact else self.dtype
        leaves = [leaf.reshape(num_limbs, -1).astype(dtype) for leaf in jax.tree.leaves(total)]
        return jnp.concatenate(leaves, axis=1)

    def apart(self, numbers: Array) -> Tree:
        """Returns numbers one after the other as a tree of the sum's shapes."""
        leaves, treedef = jax.tree.flatten(self.shapes)
        ends = np.cumsum([leaf.size for leaf in leaves])[:-1]
        parts = [
            part.reshape(leaf.shape).astype(leaf.dtype)
            for part, leaf in zip(jnp.split(numbers, ends), leaves, strict=True)
        ]
        return jax.tree.unflatten(treedef, parts)


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
        clipped_sum=functools.partial(reference.clipped_sum, query),
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
    found = find_recipe(loss, params, record, key)
    if not isinstance(found, Recipe):
        return summation_of(lambda record, key: jax.grad(loss)(params, record, key), record, key)
    recipe = found
    data = jax.eval_shape(lambda *one: [leaf[None] for leaf in jax.tree.leaves(one)], record, key)
    return Summation(
        lattice=lattice_of(recipe, jax.tree.leaves(params), data),
        clipped_sum=functools.partial(clipped_sum_by_norms, recipe, params),
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
      As for `reference.clipped_sum`, which this equals up to rounding.

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
    return gradient_summation_of(loss, params, record, key).clipped_sum(
        records,
        keys,
        mask,
        clipping=clipping,
        clip_norm=clip_norm,
        chunk_size=chunk_size,
        adding=adding,
    )


def find_recipe(loss: RecordLoss, params: Params, record: Tree, key: Key) -> Recipe | str:
    """Returns the verified recipe for a loss, or why there is none."""
    try:
        recipe = make_recipe(trace(loss, params, record, key))
        if is_verified(recipe):
            return recipe
    except UnsupportedError as reason:
        return str(reason)
    return "the fast way could not be verified against the reference on random records"
