"""Rényi divergences of one release, and what they say about epsilon and delta."""

import math
from functools import lru_cache

import dp_accounting as dpa
import numpy as np
from dp_accounting import rdp
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp
from scipy.stats import binom

__all__ = [
    "ORDERS",
    "delta_of",
    "epsilon_of",
    "fixed_size",
    "gaussian",
    "poisson",
    "truncated_absent",
    "truncated_zeroed",
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


@lru_cache(maxsize=256)
def poisson(rate: float, noise: float) -> Values:
    """(1-q) N(0, s^2) + q N(1, s^2) against N(0, s^2), the larger of the two directions.

    Reference: Mironov, Talwar and Zhang (2019), https://arxiv.org/abs/1908.10530, theorems 4, 5.
    """
    moments = np.append(
        _fractional_log_moments(rate, noise), [_log_moment(rate, noise, int(k)) for k in _WHOLE]
    )
    return _divergence(moments, noise)


def _log_moment(rate: float, noise: float, order: int) -> float:
    """The log of E_{N(0)} (1-q + q e^((2x-1)/(2 s^2)))^order for a whole order: a binomial sum."""
    k = np.arange(order + 1)
    binomial = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
    terms = k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / 2 / noise**2
    return float(_log_sum_exp(binomial + terms))


def _fractional_log_moments(rate: float, noise: float) -> Values:
    """The same for the fractional orders, by quadrature."""
    if noise < 0.03:
        # The integrand is too narrow for a grid: interpolate the whole orders, as log moments
        # are convex in the order and 0 at order 1.
        known = [0.0] + [_log_moment(rate, noise, k) for k in range(2, 12)]
        return np.interp(_FRACTIONAL, np.arange(1, 12), known)
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


@lru_cache(maxsize=256)
def truncated_zeroed(num_records: int, rate: float, capacity: int, noise: float) -> Values:
    r"""A Poisson batch cut at a capacity by a uniform choice; the record counts or is zero.

    Let R be the drawn records without ours. Which records are drawn does not depend on their
    values, so R has the same law in both data sets and may be shown. Given R with fewer than
    ``capacity - 1`` records, ours is in with chance q, as in a batch that is not cut. Given one of
    ``capacity - 1``, it is in with a larger chance p, since batches that overflow end up here
    too; given a full one it is out. Moments of order a are averaged over R:

        E_R M_a(rate given R) = (1 - v - w) M_a(q) + v M_a(p) + w,

    with v and w the chances that R has ``capacity - 1`` and ``capacity`` records.
    """
    cut = _Cut(num_records, rate, capacity)
    last = cut.in_last_place + cut.one_place_left
    if last == 0:
        return poisson(rate, noise)
    weights = np.array([[1 - last - cut.full_without], [last], [cut.full_without]])
    moments = [_log_moments(rate, noise), _log_moments(cut.in_last_place / last, noise)]
    return _divergence(logsumexp([*moments, 0 * ORDERS], axis=0, b=weights), noise)


@lru_cache(maxsize=256)
def truncated_absent(num_records: int, rate: float, capacity: int, noise: float) -> Values:
    """The same where the record is there or not, so that others may be drawn in its place.

    Then R (see `truncated_zeroed`) has fewer than ``capacity - 1`` records with the same chance in
    both data sets, but that many, or ``capacity``, with chances that differ a little: a moment
    of the ratio of these chances comes in. The larger of the two directions counts.
    """
    cut = _Cut(num_records, rate, capacity)
    if cut.in_last_place + cut.one_place_left == 0:
        return poisson(rate, noise)
    others = binom(num_records - 1, rate)
    present = np.array([cut.in_last_place + cut.one_place_left, cut.full_without])
    absent = np.array([others.pmf(capacity - 1), others.sf(capacity - 1)])
    with np.errstate(divide="ignore"):
        room = others.logcdf(capacity - 2) + _log_moments(rate, noise)
        log_present, log_absent = np.log(present)[:, np.newaxis], np.log(absent)[:, np.newaxis]
    last = _log_moments(cut.in_last_place / present[0], noise)
    inside = np.stack([last, np.zeros_like(last)])
    directions = []
    for first, second in ((log_present, log_absent), (log_absent, log_present)):
        # A class whose chance is below the smallest double cannot be told from an impossible one.
        ratio = np.where(np.isfinite(first), ORDERS * first + (1 - ORDERS) * second, -np.inf)
        directions.append(logsumexp(np.vstack([room, ratio + inside]), axis=0))
    # Without amplification: a record may also take another one's place.
    return _divergence(np.maximum(*directions), noise / 2)


class _Cut:
    """The chances of what happens to a record where a Poisson batch is cut.

    Attributes:
      in_last_place: the record is in, and the batch is full with it.
      one_place_left: it is out, and the batch has room for one more.
      full_without: it is out, and the batch is full.
    """

    def __init__(self, num_records: int, rate: float, capacity: int) -> None:
        drawn = binom(num_records, rate)
        full, share = float(drawn.sf(capacity - 1)), capacity / num_records
        self.in_last_place = full * share
        self.one_place_left = float(drawn.pmf(capacity - 1)) * (1 - share + 1 / num_records)
        self.full_without = full * (1 - share)


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


def epsilon_of(divergence: Values, delta: float) -> float:
    """The smallest epsilon that the divergences imply.

    Reference: Canonne, Kamath and Steinke (2020), https://arxiv.org/abs/2004.00010, proposition
    12; and delta <= sqrt(1 - exp(-KL)) (Bretagnolle and Huber) for tiny divergences.
    """
    if _total_variation(divergence) <= delta:
        return 0.0
    bounds = divergence + np.log1p(-1 / ORDERS) - np.log(delta * ORDERS) / (ORDERS - 1)
    return max(0.0, float(bounds.min()))


def delta_of(divergence: Values, epsilon: float) -> float:
    """The smallest delta that the divergences imply; the inverse of ``epsilon_of``."""
    exponent = (ORDERS - 1) * (divergence - epsilon + np.log1p(-1 / ORDERS)) - np.log(ORDERS)
    return min(1.0, math.exp(min(0.0, float(exponent.min()))), _total_variation(divergence))


def _total_variation(divergence: Values) -> float:
    return math.sqrt(-math.expm1(-float(divergence.min())))
