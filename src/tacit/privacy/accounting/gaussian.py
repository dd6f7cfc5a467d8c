"""The exact trade-off of one Gaussian shift: delta(epsilon) of N(mu, 1) against N(0, 1)."""

import math

from scipy.special import erfcx, log_ndtr

__all__ = ["delta_of", "epsilon_of"]


def delta_of(mu: float, epsilon: float) -> float:
    """Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), in log space.

    Reference: Dong, Roth and Su (2022), Gaussian differential privacy, corollary 1.
    """
    if mu == 0:
        return 0.0
    if math.isinf(mu):
        return 1.0
    distance = epsilon / mu - mu / 2
    log_first = float(log_ndtr(-distance))
    # e^epsilon Phi(-distance - mu) = e^(-distance^2/2) erfcx((distance + mu)/sqrt 2)/2: the two
    # huge exponents cancel on paper instead of in floating point.
    scaled = float(erfcx((distance + mu) / math.sqrt(2))) / 2
    if scaled == 0.0:
        return math.exp(log_first)
    log_second = math.log(scaled) - distance**2 / 2
    return max(0.0, math.exp(log_first) * -math.expm1(min(0.0, log_second - log_first)))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon with ``delta_of(mu, epsilon) <= delta``, from above."""
    if math.isinf(mu):
        return math.inf
    if delta_of(mu, 0.0) <= delta:
        return 0.0
    # delta <= Phi(mu/2 - epsilon/mu) <= exp(-(epsilon/mu - mu/2)^2 / 2) brackets the answer.
    low, high = 0.0, mu * mu / 2 + mu * math.sqrt(-2 * math.log(delta))
    if math.isinf(high):
        return math.inf
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if delta_of(mu, middle) <= delta:
            high = middle
        else:
            low = middle
