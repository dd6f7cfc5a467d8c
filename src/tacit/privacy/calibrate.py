"""Calibration: the least noise, the most steps or the largest batch that a budget allows.

These searches know nothing of methods: they are given a function that says what a choice costs.
The cost must not grow with the noise, nor shrink with steps or batch.
"""

import math
from collections.abc import Callable
from dataclasses import replace

from dp_accounting import DpEvent
from scipy.optimize import brentq

from tacit import _check
from tacit.errors import BudgetExceededError
from tacit.privacy.budget import Budget

__all__ = ["extra_noise", "largest_batch", "leaving_a_tail", "most_steps", "smallest_noise"]

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_MOST_EXTRA_NOISE = 1.5

_TAIL_SHARE = 2.0**-8
"""The part of delta that calibration leaves to the noise's cut tail, which depends on the model.

At delta 1e-5 it suffices for 2.4 million parameters over 3515 steps. It costs about a thousandth of
epsilon.
"""


def leaving_a_tail(budget: Budget) -> Budget:
    """Returns the part of a budget that calibration may use, where the tail is not known yet."""
    return replace(budget, delta=budget.delta * (1 - _TAIL_SHARE))


def extra_noise(cost_of: Callable[[float], DpEvent], left: Budget | None) -> float:
    """Returns by how much noise must grow for a ledger to pay as well; at least one.

    Infinity where no noise is enough, or half as much again is not: what was asked for is then
    not what could be had, and the ledger refuses.

    Args:
      cost_of: the cost of everything at so many times the noise.
      left: what the ledger has left; None where there is no ledger.

    Example:
      >>> import dp_accounting as dpa
      >>> left = Budget(epsilon=1.0, delta=1e-5)
      >>> extra_noise(lambda factor: dpa.GaussianDpEvent(5.0 * factor), left)
      1.0
      >>> f"{extra_noise(lambda factor: dpa.GaussianDpEvent(3.0 * factor), left):.2f}"
      '1.24'
      >>> extra_noise(lambda factor: dpa.GaussianDpEvent(2.0 * factor), left)
      inf
    """
    if left is None:
        return 1.0
    try:
        factor = smallest_noise(cost_of, left)
    except BudgetExceededError:
        return math.inf
    return max(1.0, factor) if factor <= _MOST_EXTRA_NOISE else math.inf


def smallest_noise(
    cost_of: Callable[[float], DpEvent], budget: Budget, *, tolerance: float = 1e-3
) -> float:
    """The smallest noise multiplier whose cost the budget allows.

    Guarantee:
      ``budget.allows(cost_of(result))`` was true when asked, whatever the search did. Less noise,
      by the relative ``tolerance``, would exceed the budget (unless the result is 0.001, where the
      search stops, or the budget is infinite: then it is 0).

    Example:
      >>> import dp_accounting as dpa
      >>> budget = Budget(epsilon=1.0, delta=1e-5)
      >>> f"{smallest_noise(dpa.GaussianDpEvent, budget):.2f}"
      '3.73'
    """
    _check.positive(tolerance=tolerance)
    if math.isinf(budget.epsilon):
        return 0.0

    def excess(log_noise: float) -> float:
        # Epsilon is close to a power of the noise, so that a secant in logarithms goes straight
        # to the answer; the ends keep it finite.
        ratio = budget.spent(cost_of(math.exp(log_noise))) / budget.epsilon
        return math.log(min(max(ratio, 1e-9), 1e9))

    low = high = 0.0
    if excess(0.0) > 0:
        while excess(high := high + math.log(4)) > 0:
            low = high
            if high > math.log(_MOST_NOISE):
                raise BudgetExceededError(
                    f"no noise multiplier up to {_MOST_NOISE:g} brings the cost down to epsilon "
                    f"{budget.epsilon:g} at delta {budget.delta:g}: part of it does not depend "
                    "on the noise. Use fewer steps or a larger budget."
                )
    else:
        while excess(low := low - math.log(4)) <= 0:
            high = low
            if low < math.log(_LEAST_NOISE):
                break
    if excess(low) <= 0:
        noise = max(_LEAST_NOISE, math.exp(low))
    else:
        noise = math.exp(brentq(excess, low, high, xtol=tolerance / 8, rtol=1e-12))
    while not budget.allows(cost_of(noise)):
        noise *= 1 + tolerance / 4
    return noise


def most_steps(
    cost_of: Callable[[int], DpEvent], budget: Budget, *, maximum: int = 10_000_000
) -> int:
    """The largest number of steps whose cost the budget allows, up to ``maximum``.

    Guarantee:
      ``budget.allows(cost_of(result))`` is true; one step more would exceed the budget.

    Example:
      >>> import dp_accounting as dpa
      >>> budget = Budget(epsilon=1.0, delta=1e-5)
      >>> most_steps(lambda n: dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(20.0), n), budget)
      28
    """
    _check.positive_integer(maximum=maximum)
    return _largest(cost_of, budget, maximum, "step")


def largest_batch(cost_of: Callable[[int], DpEvent], budget: Budget, *, maximum: int) -> int:
    """The largest batch size whose cost the budget allows, up to ``maximum`` (all records).

    Guarantee:
      ``budget.allows(cost_of(result))`` is true; one record more would exceed the budget.

    Example:
      >>> import dp_accounting as dpa
      >>> budget = Budget(epsilon=0.1, delta=1e-5)
      >>> one_step = lambda b: dpa.PoissonSampledDpEvent(b / 1000, dpa.GaussianDpEvent(2.0))
      >>> largest_batch(one_step, budget, maximum=1000)
      29
    """
    _check.positive_integer(maximum=maximum)
    return _largest(cost_of, budget, maximum, "record per batch")


def _largest(cost_of: Callable[[int], DpEvent], budget: Budget, maximum: int, unit: str) -> int:
    low, high = 0, 1
    while high <= maximum and budget.allows(cost_of(high)):
        low, high = high, min(2 * high, maximum) if high < maximum else maximum + 1
    if low == 0:
        raise BudgetExceededError(
            f"not even one {unit} is possible within epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g}. Use more noise or a larger budget."
        )
    while high - low > 1:
        middle = (low + high) // 2
        if budget.allows(cost_of(middle)):
            low = middle
        else:
            high = middle
    return low
