"""Clipped gradient sums: the fast exact way where it was verified, the reference elsewhere."""

import jax

from tacit.privacy.clipping import reference
from tacit.privacy.clipping.bounds import Clipping
from tacit.privacy.clipping.engine import Recipe, clipped_sum_by_norms, make_recipe
from tacit.privacy.clipping.sites import UnsupportedError
from tacit.privacy.clipping.tracing import trace
from tacit.privacy.clipping.verification import is_verified
from tacit.typing import Array, Key, Params, RecordLoss, Tree

__all__ = ["clipped_gradient_sum", "find_recipe"]


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
) -> Tree:
    """Returns the sum over records of the clipped gradient of ``loss(params, record, key)``.

    Guarantee:
      As for `reference.clipped_sum`, which this equals up to rounding: replacing any one record by
      nothing moves the result by at most ``clip_norm``.

    Args:
      loss: a function of parameters, one record and its key; any JAX program.
      params: the parameters.
      records: a batch; every leaf has a leading record axis.
      keys: one key for each record.
      mask: which rows are records and which are padding.
      clipping: the rule.
      clip_norm: the bound on one record's gradient.
      chunk_size: how many records are looked at together; by default as many as memory allows.
    """
    record = jax.eval_shape(lambda r: jax.tree.map(lambda leaf: leaf[0], r), records)
    key = jax.eval_shape(lambda k: k[0], keys)
    found = find_recipe(loss, params, record, key)
    if isinstance(found, Recipe):
        return clipped_sum_by_norms(
            found,
            params,
            records,
            keys,
            mask,
            clipping=clipping,
            clip_norm=clip_norm,
            chunk_size=chunk_size,
        )
    return reference.clipped_gradient_sum(
        loss,
        params,
        records,
        keys,
        mask,
        clipping=clipping,
        clip_norm=clip_norm,
        chunk_size=chunk_size,
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
