"""Priors over the parameters of a network: no data anywhere."""

import dataclasses
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from tacit import _check, _tree
from tacit.errors import InvalidArgumentError
from tacit.models.base import DrawablePrior, IntegrablePrior, Prior, part
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["FlatPrior", "GaussianPrior", "LaplacePrior", "PerLeafPrior"]

_TINY = 2.0**-126
"""The smallest normal float32: divisions by a standard deviation of zero are by this instead."""


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class GaussianPrior:
    """Independent normal parameters with mean zero.

    Example:
      >>> GaussianPrior(std=1.0).log_prob({"w": jnp.zeros(2)})
      Array(-1.837877, dtype=float32)
    """

    std: float

    def __post_init__(self) -> None:
        _check.positive(std=self.std)

    def log_prob(self, params: Params) -> Scalar:
        """Returns the normalised log density, summed over all leaves."""
        log_scale = math.log(self.std) + 0.5 * math.log(2 * math.pi)
        return -0.5 * self._squares(params) - _tree.size(params) * log_scale

    def expected_log_prob(self, mean: Params, std: Params) -> Scalar:
        """Returns its expectation when every parameter is normal with these marginals."""
        return self.log_prob(mean) - 0.5 * self._squares(std)

    def draw(self, key: Key, template: Params) -> Params:
        """Returns a draw with the shapes and dtypes of the template."""

        def one(key: Key, shape: tuple[int, ...]) -> Array:
            return self.std * jax.random.normal(key, shape)

        return _drawn(key, template, [one] * len(jax.tree.leaves(template)))

    def _squares(self, params: Params) -> Scalar:
        leaves = jax.tree.leaves(_tree.at_least_float32(params))
        return sum((jnp.sum(jnp.square(leaf / self.std)) for leaf in leaves), jnp.zeros(()))


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class LaplacePrior:
    """Independent Laplace parameters with mean zero; the gradient at zero is zero.

    Example:
      >>> LaplacePrior(scale=0.5).log_prob({"w": jnp.array([1.0, -1.0])})
      Array(-4., dtype=float32)
    """

    scale: float

    def __post_init__(self) -> None:
        _check.positive(scale=self.scale)

    def log_prob(self, params: Params) -> Scalar:
        """Returns the normalised log density, summed over all leaves."""
        leaves = jax.tree.leaves(_tree.at_least_float32(params))
        # Not jnp.abs: its gradient at zero is one, and the sign's is zero.
        distance = sum((jnp.sum(leaf * jnp.sign(leaf)) for leaf in leaves), jnp.zeros(()))
        return -distance / self.scale - _tree.size(params) * math.log(2 * self.scale)

    def expected_log_prob(self, mean: Params, std: Params) -> Scalar:
        """Returns its expectation when every parameter is normal with these marginals."""
        distances = jax.tree.map(
            lambda m, s: jnp.sum(_expected_abs(m, s)),
            _tree.at_least_float32(mean),
            _tree.at_least_float32(std),
        )
        distance = sum(jax.tree.leaves(distances), jnp.zeros(()))
        return -distance / self.scale - _tree.size(mean) * math.log(2 * self.scale)

    def draw(self, key: Key, template: Params) -> Params:
        """Returns a draw with the shapes and dtypes of the template."""

        def one(key: Key, shape: tuple[int, ...]) -> Array:
            return self.scale * jax.random.laplace(key, shape)

        return _drawn(key, template, [one] * len(jax.tree.leaves(template)))


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class FlatPrior:
    """No preference: an improper density of one, for maximum likelihood.

    Example:
      >>> FlatPrior().log_prob({"w": jnp.ones(2)})
      Array(0., dtype=float32)
    """

    def log_prob(self, params: Params) -> Scalar:
        """Returns zero."""
        del params
        return jnp.zeros(())

    def expected_log_prob(self, mean: Params, std: Params) -> Scalar:
        """Returns zero."""
        del mean, std
        return jnp.zeros(())

    def draw(self, key: Key, template: Params) -> Params:
        """Raises: nothing can be drawn from a density that is no distribution."""
        del key, template
        raise InvalidArgumentError(
            "prior must be a distribution for parameters to be drawn from it; got FlatPrior(). Use"
            " GaussianPrior, or say how truths are drawn."
        )


@part(Prior)
@dataclasses.dataclass(frozen=True, kw_only=True)
class PerLeafPrior:
    """A default prior, and others for the leaves that are named.

    Attributes:
      default: the prior of every leaf that no override names.
      overrides: pairs of a name and a prior. A name is one or more consecutive parts of a leaf's
        path: ``"bias"`` names every bias, ``"dense_0"`` a whole layer, ``"dense_0/bias"`` one
        leaf. The first pair that fits a leaf counts.

    Example:
      >>> prior = PerLeafPrior(
      ...     default=LaplacePrior(scale=0.5), overrides=(("bias", FlatPrior()),)
      ... )
      >>> prior.log_prob({"dense_0": {"kernel": jnp.array([1.0]), "bias": jnp.array([9.0])}})
      Array(-2., dtype=float32)
    """

    default: IntegrablePrior
    overrides: tuple[tuple[str, IntegrablePrior], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.overrides, tuple):
            raise InvalidArgumentError(
                'overrides must be a tuple of pairs such as (("bias", FlatPrior()),); '
                f"got {self.overrides!r}."
            )
        for name, prior in (("default", self.default), *self.overrides):
            if not isinstance(prior, IntegrablePrior):
                raise InvalidArgumentError(
                    f"the prior of {name!r} must be a GaussianPrior, LaplacePrior, FlatPrior or "
                    f"another that has expected_log_prob; got {prior!r}."
                )

    def log_prob(self, params: Params) -> Scalar:
        """Returns the normalised log density, summed over all leaves.

        Raises:
          InvalidArgumentError: if an override names no leaf.
        """
        leaves = jax.tree.leaves(params)
        pairs = zip(self._priors(params), leaves, strict=True)
        return sum((prior.log_prob(leaf) for prior, leaf in pairs), jnp.zeros(()))

    def expected_log_prob(self, mean: Params, std: Params) -> Scalar:
        """Returns its expectation when every parameter is normal with these marginals."""
        leaves = zip(jax.tree.leaves(mean), jax.tree.leaves(std), strict=True)
        pairs = zip(self._priors(mean), leaves, strict=True)
        return sum((prior.expected_log_prob(*leaf) for prior, leaf in pairs), jnp.zeros(()))

    def draw(self, key: Key, template: Params) -> Params:
        """Returns a draw with the shapes and dtypes of the template."""

        def of(prior: IntegrablePrior) -> Callable[[Key, tuple[int, ...]], Array]:
            if not isinstance(prior, DrawablePrior):
                raise InvalidArgumentError(
                    f"{prior!r} must have draw(key, template) for parameters to be drawn from it."
                )
            return lambda key, shape: prior.draw(key, jnp.zeros(shape))

        return _drawn(key, template, [of(prior) for prior in self._priors(template)])

    def _priors(self, params: Params) -> list[IntegrablePrior]:
        """The prior of each leaf, in the order of the leaves."""
        leaves, _ = jax.tree_util.tree_flatten_with_path(params)
        paths = [jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in leaves]
        for name, _ in self.overrides:
            if not any(_names(name, path) for path in paths):
                raise InvalidArgumentError(
                    f"overrides: {name!r} names no parameter; there are {', '.join(paths)}."
                )
        return [
            next((prior for name, prior in self.overrides if _names(name, path)), self.default)
            for path in paths
        ]


def _drawn(
    key: Key, template: Params, draws: Sequence[Callable[[Key, tuple[int, ...]], Array]]
) -> Params:
    """Returns a tree like the template, each leaf drawn by its own function with its own key."""
    leaves, structure = jax.tree.flatten(template)
    keys = jax.random.split(key, len(leaves))
    found = [
        draw(own, leaf.shape).astype(leaf.dtype)
        for draw, own, leaf in zip(draws, keys, leaves, strict=True)
    ]
    return jax.tree.unflatten(structure, found)


def _names(name: str, path: str) -> bool:
    return f"/{name}/" in f"/{path}/"


@jax.custom_jvp
def _expected_abs(mean: Array, std: Array) -> Array:
    """Returns E|w| of a normal w, entry by entry."""
    ratio = mean / jnp.maximum(std, _TINY)
    near_zero = std * math.sqrt(2 / math.pi) * jnp.exp(-0.5 * jnp.square(ratio))
    return near_zero + mean * jax.scipy.special.erf(ratio / math.sqrt(2))


@_expected_abs.defjvp
def _expected_abs_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    # The derivatives are bounded, but that of the formula is zero times infinity for small std.
    (mean, std), (mean_tangent, std_tangent) = primals, tangents
    ratio = mean / jnp.maximum(std, _TINY)
    by_mean = jax.scipy.special.erf(ratio / math.sqrt(2))
    by_std = math.sqrt(2 / math.pi) * jnp.exp(-0.5 * jnp.square(ratio))
    return _expected_abs(mean, std), by_mean * mean_tangent + by_std * std_tangent
