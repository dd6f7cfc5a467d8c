"""Clipping rules: from the norms of one record's contribution to the factors that bound it.

A rule sees only squared norms, one for each leaf of the contribution. That is all it needs, so
the same rule serves the reference, which has the contribution in its hands, and any faster path
that knows norms without ever forming a per-record gradient. The squared norms that it is given are
upper bounds of the real ones, and what it adds to them is rounded up, so the factors bound real
norms and not only computed ones; the last few roundings of a factor itself are left to the
margin of `tacit.privacy.lattice.Lattice.share`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.lattice import nested_sum, raised
from tacit.typing import Array, Scalar, Tree

__all__ = ["Clipping", "Flat", "Normalised", "PerLayer", "clip_by_norm", "squared_norms"]

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
