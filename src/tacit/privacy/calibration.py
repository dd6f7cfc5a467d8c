"""Calibration: the least noise, the most steps or the largest batch that a budget allows."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dp_accounting import (
    DpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from scipy.optimize import brentq

from tacit import _check
from tacit.errors import BudgetExceededError
from tacit.privacy.accounting import PLD, Accountant
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.ledger import DataSetLedger

__all__ = [
    "LedgerNoise",
    "largest_batch",
    "most_steps",
    "noise_multiplier",
    "noise_within",
    "smallest_noise",
]

_LEAST_NOISE, _MOST_NOISE = 1e-3, 1e6
_MOST_EXTRA_NOISE = 1.5


class LedgerNoise(NamedTuple):
    """Noise that a budget and a ledger allow.

    Attributes:
      noise: in the units that the cost was asked in.
      extra: how many times as much it is as the budget alone needs; at least one.
    """

    noise: float
    extra: float


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    num_steps: int,
    accountant: Accountant | None = None,
) -> float:
    """Returns the least noise multiplier that keeps a run of Gaussian releases within a budget.

    This is the number for a library that draws unbounded Poisson batches, or for a first look. A
    plan is calibrated with `tacit.calibrate`, to the batches that it draws.

    Args:
      epsilon: of the budget.
      delta: of the budget.
      rate: the chance that a record is in a batch, by its own coin; 1 for all records.
      num_steps: releases in all.
      accountant: `tacit.PLD()`, zero-out adjacency, by default.

    Example:
      >>> f"{noise_multiplier(epsilon=1.0, delta=1e-5, rate=256 / 60_000, num_steps=3515):.3f}"
      '1.185'
    """
    _check.fraction(rate=rate)
    _check.positive_integer(num_steps=num_steps)
    budget = Budget(epsilon, delta, accountant or PLD())

    def cost_of(noise: float) -> DpEvent:
        release: DpEvent = GaussianDpEvent(noise)
        if rate < 1:
            release = PoissonSampledDpEvent(rate, release)
        return SelfComposedDpEvent(release, num_steps)

    return smallest_noise(cost_of, budget)


def noise_within(
    cost_of: Callable[[float], DpEvent], budget: Budget, ledger: Ledger | None
) -> LedgerNoise:
    """Returns the smallest noise whose cost both a budget and a ledger allow.

    Across runs a ledger counts a little more than a budget does, so its noise is a little larger.

    Guarantee:
      ``budget`` allows the cost at the noise that is returned, and so does what the ledger has
      left at this moment. Nothing is charged.

    Args:
      cost_of: the cost of everything at so much noise.
      budget: what may be spent.
      ledger: what will be charged; only a `DataSetLedger` knows what it has left, so that others
        are not asked.

    Raises:
      BudgetExceededError: where no noise is enough, or the ledger needs more than half as much
        again: what was asked for is then not what could be had.

    Example:
      >>> import dp_accounting as dpa
      >>> found = noise_within(dpa.GaussianDpEvent, Budget(epsilon=1.0, delta=1e-5), None)
      >>> f"{found.noise:.2f}", found.extra
      ('3.73', 1.0)
    """
    own = smallest_noise(cost_of, budget)
    if not isinstance(ledger, DataSetLedger):
        return LedgerNoise(own, 1.0)
    try:
        extra = max(1.0, smallest_noise(lambda factor: cost_of(own * factor), ledger.budget()))
    except BudgetExceededError:
        extra = math.inf
    if extra > _MOST_EXTRA_NOISE:
        raise BudgetExceededError(
            f"the ledger {ledger.book.path} of {ledger.name!r} has spent epsilon"
            f" {round_up(ledger.spent)} of {ledger.rule.epsilon:g} and has too little left"
            f" for epsilon {budget.epsilon:g}. Nothing was spent. Use a smaller epsilon."
        )
    return LedgerNoise(own * extra, extra)


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

    def excess(log_noise: float, accountant: Accountant) -> float:
        # Epsilon is close to a power of the noise, so that a secant in logarithms goes straight
        # to the answer; the ends keep it finite.
        spent = accountant.epsilon(cost_of(math.exp(log_noise)), delta=budget.delta)
        return math.log(min(max(spent / budget.epsilon, 1e-9), 1e9))

    exact = budget.accountant
    start, slope = _search(lambda x: excess(x, _rougher(exact)), budget, tolerance)
    low, high, noise = -math.inf, math.inf, start
    # The rough search is off by a little, which its slope removes in a step or two.
    while True:
        left = -excess(noise, exact)
        low, high = (low, noise) if left >= 0 else (noise, high)
        if high - low <= tolerance / 8 or 0 <= left <= slope * tolerance / 8:
            return math.exp(high)
        if high <= math.log(_LEAST_NOISE):
            return _LEAST_NOISE
        if low > math.log(_MOST_NOISE):
            raise _too_little_noise(budget)
        noise = max(noise - left / slope + tolerance / 16, math.log(_LEAST_NOISE))
        if not low < noise < high:
            noise = (low + high) / 2


def _search(
    excess: Callable[[float], float], budget: Budget, tolerance: float
) -> tuple[float, float]:
    """Returns where a falling function is zero, and how steeply it falls there; at least 0.1."""
    low = high = 0.0
    if excess(0.0) > 0:
        while excess(high := high + math.log(4)) > 0:
            low = high
            if high > math.log(_MOST_NOISE):
                raise _too_little_noise(budget)
    else:
        while excess(low := low - math.log(4)) <= 0:
            high = low
            if low < math.log(_LEAST_NOISE):
                return math.log(_LEAST_NOISE), 1.0
    root = brentq(excess, low, high, xtol=tolerance / 8, rtol=1e-12)
    return root, max(0.1, (excess(root - 0.01) - excess(root + 0.01)) / 0.02)


def _too_little_noise(budget: Budget) -> BudgetExceededError:
    return BudgetExceededError(
        f"no noise multiplier up to {_MOST_NOISE:g} brings the cost down to epsilon "
        f"{budget.epsilon:g} at delta {budget.delta:g}: part of it does not depend "
        "on the noise. Use fewer steps or a larger budget."
    )


def _rougher(accountant: Accountant) -> Accountant:
    return accountant.rougher() if isinstance(accountant, PLD) else accountant


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
    # What a rough accountant allows is allowed, and nearly all that is.
    rough = _last(
        lambda choice: replace(budget, accountant=_rougher(budget.accountant)).allows(
            cost_of(choice)
        ),
        0,
        1,
        maximum,
    )
    last = _last(lambda choice: budget.allows(cost_of(choice)), rough, rough // 64 + 1, maximum)
    if last == 0:
        raise BudgetExceededError(
            f"not even one {unit} is possible within epsilon {budget.epsilon:g} at delta "
            f"{budget.delta:g}. Use more noise or a larger budget."
        )
    return last


def _last(is_allowed: Callable[[int], bool], low: int, step: int, maximum: int) -> int:
    """Returns the last allowed choice up to a maximum; ``low`` is allowed, or zero."""
    while low < maximum and is_allowed(high := min(low + step, maximum)):
        low, step = high, 2 * step
    if low == maximum:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        if is_allowed(middle):
            low = middle
        else:
            high = middle
    return low
