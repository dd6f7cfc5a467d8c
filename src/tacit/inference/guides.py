"""Guides: Gaussian families over a model's parameters, reparameterised by standard normal noise.

A guide's own parameters are what variational inference optimises and what the clip bounds. A draw
is a smooth function of them and of noise that depends on nothing, so its gradient is that of the
expected loss. Every map from a guide's parameters to a draw is elementwise: then the clipped sum
needs no per-record gradients.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from tacit import _check
from tacit.inference.divergence import diagonal_entropy, low_rank_entropy
from tacit.rng import normal_like
from tacit.samplers import DiagonalGaussian, LowRankGaussian, Sampler
from tacit.typing import Array, Key, Params, Scalar, Tree

__all__ = ["Guide", "LowRank", "Marginals", "MeanField"]

GuideParams: TypeAlias = dict[str, Any]
Noise: TypeAlias = Any


class Marginals(NamedTuple):
    """Mean and standard deviation of every parameter."""

    mean: Params
    std: Params


class Guide(Protocol):
    """A reparameterised Gaussian over a model's parameters."""

    @property
    def sampler(self) -> Sampler:
        """Draws from what `retained` gives."""
        ...

    def init(self, key: Key, params: Params) -> GuideParams:
        """Returns a guide around a model's initial parameters."""
        ...

    def noise(self, key: Key, guide: GuideParams) -> Noise:
        """Draws standard normal noise for one draw; depends on shapes only."""
        ...

    def draw(self, guide: GuideParams, noise: Noise) -> Params:
        """Returns the model's parameters for given noise."""
        ...

    def marginals(self, guide: GuideParams) -> Marginals:
        """Returns mean and standard deviation of every parameter."""
        ...

    def entropy(self, guide: GuideParams) -> Scalar:
        """Returns the entropy in closed form."""
        ...

    def retained(self, guide: GuideParams) -> Tree:
        """Returns the state that a posterior keeps."""
        ...


@dataclass(frozen=True, kw_only=True)
class MeanField:
    """Independent normals: ``w = mean + softplus(rho) * e``.

    Args:
      init_std: standard deviation of every parameter at the start; the means start where the
        model does.

    Example:
      >>> guide = MeanField(init_std=0.5)
      >>> params = guide.init(jax.random.key(0), {"w": jnp.zeros(2)})
      >>> print(guide.marginals(params).std["w"].round(3))
      [0.5 0.5]

    Reference:
      Blundell et al., "Weight uncertainty in neural networks" (2015).
    """

    init_std: float = 0.02

    def __post_init__(self) -> None:
        _check.positive(init_std=self.init_std)

    @property
    def sampler(self) -> Sampler:
        """Independent normals."""
        return DiagonalGaussian()

    def init(self, key: Key, params: Params) -> GuideParams:
        """Returns the model's parameters as means, all with the same standard deviation."""
        del key
        return {"mean": params, "rho": _constant_rho(params, self.init_std)}

    def noise(self, key: Key, guide: GuideParams) -> Noise:
        """Draws one standard normal for each parameter."""
        return _standard_normal(key, guide["mean"])

    def draw(self, guide: GuideParams, noise: Noise) -> Params:
        """Returns ``mean + softplus(rho) * noise``."""
        return jax.tree.map(
            lambda mean, rho, e: mean + jax.nn.softplus(rho) * e, guide["mean"], guide["rho"], noise
        )

    def marginals(self, guide: GuideParams) -> Marginals:
        """Returns mean and standard deviation of every parameter."""
        return Marginals(guide["mean"], jax.tree.map(jax.nn.softplus, guide["rho"]))

    def entropy(self, guide: GuideParams) -> Scalar:
        """Returns the sum of the parameters' entropies."""
        return diagonal_entropy(self.marginals(guide).std)

    def retained(self, guide: GuideParams) -> Tree:
        """Returns means and standard deviations."""
        mean, std = self.marginals(guide)
        return {"mean": mean, "std": std}


@dataclass(frozen=True, kw_only=True)
class LowRank:
    """Correlated normals: ``w = mean + softplus(rho) * e + sum_k z_k * factor_k``.

    The factors correlate parameters across all layers. They are kept apart, one tree for each
    ``k``, so that each acts elementwise and the clip stays fast; each costs one more product with
    the squared inputs of every layer.

    Args:
      rank: how many factors.
      init_std: standard deviation of every parameter at the start. Half of the variance is in
        the factors, which start at random: at zero they would have no gradient.

    Reference:
      Ong, Nott, Smith, "Gaussian variational approximation with a factor covariance structure"
      (2018).
    """

    rank: int
    init_std: float = 0.02

    def __post_init__(self) -> None:
        _check.positive_integer(rank=self.rank)
        _check.positive(init_std=self.init_std)

    @property
    def sampler(self) -> Sampler:
        """Normals with a diagonal plus low-rank covariance."""
        return LowRankGaussian(rank=self.rank)

    def init(self, key: Key, params: Params) -> GuideParams:
        """Returns the model's parameters as means, and random factors."""
        scale = self.init_std / math.sqrt(2 * self.rank)
        noise = _standard_normal(key, (params,) * self.rank)
        factors = jax.tree.map(lambda e: (scale * e).astype(e.dtype), noise)
        rho = _constant_rho(params, self.init_std / math.sqrt(2))
        return {"mean": params, "rho": rho, "factors": factors}

    def noise(self, key: Key, guide: GuideParams) -> Noise:
        """Draws one standard normal for each parameter and one for each factor."""
        like = {"diagonal": guide["mean"], "factors": jnp.zeros(self.rank)}
        return _standard_normal(key, like)

    def draw(self, guide: GuideParams, noise: Noise) -> Params:
        """Returns ``mean + softplus(rho) * e + sum_k z_k * factor_k``."""

        def leaf(mean: Array, rho: Array, e: Array, *factors: Array) -> Array:
            shift = sum(
                z.astype(mean.dtype) * factor
                for z, factor in zip(noise["factors"], factors, strict=True)
            )
            return mean + jax.nn.softplus(rho) * e + shift

        return jax.tree.map(leaf, guide["mean"], guide["rho"], noise["diagonal"], *guide["factors"])

    def marginals(self, guide: GuideParams) -> Marginals:
        """Returns mean and standard deviation of every parameter, factors included."""

        def total(rho: Array, *factors: Array) -> Array:
            variance = jnp.square(jax.nn.softplus(rho)) + sum(map(jnp.square, factors))
            return jnp.sqrt(variance)

        return Marginals(guide["mean"], jax.tree.map(total, guide["rho"], *guide["factors"]))

    def entropy(self, guide: GuideParams) -> Scalar:
        """Returns the entropy of all parameters together."""
        std = jax.tree.map(jax.nn.softplus, guide["rho"])
        return low_rank_entropy(std, guide["factors"])

    def retained(self, guide: GuideParams) -> Tree:
        """Returns means, standard deviations of the diagonal part, and factors."""
        return {
            "mean": guide["mean"],
            "std": jax.tree.map(jax.nn.softplus, guide["rho"]),
            "factors": jax.tree.map(lambda *leaves: jnp.stack(leaves), *guide["factors"]),
        }


def _constant_rho(params: Params, std: float) -> Tree:
    # The inverse of softplus, which for small numbers must not go through exp(std) - 1.
    rho = std + math.log(-math.expm1(-std))
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, rho), params)


def _standard_normal(key: Key, like: Tree) -> Tree:
    noise = normal_like(key, like)
    return jax.tree.map(lambda e, leaf: e.astype(leaf.dtype), noise, like)
