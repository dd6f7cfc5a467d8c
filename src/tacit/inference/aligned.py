"""Aligned releases: gradients with respect to the draw that all records of a step share.

A guide's parameters reach a record only through a draw of the model's parameters. So the gradient
with respect to that draw is all there is to ask the records for: what the guide's own parameters
make of it is the transposed derivative of the draw, computed from the release without another look
at a record. A mean-field guide has twice as many parameters as a draw has, a full covariance as
many as their square; the noise grows with what is released, and so does what a clip has to bound.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from tacit import _tree
from tacit.inference.evidence import Evidence, noted
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Key, Params, Scalar, Tree

__all__ = ["AlignedObjective", "aligned_gradient"]


class AlignedObjective(NamedTuple):
    """What variational inference minimises in one step, with what records see of it told apart.

    Attributes:
      draws: what records see in this step: a list of draws, as a function of the optimised
        parameters. No record is in it.
      record_loss: the loss of one record, averaged over draws; clipped.
      regulariser: divergence and entropy; exact, outside the clip, no data.
    """

    draws: Callable[[Params], list[Params]]
    record_loss: Callable[[list[Params], Tree, Key], Scalar]
    regulariser: Callable[[Params], Scalar]


def aligned_gradient(
    key: Key,
    release: GaussianSum,
    objective: AlignedObjective,
    params: Params,
    records: Tree,
    *,
    evidence: Evidence | None = None,
    clip_norm: Scalar | float | None = None,
) -> tuple[Tree, Evidence | None]:
    """Returns an estimate of the gradient of the full-data objective, from one aligned release.

    Without clip and noise it is the gradient of the objective itself.

    Guarantee:
      One release of the gradients with respect to all draws together, in one clip. The rest is
      post-processing.

    Args:
      key: of the release.
      release: the engine.
      objective: whose gradient.
      params: where: the guide's parameters.
      records: the table.
      evidence: what was noted so far; the same with this release is returned. None stays None.
      clip_norm: replaces the configured one.
    """
    wide, transposed = jax.vjp(objective.draws, _tree.at_least_float32(params))
    like = jax.eval_shape(objective.draws, params)
    draws = jax.tree.map(lambda draw, shape: draw.astype(shape.dtype), wide, like)
    found = release.counted_gradient(
        key, objective.record_loss, draws, records, clip_norm=clip_norm
    )
    # Each is the gradient of the loss divided by the number of draws: their sum is the average
    # gradient, which near a mode is the gradient at the average draw.
    variance = len(draws) * release.noise_variance(clip_norm=clip_norm)
    evidence = noted(evidence, _mean(wide), _sum(found.estimate), variance, found)
    (gradient,) = transposed(found.estimate)
    exact = jax.grad(objective.regulariser)(params)
    return jax.tree.map(jnp.add, gradient, exact), evidence


def _sum(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *trees)


def _mean(trees: list[Tree]) -> Tree:
    return jax.tree.map(lambda leaf: leaf / len(trees), _sum(trees))
