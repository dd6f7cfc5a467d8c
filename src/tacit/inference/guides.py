"""Guides: Gaussian families over the parameters of a model, and their divergence from the prior.

Entropies are in closed form. So is the expected log prior wherever the model's ``log_prior`` offers
it; any other prior is averaged over draws.

A guide's own parameters are what variational inference optimises and what the clip bounds. A draw
is a smooth function of them and of noise that depends on nothing, so its gradient is that of the
expected loss. Every map from a guide's parameters to a draw is elementwise: then the clipped sum
needs no per-record gradients.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.models.base import IntegrableLogPrior
from tacit.rng import normal_like
from tacit.samplers import DiagonalGaussian, LowRankGaussian, Sampler
from tacit.typing import Array, Key, Params, Scalar, Tree

__all__ = [
    "Guide",
    "LowRank",
    "Marginals",
    "MeanField",
    "diagonal_entropy",
    "expected_log_prior",
    "low_rank_entropy",
]

_ENTROPY_OF_STANDARD_NORMAL = 0.5 * (1 + math.log(2 * math.pi))


def diagonal_entropy(std: Params) -> Scalar:
    """Returns the entropy of independent normals.

    Example:
      >>> round(float(diagonal_entropy({"w": jnp.ones(2)})), 4)
      2.8379
    """
    logs = [jnp.sum(jnp.log(leaf)) for leaf in jax.tree.leaves(_tree.at_least_float32(std))]
    return sum(logs, jnp.zeros(())) + _tree.size(std) * _ENTROPY_OF_STANDARD_NORMAL


def low_rank_entropy(std: Params, factors: Sequence[Params]) -> Scalar:
    """Returns the entropy of a normal with covariance ``diag(std**2) + sum_k f_k f_k^T``.

    By the matrix determinant lemma only a matrix of the size of the rank is factorised.

    Args:
      std: the diagonal part.
      factors: the low-rank part, one tree like ``std`` for each ``k``.
    """
    std, factors = _tree.at_least_float32(std), _tree.at_least_float32(tuple(factors))
    weights = jax.tree.map(lambda leaf: 1 / jnp.square(leaf), std)

    def inner(one: Params, other: Params) -> Scalar:
        # Elementwise products and sums: as matrix products of this shape they take ten times
        # as long, backwards above all.
        products = jax.tree.map(lambda f, g, w: jnp.sum(f * g * w), one, other, weights)
        return sum(jax.tree.leaves(products), jnp.zeros(()))

    lower = [[inner(one, other) for other in factors[: k + 1]] for k, one in enumerate(factors)]
    gram = jnp.stack(
        [
            jnp.stack([lower[max(k, j)][min(k, j)] for j in range(len(factors))])
            for k in range(len(factors))
        ]
    )
    root = jnp.linalg.cholesky(jnp.eye(len(factors)) + gram)
    return diagonal_entropy(std) + jnp.sum(jnp.log(jnp.diagonal(root)))


def expected_log_prior(
    log_prior: Callable[[Params], Scalar],
    mean: Params,
    std: Params,
    draws: Callable[[], list[Params]],
) -> Scalar:
    """Returns ``E_q log p(w)``: exact where the prior knows it, else an average over draws.

    Args:
      log_prior: of the model.
      mean: of every parameter.
      std: standard deviation of every parameter.
      draws: makes draws of the parameters, if they are needed.
    """
    if isinstance(log_prior, IntegrableLogPrior):
        return log_prior.expected(mean, std)
    return jnp.mean(jnp.stack([log_prior(draw) for draw in draws()]))


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
            lambda mean, rho, e: mean + _softplus(rho) * e, guide["mean"], guide["rho"], noise
        )

    def marginals(self, guide: GuideParams) -> Marginals:
        """Returns mean and standard deviation of every parameter."""
        return Marginals(guide["mean"], jax.tree.map(_softplus, guide["rho"]))

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
            return mean + _softplus(rho) * e + shift

        return jax.tree.map(leaf, guide["mean"], guide["rho"], noise["diagonal"], *guide["factors"])

    def marginals(self, guide: GuideParams) -> Marginals:
        """Returns mean and standard deviation of every parameter, factors included."""

        def total(rho: Array, *factors: Array) -> Array:
            variance = jnp.square(_softplus(rho)) + sum(map(jnp.square, factors))
            return jnp.sqrt(variance)

        return Marginals(guide["mean"], jax.tree.map(total, guide["rho"], *guide["factors"]))

    def entropy(self, guide: GuideParams) -> Scalar:
        """Returns the entropy of all parameters together."""
        std = jax.tree.map(_softplus, guide["rho"])
        return low_rank_entropy(std, guide["factors"])

    def retained(self, guide: GuideParams) -> Tree:
        """Returns means, standard deviations of the diagonal part, and factors."""
        return {
            "mean": guide["mean"],
            "std": jax.tree.map(_softplus, guide["rho"]),
            "factors": jax.tree.map(lambda *leaves: jnp.stack(leaves), *guide["factors"]),
        }


@jax.custom_jvp
def _softplus(rho: Array) -> Array:
    # In half the time of jax.nn.softplus, which guards against infinities.
    return jnp.maximum(rho, 0) + jnp.log1p(jnp.exp(-jnp.abs(rho)))


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return _softplus(*primals), jax.nn.sigmoid(primals[0]) * tangents[0]


def _constant_rho(params: Params, std: float) -> Tree:
    # The inverse of softplus, which for small numbers must not go through exp(std) - 1.
    rho = std + math.log(-math.expm1(-std))
    return jax.tree.map(lambda leaf: jnp.full_like(leaf, rho), params)


def _standard_normal(key: Key, like: Tree) -> Tree:
    noise = normal_like(key, like)
    return jax.tree.map(lambda e, leaf: e.astype(leaf.dtype), noise, like)
