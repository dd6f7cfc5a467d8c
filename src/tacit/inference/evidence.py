"""Evidence: what a run notes of its own releases, so that noise and clip can be told afterwards."""

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
from tacit.privacy.clipping.slack import EDGES, Counted, NormHistogram
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Array, Params, Scalar

__all__ = [
    "MAX_PARAMETERS",
    "SLOPE_CHANGE",
    "Evidence",
    "Matrix",
    "Releases",
    "Vector",
    "evidence_of",
    "first_evidence",
    "has_hidden_layers",
    "histogram_in",
    "no_evidence",
    "norms_of",
    "noted",
    "only_norms",
    "releases_in",
]

Vector: TypeAlias = NDArray[np.float64]
Matrix: TypeAlias = NDArray[np.float64]

MAX_PARAMETERS = 128
"""Beyond, a curvature has more entries than a run has releases to learn them from."""

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
      points: ``(num_blocks, d)``, where gradients were asked for; ``d`` is zero where no posterior
        could be made of them.
      gradients: ``(num_blocks, d)``, what the engine returned.
      variances: ``(num_blocks,)``, of the noise on each coordinate of these gradients.
      norms: ``(num_blocks, num_bins)``, shares of records by the norms of their gradients, as
        released (`tacit.privacy.clipping.slack.Counted`); NaN where they were not counted.
      norm_variances: ``(num_blocks, num_bins)``, of the noise on these shares.
      counts: ``(num_blocks,)``, how many releases are in a block.
      num_steps: how many releases there were.
      curvatures: ``(num_blocks, d (d + 1) / 2)``, released with the gradients: the upper triangle
        row by row, off the diagonal times the square root of two. None where none was released.
      curvature_variances: ``(num_blocks,)``, of the noise on each of these numbers.
    """

    points: Array
    gradients: Array
    variances: Array
    norms: Array
    norm_variances: Array
    counts: Array
    num_steps: Array
    curvatures: Array | None = None
    curvature_variances: Array | None = None


def first_evidence(
    params: Params, release: GaussianSum, model: Model | None = None
) -> Evidence | None:
    """Returns evidence without a release; None where there will be nothing to note.

    Without noise no posterior has to be made, and norms are counted by the rule `Flat`. Points and
    gradients are noted where a posterior can be made of them: not where a model has too many
    parameters, and not where its description has hidden layers, for no quadratic fits a network.

    Args:
      params: where gradients will be asked for, or their shapes.
      release: the engine.
      model: with its description.
    """
    size = _tree.size(params)
    if size > MAX_PARAMETERS or has_hidden_layers(model):
        size = 0
    if not (release.is_private if size else isinstance(release.clipping, Flat)):
        return None
    return no_evidence(num_rows=_NUM_BLOCKS, size=size)


def no_evidence(*, num_rows: int, size: int) -> Evidence:
    """Returns room for so many rows of evidence on so many parameters."""
    vectors, row = jnp.zeros((num_rows, size)), jnp.zeros(num_rows)
    norms = jnp.zeros((num_rows, len(EDGES)))
    return Evidence(vectors, vectors, row, norms, norms, row, jnp.zeros((), jnp.int32))


def only_norms(evidence: Evidence | None) -> Evidence | None:
    """Returns what was noted of norms; of points, what would be noted of a network's."""
    if evidence is None:
        return None
    nothing = evidence.points[..., :0]
    return evidence._replace(
        points=nothing, gradients=nothing, curvatures=None, curvature_variances=None
    )


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
    found: Counted,
) -> Evidence | None:
    """Returns the evidence with one release more.

    Args:
      evidence: so far; None stays None.
      point: where the gradient was asked for.
      gradient: what was released: without prior, in the scale of all records.
      variance: of the noise on each of its coordinates.
      found: what the engine returned, with the norms that it counted.
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

    points, gradients = evidence.points, evidence.gradients
    if points.size:
        points, gradients = added(points, _flat(point)), added(gradients, _flat(gradient))
    norms, norm_variances = norms_of(found)
    return Evidence(
        points,
        gradients,
        added(evidence.variances, variance),
        added(evidence.norms, norms),
        added(evidence.norm_variances, norm_variances),
        added(evidence.counts, 1.0),
        step + 1,
    )


def norms_of(found: Counted) -> tuple[Array, Array]:
    """Returns the shares of records by norm and the variances of their noise; NaN if unknown."""
    if found.shares.size:
        return found.shares, found.variances
    return jnp.full(len(EDGES), jnp.nan), jnp.full(len(EDGES), jnp.nan)


def _flat(tree: Params) -> Array:
    return ravel_pytree(_tree.at_least_float32(tree))[0]


@dataclass(frozen=True, kw_only=True)
class Releases:
    """What a run has released, as numbers: averages over blocks, from all chains.

    Attributes:
      points: ``(num_blocks, d)``.
      gradients: ``(num_blocks, d)``, of the summed loss, without the prior.
      variances: ``(num_blocks,)``, of the noise on a coordinate of a block's gradient.
      counts: ``(num_blocks,)``, of releases in a block.
      is_late: ``(num_blocks,)``, whether a block belongs to the second half of its chain.
      norms: ``(num_blocks, num_bins)``, shares of records by norm; NaN where unknown.
      norm_variances: ``(num_blocks, num_bins)``, of their noise.
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
    norms: Matrix
    norm_variances: Matrix
    curvatures: NDArray[np.float64] | None = None
    curvature_variances: Vector | None = None
    batch_noise: float = 0.0
    num_records: int = 1
    groups: NDArray[np.int64] | None = None
    slope_change: float = SLOPE_CHANGE

    def histogram(self, weights: Vector) -> NormHistogram:
        """Returns the shares of records by norm, averaged over blocks with these weights."""
        shares = weights / weights.sum()
        return NormHistogram.of(
            shares @ self.norms,
            shares**2 @ self.norm_variances,
            # Of a batch, each bin has a binomial number of records.
            batch_noise=self.batch_noise / self.num_records * float(shares**2 @ (1 / self.counts)),
        )


def histogram_in(evidence: Evidence, engine: GaussianSum) -> NormHistogram | None:
    """Returns how large gradients were in the second half of a run; None where nobody counted.

    Args:
      evidence: of all chains; every leaf has a leading chain axis.
      engine: which made the releases.
    """
    if not np.any(np.asarray(evidence.counts) > 0):
        return None
    releases = releases_in(evidence, engine)
    found = releases.histogram(releases.is_late * releases.counts)
    return found if np.all(np.isfinite(found.shares)) else None


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
        norms=means(evidence.norms),
        norm_variances=means(evidence.norm_variances) / used[:, None],
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
