"""Samplers: what one retained state of a posterior is, and how parameters are drawn from it.

A sampler is plain configuration, saved by its name and its fields like every part of a model
(`tacit.models.part`). It sees no record, so drawing is post-processing and has no privacy cost.
"""

import itertools
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.models import Model
from tacit.models.base import from_spec, part, part_names, spec_of
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Tree

__all__ = [
    "DiagonalGaussian",
    "FullGaussian",
    "LowRankGaussian",
    "Points",
    "Sampler",
    "ShrunkGaussian",
    "sampler_from_spec",
    "sampler_spec",
]

_NUM_GAUSSIAN_DRAWS = 100


class Sampler(Protocol):
    """Turns one retained state into parameters. Plain configuration, saved by name and fields."""

    def __hash__(self) -> int: ...

    @property
    def min_draws(self) -> int:
        """How many draws a prediction takes at least, unless it is told a number."""
        ...

    def template(self, model: Model) -> Tree:
        """The shapes of one retained state."""
        ...

    def draw(self, key: Key, kept: Tree) -> Params:
        """Draws parameters from one retained state."""
        ...


@part(Sampler)
@dataclass(frozen=True, kw_only=True)
class Points:
    """Every retained state is a draw: the iterates of an optimiser or of a chain."""

    @property
    def min_draws(self) -> int:
        """One: a state has nothing more to say the second time."""
        return 1

    def template(self, model: Model) -> Tree:
        """The shapes of the model's parameters."""
        return _shapes(model)

    def draw(self, key: Key, kept: Tree) -> Params:
        """Returns the state as it is."""
        del key
        return kept


@part(Sampler)
@dataclass(frozen=True, kw_only=True)
class DiagonalGaussian:
    """A retained state is ``{"mean", "std"}`` of independent normal parameters.

    Example:
      >>> kept = {"mean": jnp.zeros(2), "std": jnp.zeros(2)}
      >>> DiagonalGaussian().draw(seeded_key(0), kept)
      Array([0., 0.], dtype=float32)
    """

    @property
    def min_draws(self) -> int:
        """A hundred: one draw of a Gaussian is not a prediction of it."""
        return _NUM_GAUSSIAN_DRAWS

    def template(self, model: Model) -> Tree:
        """The shapes of the model's parameters, twice."""
        shapes = _shapes(model)
        return {"mean": shapes, "std": shapes}

    def draw(self, key: Key, kept: Tree) -> Params:
        """Returns ``mean + std * e`` with ``e`` standard normal."""
        noise = _standard_normal(key, kept["mean"])
        return jax.tree.map(
            lambda mean, std, e: (mean + std * e).astype(mean.dtype),
            kept["mean"],
            kept["std"],
            noise,
        )


@part(Sampler)
@dataclass(frozen=True, kw_only=True)
class LowRankGaussian:
    """A retained state is ``{"mean", "std", "factors"}``: covariance diagonal plus low rank.

    The covariance is ``diag(std**2) + factors^T factors`` over all parameters together; every leaf
    of ``factors`` has the rank as its first axis.

    Example:
      >>> kept = {"mean": jnp.ones(2), "std": jnp.zeros(2), "factors": jnp.ones((3, 2))}
      >>> draw = LowRankGaussian(rank=3).draw(seeded_key(0), kept)
      >>> bool(draw[0] == draw[1])
      True
    """

    rank: int

    def __post_init__(self) -> None:
        _check.positive_integer(rank=self.rank)

    @property
    def min_draws(self) -> int:
        """A hundred: one draw of a Gaussian is not a prediction of it."""
        return _NUM_GAUSSIAN_DRAWS

    def template(self, model: Model) -> Tree:
        """The shapes of the model's parameters, twice, and then ``rank`` times."""
        shapes = _shapes(model)
        stack = jax.vmap(lambda tree, _: tree, in_axes=(None, 0))
        factors = jax.eval_shape(stack, shapes, jnp.arange(self.rank))
        return {"mean": shapes, "std": shapes, "factors": factors}

    def draw(self, key: Key, kept: Tree) -> Params:
        """Returns ``mean + std * e + factors^T z`` with ``e`` and ``z`` standard normal."""
        # One z for all leaves: that is what correlates them.
        noise, z = _standard_normal(key, (kept["mean"], jnp.zeros(self.rank)))

        def leaf(mean: Array, std: Array, factors: Array, e: Array) -> Array:
            return (mean + std * e + jnp.tensordot(z, factors, axes=1)).astype(mean.dtype)

        return jax.tree.map(leaf, kept["mean"], kept["std"], kept["factors"], noise)


@part(Sampler)
@dataclass(frozen=True, kw_only=True)
class ShrunkGaussian:
    """A retained state is ``{"mean", "std", "factors"}``: less variance along a few directions.

    Directions are those of the parameters of one output, and the same for all outputs, which are
    the last axis of every leaf. The covariance of one output's parameters is
    ``diag(std) R^2 diag(std)`` with ``R = I - factors^T factors``; outputs are independent. Every
    precision that is diagonal plus low rank has a covariance of this form (`tacit.Laplace` of large
    models), where `LowRankGaussian` adds variance.

    Attributes:
      rank: how many directions there are.
      num_outputs: the length of the last axis of every leaf; one where leaves have nothing in
        common.

    Example:
      >>> kept = {"mean": jnp.zeros(2), "std": jnp.ones(2), "factors": jnp.array([[1.0, 0.0]])}
      >>> float(ShrunkGaussian(rank=1).draw(seeded_key(0), kept)[0])
      0.0
    """

    rank: int
    num_outputs: int = 1

    def __post_init__(self) -> None:
        _check.positive_integer(rank=self.rank, num_outputs=self.num_outputs)

    @property
    def min_draws(self) -> int:
        """A hundred: one draw of a Gaussian is not a prediction of it."""
        return _NUM_GAUSSIAN_DRAWS

    def template(self, model: Model) -> Tree:
        """The shapes of the model's parameters, twice, and of ``rank`` directions of an output."""
        shapes = _shapes(model)
        factors = jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct(
                (self.rank, leaf.size // self.num_outputs),
                jnp.promote_types(leaf.dtype, jnp.float32),
            ),
            shapes,
        )
        return {"mean": shapes, "std": shapes, "factors": factors}

    def draw(self, key: Key, kept: Tree) -> Params:
        """Returns ``mean + std * (e - factors^T factors e)`` with ``e`` standard normal."""
        e = _standard_normal(key, kept["mean"])
        products = jax.tree.map(
            lambda factors, e: factors @ e.reshape(-1, self.num_outputs), kept["factors"], e
        )
        along = sum(jax.tree.leaves(products), start=jnp.zeros((self.rank, self.num_outputs)))

        def leaf(mean: Array, std: Array, factors: Array, e: Array) -> Array:
            shrunk = e - (factors.T @ along).reshape(e.shape)
            return (mean + std * shrunk).astype(mean.dtype)

        return jax.tree.map(leaf, kept["mean"], kept["std"], kept["factors"], e)


@part(Sampler)
@dataclass(frozen=True, kw_only=True)
class FullGaussian:
    """A retained state is ``{"mean", "root"}``: a Gaussian with all correlations.

    The covariance is ``root^T root`` over all parameters together; every leaf of ``root`` has as
    many rows as there are parameters.

    Example:
      >>> kept = {"mean": jnp.ones(2), "root": jnp.array([[1.0, -1.0], [0.0, 0.0]])}
      >>> float(FullGaussian().draw(seeded_key(0), kept).sum())
      2.0
    """

    @property
    def min_draws(self) -> int:
        """A hundred: one draw of a Gaussian is not a prediction of it."""
        return _NUM_GAUSSIAN_DRAWS

    def template(self, model: Model) -> Tree:
        """The shapes of the model's parameters, once and then once for each parameter."""
        shapes = _shapes(model)
        stack = jax.vmap(lambda tree, _: tree, in_axes=(None, 0))
        return {
            "mean": shapes,
            "root": jax.eval_shape(stack, shapes, jnp.arange(_tree.size(shapes))),
        }

    def draw(self, key: Key, kept: Tree) -> Params:
        """Returns ``mean + root^T z`` with ``z`` standard normal."""
        z = jax.random.normal(key, (_tree.size(kept["mean"]),))
        return jax.tree.map(
            lambda mean, root: (mean + jnp.tensordot(z, root, axes=1)).astype(mean.dtype),
            kept["mean"],
            kept["root"],
        )


def sampler_spec(sampler: Sampler) -> dict[str, Any]:
    """Returns a sampler's name and fields as JSON-able values.

    Raises:
      InvalidArgumentError: if its class is not registered, so that nothing could load it back.

    Example:
      >>> sampler_spec(LowRankGaussian(rank=3))
      {'kind': 'LowRankGaussian', 'rank': 3}
    """
    spec = spec_of(sampler, Sampler)
    if spec is None:
        raise InvalidArgumentError(
            f"sampler must be one of {', '.join(part_names(Sampler))} to be saved; got {sampler!r}."
            " Register its class with tacit.models.part(Sampler), or save draws of it instead, as"
            " a Posterior with the sampler Points()."
        )
    return spec


def sampler_from_spec(spec: Any) -> Sampler:
    """Returns the sampler that `sampler_spec` described.

    Example:
      >>> sampler_from_spec({"kind": "LowRankGaussian", "rank": 3})
      LowRankGaussian(rank=3)
    """
    sampler: Sampler = from_spec(spec, Sampler)
    return sampler


def _shapes(model: Model) -> Tree:
    return jax.eval_shape(model.init, seeded_key(0))


def _standard_normal(key: Key, like: Tree) -> Tree:
    # One draw for the whole tree: a draw for each leaf would compile the generator once for each.
    leaves, treedef = jax.tree.flatten(like)
    values = jax.random.normal(key, (_tree.size(like),))
    ends = itertools.accumulate((leaf.size for leaf in leaves), initial=0)
    parts = [
        values[start:stop].reshape(leaf.shape)
        for leaf, (start, stop) in zip(leaves, itertools.pairwise(ends), strict=True)
    ]
    return jax.tree.unflatten(treedef, parts)
