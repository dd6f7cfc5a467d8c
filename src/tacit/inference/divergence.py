"""Divergence of a Gaussian from the prior, ``KL(q | p) = -entropy(q) - E_q log p(w)``; no data.

Entropies are in closed form. So is the expected log prior wherever the model's ``log_prior`` offers
it; any other prior is averaged over draws.
"""

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

from tacit import _tree
from tacit.models import IntegrableLogPrior
from tacit.typing import Params, Scalar

__all__ = ["diagonal_entropy", "expected_log_prior", "low_rank_entropy"]

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
