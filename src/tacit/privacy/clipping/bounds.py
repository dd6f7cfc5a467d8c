"""Clipping rules, and the clipped sum in its slow and obvious form.

A rule sees only squared norms, one for each leaf of the contribution. That is all it needs, so
the same rule serves the reference, which has the contribution in its hands, and any faster path
that knows norms without ever forming a per-record gradient. The squared norms that it is given are
upper bounds of the real ones, and what it adds to them is rounded up, so the factors bound real
norms and not only computed ones; the last few roundings of a factor itself are left to the
margin of `tacit.privacy.lattice.Lattice.share`.

This is the definition that any faster path is tested against.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.privacy.clipping import slack
from tacit.privacy.clipping.adding import Adding
from tacit.privacy.lattice import materialised, nested_sum, raised
from tacit.typing import Array, Key, Params, Query, RecordLoss, Scalar, Tree

__all__ = [
    "Clipped",
    "Clipping",
    "Flat",
    "Normalised",
    "PerLayer",
    "clip_by_norm",
    "clipped_sum",
    "counters_of",
    "in_chunks",
    "reference_gradient_sum",
    "squared_norms",
]

_SMALLEST_FLOOR = 1e-10
"""Coordinates below 1.1e-19 have no square in float32, so a computed norm can be too small by
sqrt(d) times that. It stays below this floor for every d up to 8e17, and then the norm plus the
floor is at least the true norm."""


class Clipping(Protocol):
    """A rule that bounds one record's contribution, all leaves together, to an l2 norm."""

    def factors(self, squared: Tree, *, clip_norm: float | Scalar) -> Tree:
        """Returns, for a tree of squared leaf norms, the tree of factors to multiply leaves by.

        Guarantee:
          ``sqrt(sum(factor**2 * squared)) <= clip_norm`` for every input, up to four roundings of
          the factor; where a squared norm is not finite all factors are zero.

        Args:
          squared: upper bounds on the squared norms of the leaves.
          clip_norm: the bound; may be traced.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Flat:
    """One norm over all parameters together: ``g * min(1, clip_norm / norm(g))``.

    Guarantee:
      Sensitivity ``clip_norm``.
    """

    def factors(self, squared: Tree, *, clip_norm: float | Scalar) -> Tree:
        """The same factor for every leaf."""
        norm = jnp.sqrt(_total(squared))
        factor = jnp.where(norm > clip_norm, clip_norm / norm, 1.0)
        return _everywhere(squared, factor)


@dataclass(frozen=True, kw_only=True)
class Normalised:
    """Every contribution scaled to just below the clip norm: ``g * clip_norm / (norm(g) + floor)``.

    The step no longer depends on the clip norm's size, which is one thing less to tune; small
    gradients are amplified, and ``floor`` says how small is small.

    Guarantee:
      Sensitivity ``clip_norm``, for contributions however small: a floor below 1e-10 is refused,
      because float32 cannot tell norms of that size from zero and would amplify them past the clip.

    Reference:
      Bu, Wang, Zha, Karypis, "Automatic clipping" (2023), AUTO-S with gamma = floor.
    """

    floor: float = 0.01

    def __post_init__(self) -> None:
        _check.positive(floor=self.floor)
        if self.floor < _SMALLEST_FLOOR:
            raise InvalidArgumentError(
                f"floor must be at least {_SMALLEST_FLOOR}; got {self.floor}. Norms that small"
                " underflow in float32, so they could not be bounded: scale the loss up instead."
            )

    def factors(self, squared: Tree, *, clip_norm: float | Scalar) -> Tree:
        """The same factor for every leaf."""
        if isinstance(clip_norm, float) and math.isinf(clip_norm):
            raise InvalidArgumentError(
                "clip_norm must be finite with Normalised clipping; got inf. Use Flat()."
            )
        norm = jnp.sqrt(_total(squared))
        return _everywhere(squared, clip_norm / (norm + self.floor))


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each layer clipped by itself to its share of the clip norm.

    A layer is what holds leaves side by side, such as a kernel and its bias; a leaf that stands
    alone is a layer.

    Guarantee:
      Layer ``l`` has norm at most ``clip_norm * share_l / sqrt(sum(share**2))``, so the sensitivity
      is ``sqrt(sum_l clip_l**2) = clip_norm``, as for the other rules.

    Args:
      shares: the relative bound of a layer by its path, as in ``{"network/dense_0": 2.0}``;
        layers that are not named have share 1.
    """

    shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, share in self.shares.items():
            named: dict[str, Any] = {f"shares[{name!r}]": share}
            _check.positive(**named)

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.shares.items())))

    def factors(self, squared: Tree, *, clip_norm: float | Scalar) -> Tree:
        """One factor for each layer; a bad layer silences the whole record."""
        paths, treedef = jax.tree_util.tree_flatten_with_path(squared)
        names = [
            jax.tree_util.keystr(path[:-1] or path, simple=True, separator="/") for path, _ in paths
        ]
        unknown = set(self.shares) - set(names)
        if unknown:
            raise InvalidArgumentError(
                f"shares names no layer of the parameters: {sorted(unknown)}; the layers are"
                f" {sorted(set(names))}."
            )
        shares = {name: self.shares.get(name, 1.0) for name in names}
        whole = math.sqrt(sum(share**2 for share in shares.values()))
        factor = {}
        for name, share in shares.items():
            leaves = [leaf for own, (_, leaf) in zip(names, paths, strict=True) if own == name]
            factor[name] = Flat().factors(leaves, clip_norm=clip_norm * share / whole)[0]
        usable = jnp.isfinite(_total(squared))
        return jax.tree.unflatten(treedef, [jnp.where(usable, factor[name], 0.0) for name in names])


def clip_by_norm(tree: Tree, *, clip_norm: float) -> Tree:
    """Scales ``tree`` to global l2 norm at most ``clip_norm``.

    Guarantee:
      ``norm(result) <= clip_norm`` for every input, up to four roundings of each entry. A tree
      whose norm is not finite becomes zero: one bad record cannot spoil a sum.

    Example:
      >>> print(clip_by_norm(jnp.array([3.0, 4.0]), clip_norm=1.0).round(3))
      [0.6 0.8]
    """
    _check.positive(clip_norm=clip_norm, infinite=True)
    factors = Flat().factors(squared_norms(tree), clip_norm=clip_norm)
    return jax.tree.map(lambda x, c: jnp.where(c > 0, c * x, 0.0), tree, factors)


def squared_norms(tree: Tree) -> Tree:
    """Returns an upper bound on the squared l2 norm of each leaf, summed in float32 at least.

    Squares of entries below 1e-19 vanish; `tacit.privacy.mechanism.GaussianSum` takes no clip norm
    so small that they matter.
    """
    return jax.tree.map(_squared_norm, tree)


def _squared_norm(leaf: Array) -> Array:
    wide = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
    total, operations = nested_sum(jnp.square(wide).reshape(-1))
    return raised(total, operations)


def _total(squared: Tree) -> Array:
    leaves = jax.tree.leaves(squared)
    return raised(jnp.sum(jnp.stack(leaves), axis=0), len(leaves) + 2)


def _everywhere(squared: Tree, factor: Array) -> Tree:
    factor = jnp.where(jnp.isfinite(_total(squared)), factor, 0.0)
    return jax.tree.map(lambda _: factor, squared)


class Clipped(NamedTuple):
    """A clipped sum, and what was counted beside it.

    Attributes:
      total: the sum, a tree like one contribution.
      counters: ``(len(adding.heights),)``, with a first axis of limbs where integers are added.
    """

    total: Tree
    counters: Array


def counters_of(squared: Tree, mask: Array, *, clip_norm: float | Scalar, adding: Adding) -> Array:
    """Returns what records with these squared norms add to the counters, one row for each."""
    norm = jnp.sqrt(_total(squared))
    return slack.counted(norm, mask, clip_norm=clip_norm, heights=adding.heights)


def clipped_sum(
    query: Query,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Clipped:
    """Returns the sum over records of the clipped ``query(record, key)``.

    Guarantee:
      A record's contribution is clipped by an upper bound on the norm of exactly its floats.
      Added as integers, it is rounded by itself: replacing any one record, however bad, by nothing
      moves the sum by at most ``clip_norm`` in l2 norm and half a lattice unit for each number,
      and all others not at all. Records whose mask is False and records whose contribution is
      not finite add exactly zero.

    Args:
      query: a function of one record and its key.
      records: a batch; every leaf has a leading record axis.
      keys: one key for each record.
      mask: which rows are records and which are padding.
      clipping: the rule.
      clip_norm: the bound on one record's contribution.
      chunk_size: how many contributions are held at once; memory only, never the result beyond
        the order in which floats are added.
      adding: as integers, or as floats.

    Example:
      >>> rows = jnp.array([[3.0, 4.0], [0.0, 0.5], [jnp.nan, 0.0]])
      >>> keys = jax.random.split(jax.random.key(0), 3)
      >>> keep = jnp.array([True, True, True])
      >>> found = clipped_sum(lambda r, k: r, rows, keys, keep, clipping=Flat(), clip_norm=1.0)
      >>> [f"{value:.3f}" for value in found.total]
      ['0.600', '1.300']
    """

    def contribution(record: Tree, key: Key, keep: Array) -> Clipped:
        # Norm and sum must read the same numbers.
        value = materialised(_tree.at_least_float32(query(record, key)))
        squared = squared_norms(value)
        factors = clipping.factors(squared, clip_norm=clip_norm)
        weights = jax.tree.map(lambda c: c * adding.units, factors)
        counters = counters_of(squared, keep, clip_norm=clip_norm, adding=adding)
        # A product with zero would let a NaN through; a selection does not.
        clipped = jax.tree.map(lambda v, c: jnp.where(keep & (c > 0), c * v, 0.0), value, weights)
        return Clipped(clipped, counters)

    def chunk_sum(chunk: tuple[Tree, Key, Array]) -> Clipped:
        sums: Clipped = jax.tree.map(adding.total, jax.vmap(contribution)(*chunk))
        return sums if adding.is_exact else jax.tree.map(lambda leaf: leaf[0], sums)

    return in_chunks(chunk_sum, (records, keys, mask), adding.largest_chunk(chunk_size), adding)


def in_chunks(
    chunk_sum: Callable[[tuple[Tree, Key, Array]], Clipped],
    batch: tuple[Tree, Key, Array],
    chunk_size: int | None,
    adding: Adding,
) -> Clipped:
    """Returns ``chunk_sum(batch)``, added up over chunks of records to bound memory."""
    length = batch[2].shape[0]
    if chunk_size is None or chunk_size >= length:
        return chunk_sum(batch)

    num_chunks = -(-length // chunk_size)
    padded = jax.tree.map(lambda leaf: _pad(leaf, num_chunks * chunk_size), batch)
    chunks = jax.tree.map(lambda x: x.reshape(num_chunks, chunk_size, *x.shape[1:]), padded)
    shapes = jax.eval_shape(chunk_sum, jax.tree.map(lambda x: x[0], chunks))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total: Clipped, chunk: tuple[Tree, Key, Array]) -> tuple[Clipped, None]:
        return jax.tree.map(lambda a, b: adding.carried(a + b), total, chunk_sum(chunk)), None

    return lax.scan(add, zero, chunks)[0]


def reference_gradient_sum(
    loss: RecordLoss,
    params: Params,
    records: Tree,
    keys: Key,
    mask: Array,
    *,
    clipping: Clipping,
    clip_norm: float | Scalar,
    chunk_size: int | None = None,
    adding: Adding = Adding(),  # noqa: B008
) -> Tree:
    """Returns the sum over records of the clipped gradient of ``loss(params, record, key)``."""

    def gradient(record: Tree, key: Key) -> Tree:
        return jax.grad(loss)(params, record, key)

    return clipped_sum(
        gradient,
        records,
        keys,
        mask,
        clipping=clipping,
        clip_norm=clip_norm,
        chunk_size=chunk_size,
        adding=adding,
    ).total


def _pad(leaf: Array, length: int) -> Array:
    """Repeats the first row; padded rows have a False mask, which `clipped_sum` obeys."""
    missing = length - leaf.shape[0]
    padding = jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))
    # Padding of the mask itself must be False, whatever its first row is.
    if leaf.dtype == jnp.bool_:
        padding = jnp.zeros_like(padding)
    return jnp.concatenate([leaf, padding])
