"""Explaining: which way each parameter is clipped, and what to do where it is slow."""

import math
from dataclasses import dataclass

import jax

from tacit.privacy.clipping.classification import Map
from tacit.privacy.clipping.engine import Recipe, ways
from tacit.privacy.clipping.gradient import find_recipe
from tacit.rng import seeded_key
from tacit.typing import Params, RecordLoss, Tree

__all__ = ["ClippingReport", "ParameterPath", "explain_clipping"]


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
    """

    parameters: tuple[ParameterPath, ...]
    fallback: str = ""

    def __str__(self) -> str:
        if self.fallback:
            return f"All per-record gradients are formed: {self.fallback}."
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
        return "\n".join(lines + advice)


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
    found = find_recipe(loss, params, record, seeded_key(0))
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


def _advice(recipe: Recipe, leaf: int, formed: int, size: int) -> str:
    if formed < max(size, 4096):
        return ""
    if len(recipe.reads[leaf]) > 1:
        return (
            "it acts in several places (tied weights, or a prior inside the loss); a prior belongs"
            " in the model's log_prior, outside the clip"
        )
    if any(path.map is Map.GENERAL for path in recipe.paths[leaf]):
        return "it is transformed before use by more than elementwise functions"
    return ""
