"""Rényi divergences of one release, and what they say about epsilon and delta."""

import math
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

__all__ = [
    "ORDERS",
    "fixed_size",
    "gaussian",
    "poisson",
    "poisson_with_chance",
    "renyi_delta",
    "renyi_epsilon",
]

Values = NDArray[np.float64]

_FRACTIONAL = 1 + np.arange(1, 100) / 10
_WHOLE = np.append(np.arange(11, 64), 2 ** np.arange(7, 11))
ORDERS: Values = np.append(_FRACTIONAL, _WHOLE).astype(float)

_ROUNDING = 1e-14
"""Added to log moments, so that floating point cannot make a divergence too small."""


def gaussian(noise: float) -> Values:
    """N(1, s^2) against N(0, s^2)."""
    return np.asarray(ORDERS / 2 / noise**2)


@lru_cache(maxsize=1024)
def poisson(rate: float, noise: float) -> Values:
    """(1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2), the larger of the two directions.

    Reference: Mironov, Talwar and Zhang (2019), https://arxiv.org/abs/1908.10530, theorems 4, 5.
    """
    whole = _whole_log_moments(rate, noise, tuple(_WHOLE))
    return _divergence(np.append(_fractional_log_moments(rate, noise), whole), noise)


def _whole_log_moments(rate: float, noise: float, orders: tuple[int, ...]) -> Values:
    """The logs of E_{N(0)} (1-q + q e^((2x-1)/(2 s^2)))^order for whole orders: binomial sums."""
    order, k, log_binomial, starts = _binomial_terms(orders)
    terms = k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / 2 / noise**2
    terms += log_binomial
    top = np.maximum.reduceat(terms, starts)
    sums = np.add.reduceat(np.exp(terms - np.repeat(top, np.add(orders, 1))), starts)
    return np.asarray(top + np.log(sums))


@lru_cache(maxsize=4)
def _binomial_terms(orders: tuple[int, ...]) -> tuple[Values, Values, Values, NDArray[np.int64]]:
    """For all orders in a row: the order, k = 0 ... order, log(order over k), where it starts."""
    order = np.repeat(orders, np.add(orders, 1)).astype(float)
    k = np.concatenate([np.arange(order + 1) for order in orders]).astype(float)
    log_binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    return order, k, log_binomial, np.flatnonzero(k == 0)


def _fractional_log_moments(rate: float, noise: float) -> Values:
    """The same for the fractional orders, by quadrature."""
    if noise < 0.03:
        # The integrand is too narrow for a grid: interpolate the whole orders, as log moments
        # are convex in the order and 0 at order 1.
        known = _whole_log_moments(rate, noise, tuple(range(2, 12)))
        return np.interp(_FRACTIONAL, np.arange(1, 12), np.append(0.0, known))
    # The integrand is analytic at distance pi*s from the real line: the rectangle rule with
    # step s/2 errs by exp(-2 pi pi 2), below the rounding of doubles.
    step = min(0.25, noise / 2)
    u = np.arange(-12.0, _FRACTIONAL[-1] / noise + 12.0, step)
    log_ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + u / noise - 0.5 / noise**2)
    exponents = _FRACTIONAL[:, np.newaxis] * log_ratio - u**2 / 2
    return _log_sum_exp(exponents) + math.log(step / math.sqrt(2 * math.pi))


def _log_sum_exp(values: Values) -> Values:
    top = values.max(axis=-1, keepdims=True)
    return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))


@lru_cache(maxsize=1024)
def poisson_with_chance(chance: float, rate: float, noise: float) -> Values:
    """The divergence of `poisson` that a public coin shows with a chance; else there is none.

    Moments average over the coin.
    """
    if chance == 1:
        return poisson(rate, noise)
    moments = [_log_moments(rate, noise) + math.log(chance), 0 * ORDERS + math.log1p(-chance)]
    return _divergence(logsumexp(moments, axis=0), noise)


def _log_moments(rate: float, noise: float) -> Values:
    return (ORDERS - 1) * (poisson(rate, noise) if rate < 1 else gaussian(noise))


def _divergence(log_moments: Values, noise: float) -> Values:
    """From log moments, and never more than a Gaussian of this noise, not amplified, has."""
    divergence = (log_moments + _ROUNDING) / (ORDERS - 1)
    return np.asarray(np.minimum(np.maximum(divergence, 0.0), gaussian(noise)))


@lru_cache(maxsize=64)
def fixed_size(rate: float, noise: float) -> Values:
    """A fixed-size batch in which one record is replaced; ``noise`` is relative to that change.

    Reference: Wang, Balle and Kasiviswanathan (2019), theorem 27, in dp_accounting.
    """
    whole = [int(order) for order in ORDERS if float(order).is_integer()]
    accountant = rdp.RdpAccountant(whole, dpa.NeighboringRelation.REPLACE_ONE)
    # dp_accounting only uses the ratio of the two sizes; beyond 1e6 its logarithms underflow.
    size = 10**12
    accountant.compose(
        dpa.SampledWithoutReplacementDpEvent(
            size, math.ceil(rate * size), dpa.GaussianDpEvent(min(noise, 1e6))
        )
    )
    divergence = np.full(ORDERS.size, np.inf)
    divergence[np.isin(ORDERS, whole)] = accountant.rdp
    divergence = np.where(np.isnan(divergence), np.inf, divergence) + _ROUNDING / (ORDERS - 1)
    return np.asarray(np.minimum(np.maximum(divergence, 0.0), gaussian(noise)))


def renyi_epsilon(divergence: Values, delta: float) -> float:
    """The smallest epsilon that the divergences imply.

    Reference: Canonne, Kamath and Steinke (2020), https://arxiv.org/abs/2004.00010, proposition
    12; and delta <= sqrt(1 - exp(-KL)) (Bretagnolle and Huber) for tiny divergences.
    """
    if _total_variation(divergence) <= delta:
        return 0.0
    bounds = divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def renyi_delta(divergence: Values, epsilon: float) -> float:
    """The smallest delta that the divergences imply; the inverse of `renyi_epsilon`."""
    exponent = (ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(1.0, math.exp(min(0.0, float(exponent.min()))), _total_variation(divergence))


def _total_variation(divergence: Values) -> float:
    return math.sqrt(-math.expm1(-float(divergence.min())))
