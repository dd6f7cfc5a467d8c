"""Trade-off curves: how well the best possible attack on one record can do.

The attacker knows every other record, the plan and what was released, and asks one question: did
this person contribute? A false positive accuses someone who did not, a true positive finds someone
who did. Nothing that is computed from the release can do better than the curve.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import DEFAULT_ACCOUNTANT, GDP, Accountant
from tacit.privacy.accounting.pairs import gaussian_delta

__all__ = ["TradeOff", "gaussian_mu", "posterior_probability"]

_NUM_POINTS = 200
_SMALLEST_DELTA = 1e-12
_REFINED_RATES = (1e-3, 1e-2, 0.05, 0.1, 0.25, 0.5)


@dataclass(frozen=True, eq=False)
class TradeOff:
    """The most true positives that any attack has at each rate of false positives.

    Guarantee:
      Every pair of ``epsilons`` and ``deltas`` is a promise that holds, and the curve is the best
      bound that they give together. Few of them make the curve looser, never wrong.

    Args:
      epsilons: in rising order.
      deltas: the delta at each epsilon.

    Example:
      >>> curve = TradeOff.of_promise(epsilon=1.0, delta=1e-5)
      >>> round(float(curve.true_positive_rate(0.01)), 4)
      0.0272

    Reference:
      Kairouz, Oh and Viswanath, "The composition theorem for differential privacy" (2015),
      theorem 2.1; Dong, Roth and Su, "Gaussian differential privacy" (2022), proposition 2.12.
    """

    epsilons: NDArray[np.float64]
    deltas: NDArray[np.float64]

    @classmethod
    def of_promise(cls, *, epsilon: float, delta: float) -> Self:
        """The curve of one epsilon and delta; some mechanism with this promise reaches it."""
        _check.non_negative(infinite=True, epsilon=epsilon)
        _check.fraction(zero=True, delta=delta)
        if math.isinf(epsilon):
            return cls(np.zeros(1), np.ones(1))
        return cls(np.array([float(epsilon)]), np.array([float(delta)]))

    @classmethod
    def gaussian(cls, mu: float) -> Self:
        """The curve of one Gaussian whose shift is ``mu`` of its standard deviations."""
        _check.positive(mu=mu)
        return cls.of_cost(GaussianDpEvent(1 / mu), GDP())

    @classmethod
    def of_cost(cls, cost: DpEvent, accountant: Accountant = DEFAULT_ACCOUNTANT) -> Self:
        """The curve of a cost; exact where the accountant is, up to its grid.

        Args:
          cost: what is, or was, executed.
          accountant: gives delta at every epsilon.
        """
        largest = accountant.epsilon(cost, delta=_SMALLEST_DELTA)
        if math.isinf(largest):
            return cls.of_promise(epsilon=math.inf, delta=1.0)
        epsilons = np.linspace(0.0, largest, _NUM_POINTS)
        curve = cls(epsilons, _deltas(cost, epsilons, accountant))
        # A finer look where the numbers that people ask for are decided.
        width = epsilons[1] if largest > 0 else 1.0
        best = np.unique([curve._deciding(rate) for rate in _REFINED_RATES])
        finer = np.unique(np.concatenate([e + width * np.linspace(-1, 1, 33) for e in best]))
        finer = np.setdiff1d(finer[finer > 0], epsilons)
        both = np.concatenate([epsilons, finer])
        deltas = np.concatenate([curve.deltas, _deltas(cost, finer, accountant)])
        order = np.argsort(both)
        return cls(both[order], deltas[order])

    def true_positive_rate(self, false_positive_rate: ArrayLike) -> NDArray[np.float64]:
        """The most true positives at these rates of false positives."""
        rate = np.asarray(false_positive_rate, np.float64)
        if not np.all((rate >= 0) & (rate <= 1)):
            raise InvalidArgumentError(
                f"false_positive_rate must lie in [0, 1]; got {false_positive_rate!r}."
            )
        bounds = self._bounds(rate[..., None])
        return np.clip(bounds.min(axis=-1), rate, 1.0)

    @property
    def advantage(self) -> float:
        """The largest difference of true and false positives; 0 is guessing, 1 is certainty."""
        # (e^eps - 1 + 2 delta) / (e^eps + 1), without overflow.
        shrunk = np.exp(-self.epsilons)
        return float(np.min((1 - shrunk + 2 * self.deltas * shrunk) / (1 + shrunk)).clip(0.0, 1.0))

    def epsilon(self, *, delta: float) -> float:
        """The smallest epsilon that is promised at ``delta``; infinity where none is."""
        _check.fraction(zero=True, delta=delta)
        kept = self.epsilons[self.deltas <= delta]
        return float(kept.min()) if kept.size else math.inf

    def _bounds(self, rate: NDArray[np.float64]) -> NDArray[np.float64]:
        """The bound of each promise: delta + e^eps a, and the same with the roles swapped."""
        with np.errstate(over="ignore", invalid="ignore"):
            grown = np.where(rate > 0, np.exp(self.epsilons) * rate, 0.0)
        accusing = self.deltas + grown
        clearing = 1 - np.exp(-self.epsilons) * np.maximum(0.0, 1 - self.deltas - rate)
        return np.minimum(np.minimum(accusing, clearing), 1.0)

    def _deciding(self, rate: float) -> float:
        return float(self.epsilons[np.argmin(self._bounds(np.asarray(rate)))])


def _deltas(
    cost: DpEvent, epsilons: NDArray[np.float64], accountant: Accountant
) -> NDArray[np.float64]:
    return np.array([accountant.delta(cost, epsilon=float(epsilon)) for epsilon in epsilons])


def posterior_probability(prior: float, *, epsilon: float) -> float:
    """The most that a suspicion of ``prior`` can grow to when the odds grow by ``e^epsilon``.

    It can shrink to ``1 - posterior_probability(1 - prior, epsilon=epsilon)``.

    Guarantee:
      Under (epsilon, delta)-differential privacy this holds outside an event of probability delta,
      in this sense: the release can be made from one that, with probability 1 - delta, has odds of
      at most ``e^epsilon``. With delta 0 it holds always.

    Example:
      >>> round(posterior_probability(0.5, epsilon=1.0), 3)
      0.731

    Reference:
      Kairouz, Oh and Viswanath (2015), theorem 3.1: the canonical mechanism.
    """
    _check.fraction(zero=True, prior=prior)
    _check.non_negative(infinite=True, epsilon=epsilon)
    if prior in (0.0, 1.0):
        return prior
    return 1 / (1 + (1 - prior) / prior * math.exp(-epsilon))


def gaussian_mu(*, epsilon: float, delta: float) -> float:
    """The Gaussian mechanism that has this epsilon at this delta, as its mu: clip over noise.

    Example:
      >>> round(gaussian_mu(epsilon=1.0, delta=1e-5), 4)
      0.2681
    """
    _check.non_negative(infinite=True, epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    if math.isinf(epsilon):
        return math.inf
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) < delta:
        low, high = high, 2 * high
    while True:
        middle = (low + high) / 2
        if not low < middle < high:
            return high
        if gaussian_delta(middle, epsilon) < delta:
            low = middle
        else:
            high = middle
