"""Priors that are not Gaussian: a Gaussian that stands for one, and draws under the prior."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from tacit import _tree
from tacit.compiling import compiled_once
from tacit.inference.evidence import Matrix, Vector
from tacit.inference.noise_aware import PriorSite
from tacit.models.base import IntegrableLogPrior
from tacit.rng import seeded_key
from tacit.typing import Array, Key, Params, Scalar

__all__ = ["is_quadratic", "prior_site", "root_of", "sliced"]

_NUM_UPDATES = 60
"""Elliptical slices from draws that are nearly right: the reference is the posterior under a
Gaussian that stands for the prior."""

_LEAST_ANGLE = 1e-6


def root_of(covariance: Matrix) -> Matrix:
    """Returns a matrix whose product with its own transpose is the covariance."""
    values, basis = np.linalg.eigh(covariance)
    root: Matrix = basis * np.sqrt(np.maximum(values, 0))
    return root


def is_quadratic(function: Callable[[Params], Scalar], template: Params) -> bool:
    """Whether a function is a polynomial of degree two at most."""
    flat, unflat = ravel_pytree(_tree.at_least_float32(template))

    @compiled_once
    def changes(key: Key) -> tuple[Array, Array]:
        gradient = jax.grad(lambda w: function(unflat(w)))
        one, other = jax.random.normal(key, (2, flat.size))
        slope, predicted = jax.jvp(gradient, (one,), (other - one,))
        return gradient(other) - slope, predicted

    found, predicted = (np.asarray(part) for part in changes(seeded_key(0)))
    return bool(np.allclose(found, predicted, atol=1e-3 * np.max(np.abs(predicted)) + 1e-6))


def sliced(
    log_ratio: Callable[[Array, Array, Array], Scalar],
    draws: Array,
    centres: Array,
    roots: Array,
    *,
    precision: Array,
    linear: Array,
) -> Array:
    """Returns draws after some elliptical slices each.

    Args:
      log_ratio: of a prior to its stand-in, at a point, given precision and linear term of that.
      draws: ``(num_components, num_draws, d)``.
      centres: of their components, in the same shape.
      roots: of the components' covariances.
      precision: of the stand-in.
      linear: its precision times its mean.
    """

    def one(key: Key, first: Array, centre: Array, root: Array) -> Array:
        def height_of(draw: Array) -> Scalar:
            return log_ratio(draw, precision, linear)

        def update(draw: Array, key: Key) -> tuple[Array, None]:
            normal_key, level_key, angle_key, shrink_key = jax.random.split(key, 4)
            offset, other = draw - centre, root @ jax.random.normal(normal_key, draw.shape)
            level = height_of(draw) + jnp.log(jax.random.uniform(level_key, minval=1e-30))
            angle = jax.random.uniform(angle_key, maxval=2 * jnp.pi)

            def at(angle: Array) -> Array:
                return centre + offset * jnp.cos(angle) + other * jnp.sin(angle)

            def is_below(carry: tuple[Array, Array, Array, Key]) -> Array:
                # It ends whatever a prior returns: without a level, and where nothing is left.
                angle, low, high, _ = carry
                is_open = jnp.isfinite(level) & (high - low > _LEAST_ANGLE)
                return is_open & ~(height_of(at(angle)) >= level)

            def shrink(carry: tuple[Array, Array, Array, Key]) -> tuple[Array, Array, Array, Key]:
                angle, low, high, key = carry
                low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
                key, own = jax.random.split(key)
                return jax.random.uniform(own, minval=low, maxval=high), low, high, key

            found, *_ = jax.lax.while_loop(
                is_below, shrink, (angle, angle - 2 * jnp.pi, angle, shrink_key)
            )
            is_found = jnp.isfinite(level) & (height_of(at(found)) >= level)
            return jnp.where(is_found, at(found), draw), None

        return jax.lax.scan(update, first, jax.random.split(key, _NUM_UPDATES))[0]

    keys = jax.random.split(seeded_key(2), draws.shape[:2])
    of_component = jax.vmap(one, in_axes=(0, 0, 0, None))
    result: Array = jax.vmap(of_component)(keys, draws, centres, roots)
    return result


def prior_site(log_prior: Callable[[Params], Scalar], template: Params) -> PriorSite:
    """Returns the Gaussian that stands for a prior at a posterior ``N(mean, covariance)``.

    Its precision is the expected curvature of the negative log prior, its slope at the mean the
    expected gradient: what variational inference takes of a prior. In closed form where the prior
    knows its expectation, exact for Gaussian priors; otherwise an average over 64 draws.

    Args:
      log_prior: of the model.
      template: parameters, for their shapes.
    """
    flat, unflat = ravel_pytree(_tree.at_least_float32(template))

    @jax.jit
    def integrated(mean: Array, std: Array) -> tuple[Array, Array]:
        def expected(mean: Array, std: Array) -> Scalar:
            assert isinstance(log_prior, IntegrableLogPrior)
            return log_prior.expected(unflat(mean), unflat(std))

        by_mean, by_std = jax.grad(expected, argnums=(0, 1))(mean, std)
        return by_mean, jnp.diag(-by_std / std)

    @jax.jit
    def averaged(mean: Array, root: Array) -> tuple[Array, Array]:
        def value(w: Array) -> Scalar:
            return log_prior(unflat(w))

        half = jax.random.normal(seeded_key(0), (32, flat.size))

        def at(offset: Array) -> tuple[Array, Array]:
            point = mean + root @ offset
            return jax.grad(value)(point), -jax.hessian(value)(point)

        gradients, curvatures = jax.lax.map(at, jnp.concatenate([half, -half]))
        return gradients.mean(0), curvatures.mean(0)

    def site(mean: Vector, covariance: Matrix) -> tuple[Matrix, Vector]:
        centre = jnp.asarray(mean, jnp.float32)
        if isinstance(log_prior, IntegrableLogPrior):
            found = integrated(centre, jnp.asarray(np.sqrt(np.diag(covariance)), jnp.float32))
        else:
            found = averaged(centre, jnp.asarray(root_of(covariance), jnp.float32))
        gradient, precision = (np.asarray(part, np.float64) for part in found)
        values, basis = np.linalg.eigh((precision + precision.T) / 2)
        precision = (basis * np.maximum(values, 0)) @ basis.T
        return precision, precision @ mean + gradient

    return site
