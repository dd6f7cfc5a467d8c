"""Chain diagnostics: whether chains agree, and how many independent draws theirs are worth.

All of them take ``(num_chains, num_kept, ...)``, the shape of the leaves of a posterior's
``chains``, and look at each remaining coordinate by itself. The weights of a network can be
permuted without changing what it predicts, so chains that agree on predictions need not agree on
weights: diagnose predictions, or both. Computed from retained states, they cost no privacy.

NumPyro computes R-hat and autocovariances. It takes no ranks and ends the sum of autocorrelations
by an older rule, so what is written here is what makes the numbers those of Stan and ArviZ.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np
from numpy.typing import ArrayLike
from numpyro.diagnostics import autocovariance, gelman_rubin
from scipy import special, stats

from tacit import _tree
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats, numbers
from tacit.typing import Tree

__all__ = ["ChainDiagnostics", "HasChains", "diagnose", "ess_bulk", "ess_tail", "mcse", "r_hat"]

_FEWEST = 4
"""Two halves of a chain, of which each has a variance."""

_MOST_AT_ONCE = 2**20
"""Numbers that `diagnose` looks at together."""


class ChainDiagnostics(NamedTuple):
    """The worst coordinate of a tree of draws, in three respects.

    Attributes:
      r_hat: the largest; above 1.01 the chains do not agree.
      ess_bulk: the smallest; for means. It should be above 100 for each chain.
      ess_tail: the smallest; for 5 and 95 % quantiles.
    """

    r_hat: float
    ess_bulk: float
    ess_tail: float


@runtime_checkable
class HasChains(Protocol):
    """A posterior, of which the metrics know no more."""

    @property
    def chains(self) -> Tree:
        """The states that a method retained; each leaf is ``(num_chains, num_kept, ...)``."""
        ...


def diagnose(draws: Tree | HasChains) -> ChainDiagnostics:
    """Returns the worst R-hat and effective sizes of any coordinate, leaving out constant ones.

    Where nothing moved at all, all draws are worth one, and R-hat is infinite.

    Args:
      draws: a posterior, of which the chains are looked at as the method made them, before any
        correction for privacy noise; or a tree of arrays ``(num_chains, num_kept, ...)``.

    Example:
      >>> draws = np.random.default_rng(0).normal(size=(4, 500, 3))
      >>> diagnose({"w": draws, "fixed": np.ones((4, 500))}).r_hat < 1.01
      True
    """
    worst = ChainDiagnostics(math.nan, math.nan, math.nan)
    has_moved = False
    for leaf in jax.tree.leaves(draws.chains if isinstance(draws, HasChains) else draws):
        if np.ndim(leaf) < 2:
            _coordinates(leaf)  # says what is wrong
        for block in _tree.column_blocks(leaf, num_axes=2, most=_MOST_AT_ONCE):
            has_moved |= bool(np.ptp(_coordinates(block)[0], axis=(0, 1)).any())
            worst = ChainDiagnostics(
                float(np.fmax.reduce(r_hat(block), initial=worst.r_hat)),
                float(np.fmin.reduce(ess_bulk(block), initial=worst.ess_bulk)),
                float(np.fmin.reduce(ess_tail(block), initial=worst.ess_tail)),
            )
    return worst if has_moved else ChainDiagnostics(math.inf, 1.0, 1.0)


def r_hat(draws: ArrayLike) -> Floats:
    """Returns the rank-normalised split R-hat of each coordinate: near one when chains agree.

    The larger of two: of normal scores of the draws, which finds chains that differ in place, and
    of their distances from the median, which finds chains that differ in width. Chains are cut in
    halves, so that a trend within one chain counts as disagreement. NaN where all draws are equal.

    Args:
      draws: ``(num_chains, num_kept, ...)``.

    Example:
      >>> chains = np.random.default_rng(0).normal(size=(4, 500))
      >>> bool(r_hat(chains) < 1.01), bool(r_hat(chains + np.arange(4)[:, None]) > 1.5)
      (True, True)

    Reference:
      Vehtari, Gelman, Simpson, Carpenter, Bürkner, "Rank-normalization, folding, and localization"
      (2021), section 4.
    """
    chains, shape = _coordinates(draws)
    halves = _split(chains)
    folded = np.abs(halves - np.median(halves, axis=(0, 1)))
    both = np.fmax(gelman_rubin(_normal_scores(halves)), gelman_rubin(_normal_scores(folded)))
    return both.reshape(shape)


def ess_bulk(draws: ArrayLike) -> Floats:
    """Returns the effective sample size of each coordinate, for the middle of its distribution.

    How many independent draws would locate the normal scores as well as these do. NaN where all
    draws are equal.

    Args:
      draws: ``(num_chains, num_kept, ...)``.
    """
    chains, shape = _coordinates(draws)
    return _ess(_normal_scores(_split(chains))).reshape(shape)


def ess_tail(draws: ArrayLike) -> Floats:
    """Returns the smaller effective sample size of the 5 % and the 95 % quantile.

    A quantile above which there is no draw is left out. NaN where all draws are equal.

    Args:
      draws: ``(num_chains, num_kept, ...)``.
    """
    chains, shape = _coordinates(draws)
    low, high = (
        _ess(_split((chains <= np.quantile(chains, level, axis=(0, 1))).astype(np.float64)))
        for level in (0.05, 0.95)
    )
    return np.fmin(low, high).reshape(shape)


def mcse(draws: ArrayLike) -> Floats:
    """Returns the Monte Carlo standard error of the mean of each coordinate.

    The standard deviation of the draws divided by the root of the effective sample size of the
    draws themselves. It says nothing of the bias of a sampler.

    Args:
      draws: ``(num_chains, num_kept, ...)``.

    Example:
      >>> chains = np.random.default_rng(0).normal(size=(4, 2500))
      >>> print(f"{mcse(chains):.3f}")
      0.010
    """
    chains, shape = _coordinates(draws)
    error = chains.std(axis=(0, 1), ddof=1) / np.sqrt(_ess(_split(chains)))
    return np.asarray(error).reshape(shape)


def _coordinates(draws: ArrayLike) -> tuple[Floats, tuple[int, ...]]:
    """Returns draws as (num_chains, num_kept, num_coordinates), and the shape of the result."""
    array = numbers("draws", draws)
    if array.ndim < 2 or array.shape[1] < _FEWEST:
        raise InvalidArgumentError(
            "draws must have shape (num_chains, num_kept, ...) with num_kept of at least"
            f" {_FEWEST}; got {array.shape}. Retain more by a smaller thinning; one chain is"
            " draws[None]."
        )
    return array.reshape(*array.shape[:2], -1), array.shape[2:]


def _split(chains: Floats) -> Floats:
    """Cuts every chain into halves; of an odd number of draws the one in the middle is left out."""
    half = chains.shape[1] // 2
    return np.concatenate([chains[:, :half], chains[:, -half:]])


def _normal_scores(chains: Floats) -> Floats:
    """Replaces draws by normal quantiles of their ranks among all draws of a coordinate."""
    flat = chains.reshape(-1, chains.shape[2])
    ranks = stats.rankdata(flat, axis=0)
    scores = special.ndtri((ranks - 3 / 8) / (len(flat) + 1 / 4))
    return np.asarray(scores).reshape(chains.shape)


def _ess(chains: Floats) -> Floats:
    """Returns the effective sample size of the mean of each coordinate, over all chains.

    Autocorrelations come from within chains, but relative to a variance that also sees how chains
    differ. Sums of neighbouring pairs of a reversible chain's autocorrelations are positive and
    fall (Geyer 1992): they are added up to the first that is not positive, each taken no larger
    than the one before.
    """
    num_chains, num_draws, num_coordinates = chains.shape
    covariance = autocovariance(chains, axis=1).mean(axis=0)
    within = covariance[0] * num_draws / (num_draws - 1)
    total = covariance[0] + (chains.mean(axis=1).var(axis=0, ddof=1) if num_chains > 1 else 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / total
    correlation[0] = 1.0

    num_pairs = max((num_draws - 1) // 2, 1)
    evens, odds = (correlation[first : 2 * num_pairs : 2] for first in (0, 1))
    pairs = (evens + odds)[:-1]
    # NaN compares false, so that a coordinate without variance has no pairs and stays NaN.
    is_used = np.logical_and.accumulate(pairs > 0, axis=0)
    falling = np.minimum.accumulate(np.where(is_used, pairs, 0.0), axis=0)
    # The first even lag that is left out still counts once where it is positive: less biased for
    # chains whose neighbours are negatively correlated.
    extra = evens[is_used.sum(axis=0), np.arange(num_coordinates)]
    time = -1 + 2 * falling.sum(axis=0) + np.maximum(extra, 0.0)
    size = num_chains * num_draws
    # Draws that repel each other may be worth more than independent ones, within reason.
    ess = size / np.maximum(time, 1 / np.log10(size))
    # Chains that never moved are worth one draw together: each says where it started.
    ess = np.where(np.ptp(chains, axis=1).max(axis=0) > 0, ess, 1.0)
    return np.where(np.ptp(chains, axis=(0, 1)) > 0, ess, np.nan)
