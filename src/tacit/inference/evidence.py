"""Evidence: what a run notes of its own releases, so that their noise can be counted afterwards.

A method adds one number to each of its releases, a probe: every record is asked for the same known
constant beside its gradient, inside the same clip. The noisy sum of it tells how much of the
gradients the clip has left, at no further cost: same clip, same noise, same event.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpy.typing import NDArray

from tacit import _tree
from tacit.models import MLP, Model
from tacit.privacy.clipping import Flat
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Array, Key, Params, Record, RecordLoss, Scalar, Tree

__all__ = [
    "MAX_PARAMETERS",
    "PROBE",
    "SLOPE_CHANGE",
    "Evidence",
    "Matrix",
    "Releases",
    "Vector",
    "evidence_of",
    "first_evidence",
    "has_hidden_layers",
    "noted",
    "presence",
    "probed",
    "probed_gradient",
    "releases_in",
]

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]

MAX_PARAMETERS = 128
"""Beyond, a curvature has more entries than a run has releases to learn them from."""

PROBE = 0.1
"""The probe in clip norms. It takes half a per cent of the room of a gradient at the clip norm."""

SLOPE_CHANGE = 2.0
"""How fast the curvature changes: the relative change over a distance at which the loss of a record
changes by half a nat. Logistic regression has 1 to 4; a larger number trusts far releases less. In
simulations 2 covers as the true curvature does, and 4 makes intervals wider without need. Where
curvature is released too, less hangs on how far releases are trusted, and half of it is enough."""

_BLOCKS_AN_OCTAVE = 256
_NUM_OCTAVES = 12
_NUM_BLOCKS = _BLOCKS_AN_OCTAVE * _NUM_OCTAVES


class Evidence(NamedTuple):
    """Sums over blocks of consecutive releases; a linear relation survives averaging.

    Blocks get longer as a run goes on, so that the last half of a run always has at least 256 and
    a run of any length fits.

    Attributes:
      points: ``(num_blocks, d)``, where gradients were asked for.
      gradients: ``(num_blocks, d)``, what the engine returned.
      variances: ``(num_blocks,)``, of the noise on each coordinate of these gradients.
      shares: ``(num_blocks,)``, of what was asked for that was left by the clip, as released; NaN
        where that was not asked for.
      counts: ``(num_blocks,)``, how many releases are in a block.
      num_steps: how many releases there were.
      curvatures: ``(num_blocks, d (d + 1) / 2)``, released with the gradients: the upper triangle
        row by row, off the diagonal times the square root of two. None where none was released.
      curvature_variances: ``(num_blocks,)``, of the noise on each of these numbers.
    """

    points: Array
    gradients: Array
    variances: Array
    shares: Array
    counts: Array
    num_steps: Array
    curvatures: Array | None = None
    curvature_variances: Array | None = None


def first_evidence(
    params: Params, release: GaussianSum, model: Model | None = None
) -> Evidence | None:
    """Returns evidence without a release.

    Returns None where a release has no noise that would have to be counted, where a model has too
    many parameters, and where its description has hidden layers: no quadratic fits a network.
    """
    size = _tree.size(params)
    if size > MAX_PARAMETERS or not release.is_private or has_hidden_layers(model):
        return None
    zeros, row = jnp.zeros((_NUM_BLOCKS, size)), jnp.zeros(_NUM_BLOCKS)
    return Evidence(zeros, zeros, row, row, row, jnp.zeros((), jnp.int32))


def has_hidden_layers(model: Model | None) -> bool:
    """Whether a model's description has hidden layers; False where it has no description."""
    if model is None or model.spec is None:
        return False
    network = model.spec["network"]
    network = network.get("head", network)
    return network["kind"] != MLP.__name__ or bool(network["hidden"])


def evidence_of(state: Any) -> Evidence | None:
    """Returns what a state has noted."""
    return state.evidence


def noted(
    evidence: Evidence | None,
    point: Params,
    gradient: Params,
    variance: Scalar | float,
    share: Scalar | float,
) -> Evidence | None:
    """Returns the evidence with one release more.

    Args:
      evidence: so far; None stays None.
      point: where the gradient was asked for.
      gradient: what the engine returned: without prior, in the scale of all records.
      variance: of the noise on each of its coordinates.
      share: of what was asked for that was left by the clip; NaN where nobody knows.
    """
    if evidence is None:
        return None
    step = evidence.num_steps
    # The first 512 blocks have one step each, the next 256 two, the next 256 four.
    octave = 31 - jax.lax.clz(jnp.maximum(step // _BLOCKS_AN_OCTAVE, 1))
    block = octave * _BLOCKS_AN_OCTAVE + (step >> octave)
    block = jnp.minimum(block, _NUM_BLOCKS - 1)

    def added(total: Array, one: Array | Scalar | float) -> Array:
        return total.at[block].add(one)

    return Evidence(
        added(evidence.points, _flat(point)),
        added(evidence.gradients, _flat(gradient)),
        added(evidence.variances, variance),
        added(evidence.shares, share),
        added(evidence.counts, 1.0),
        step + 1,
    )


def _flat(tree: Params) -> Array:
    return ravel_pytree(_tree.at_least_float32(tree))[0]


def probed_gradient(
    key: Key,
    release: GaussianSum,
    loss: RecordLoss,
    params: Params,
    records: Tree,
    *,
    noise_multiplier: Scalar | float | None = None,
    clip_norm: Scalar | float | None = None,
) -> tuple[Tree, Scalar]:
    """Returns a release's estimate of the gradient, and of the share that the clip has left.

    Guarantee:
      One release, as `GaussianSum.gradient` makes it: the probe is one more coordinate of what is
      clipped and summed.

    Args:
      key: of the release.
      release: the engine. Rules other than `Flat` clip layers apart, or always: then the share is
        NaN, and nothing is added.
      loss: of one record.
      params: where the gradient is asked for.
      records: the table.
      noise_multiplier: replaces the configured one.
      clip_norm: likewise.
    """
    overrides: dict[str, Any] = {"noise_multiplier": noise_multiplier, "clip_norm": clip_norm}
    if not isinstance(release.clipping, Flat):
        return release.gradient(key, loss, params, records, **overrides), jnp.full((), jnp.nan)
    size = PROBE * (release.clip_norm if clip_norm is None else clip_norm)
    both = (params, jnp.zeros(()))
    estimate, total = release.gradient(key, probed(loss, size), both, records, **overrides)
    return estimate, total / (size * release.sampling.public_records)


def probed(loss: RecordLoss, size: Scalar | float) -> RecordLoss:
    """Returns a loss whose gradient has one coordinate more, of this size for every record."""

    def loss_and_probe(both: tuple[Params, Array], record: Tree, key: Key) -> Scalar:
        params, probe = both
        return loss(params, record, key) + size * presence(record) * probe

    return loss_and_probe


def presence(record: Tree) -> Array:
    """Returns one, or zero for a record that weighs nothing: it must contribute nothing at all."""
    if not isinstance(record, Record):
        return jnp.ones(())
    weight = record.weight if record.mask is None else record.weight * record.mask
    return jnp.any(weight > 0).astype(jnp.float32)


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What a run has released, as numbers: averages over blocks, from all chains.

    Attributes:
      points: ``(num_blocks, d)``.
      gradients: ``(num_blocks, d)``, of the summed loss, without the prior.
      variances: ``(num_blocks,)``, of the noise on a coordinate of a block's gradient.
      counts: ``(num_blocks,)``, of releases in a block.
      is_late: ``(num_blocks,)``, whether a block belongs to the second half of its chain.
      shares: ``(num_blocks,)``, what the clip left of what was asked for; NaN where unknown.
      share_variances: ``(num_blocks,)``, of their noise.
      curvatures: ``(num_blocks, d, d)``, released curvatures; None where there are none.
      curvature_variances: ``(num_blocks,)``, of the noise on a diagonal entry; off the diagonal it
        is half.
      batch_noise: ``(1 - q) / q`` for batches of inclusion rate ``q``.
      num_records: the public number of records.
      groups: ``(d,)``, a number for each parameter, the same for parameters that are alike (the
        weights of a layer, the effects of groups); None where all are.
      slope_change: how fast the curvature changes; zero where the loss is exactly quadratic.
    """

    points: Matrix
    gradients: Matrix
    variances: Vector
    counts: Vector
    is_late: NDArray[np.bool_]
    shares: Vector
    share_variances: Vector
    curvatures: NDArray[np.float64] | None = None
    curvature_variances: Vector | None = None
    batch_noise: float = 0.0
    num_records: int = 1
    groups: NDArray[np.int64] | None = None
    slope_change: float = SLOPE_CHANGE


def releases_in(
    evidence: Evidence,
    engine: GaussianSum,
    groups: NDArray[np.int64] | None = None,
    *,
    slope_change: float = SLOPE_CHANGE,
) -> Releases:
    """Returns the releases that the states of all chains have noted.

    Args:
      evidence: of all chains; every leaf has a leading chain axis.
      engine: which made them.
      groups: which parameters are alike, for `Releases`.
      slope_change: how fast the curvature changes, for `Releases`.
    """
    counts = np.asarray(evidence.counts, np.float64)
    is_used = counts > 0
    used = counts[is_used]
    rate, num_records = engine.sampling.inclusion_rate, engine.sampling.public_records

    def means(totals: object) -> NDArray[np.float64]:
        chosen = np.asarray(totals, np.float64)[is_used]
        return chosen / used.reshape(-1, *([1] * (chosen.ndim - 1)))

    variances = means(evidence.variances) / used
    found = Releases(
        points=means(evidence.points),
        gradients=means(evidence.gradients),
        variances=variances,
        counts=used,
        is_late=(np.cumsum(counts, axis=1) > counts.sum(1, keepdims=True) / 2)[is_used],
        shares=means(evidence.shares),
        share_variances=variances / (PROBE * engine.clip_norm * num_records) ** 2,
        batch_noise=(1 - rate) / rate,
        num_records=num_records,
        groups=groups,
        slope_change=slope_change,
    )
    if evidence.curvatures is None:
        return found
    return replace(
        found,
        curvatures=_matrices(means(evidence.curvatures), found.points.shape[1]),
        curvature_variances=means(evidence.curvature_variances) / used,
        slope_change=slope_change / 2,
    )


def _matrices(triangles: Matrix, dim: int) -> NDArray[np.float64]:
    rows, columns = np.triu_indices(dim)
    found = np.zeros((len(triangles), dim, dim))
    found[:, rows, columns] = triangles / np.where(rows == columns, 1.0, math.sqrt(2))
    return found + np.triu(found, 1).swapaxes(1, 2)
