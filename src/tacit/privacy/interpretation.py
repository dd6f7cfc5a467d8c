"""What an epsilon means: how well the best attack can do, and sentences that an officer can sign.

The attacker knows every other record, the plan and what was released, and asks one question: did
this person contribute? A false positive accuses someone who did not, a true positive finds someone
who did. Nothing that is computed from the release can do better than the curve.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from dp_accounting import DpEvent, GaussianDpEvent
from numpy.typing import ArrayLike, NDArray

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import GDP, PLD, Accountant, Adjacency
from tacit.privacy.accounting.accountants import DEFAULT_ACCOUNTANT, round_up
from tacit.privacy.accounting.divergences import gaussian_delta
from tacit.privacy.cost import event_from_json

__all__ = [
    "Explanation",
    "TradeOff",
    "explain",
    "explain_cost",
    "explain_statement",
    "gaussian_mu",
    "posterior_probability",
]

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


@dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """What a promise means for one person.

    Attributes:
      epsilon: the promise.
      delta: the chance that it fails.
      trade_off: what the best attack can do.
      is_executed: whether the curve is that of an executed cost; else it holds for every mechanism
        with this epsilon and delta.
      note: what else a reader must know, such as that the noise was not secret; may be empty.
    """

    epsilon: float
    delta: float
    trade_off: TradeOff
    is_executed: bool
    note: str = ""

    @property
    def gaussian_mu(self) -> float:
        """The mu of the Gaussian mechanism that has the same epsilon at the same delta."""
        return gaussian_mu(epsilon=self.epsilon, delta=self.delta)

    def true_positive_rate(self, false_positive_rate: float) -> float:
        """The most true positives of any attack at this rate of false positives."""
        return float(self.trade_off.true_positive_rate(false_positive_rate))

    def precision(self, false_positive_rate: float, *, prior: float = 0.5) -> float:
        """The most that an accusation is right, if so many of the absent are accused too."""
        _check.fraction(zero=True, prior=prior)
        _check.fraction(false_positive_rate=false_positive_rate)
        found = prior * self.true_positive_rate(false_positive_rate)
        return found / (found + (1 - prior) * false_positive_rate)

    def to_json(self) -> dict[str, Any]:
        """Returns the explanation as JSON-able data; infinity is the text 'infinity'."""
        rates = np.geomspace(1e-4, 1.0, 41)
        document = {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "is_executed": self.is_executed,
            "true_positive_rate": {
                "at 0.1 % false positives": self.true_positive_rate(0.001),
                "at 1 % false positives": self.true_positive_rate(0.01),
            },
            "best_accuracy": (1 + self.trade_off.advantage) / 2,
            "odds_factor": math.exp(min(self.epsilon, 709.0)),
            "posterior": {
                f"from {prior:g}": posterior_probability(prior, epsilon=self.epsilon)
                for prior in (0.001, 0.01, 0.1, 0.5)
            },
            "precision_at_1_percent": self.precision(0.01),
            "gaussian_mu": self.gaussian_mu,
            "trade_off": {
                "false_positive_rate": rates.tolist(),
                "true_positive_rate": self.trade_off.true_positive_rate(rates).tolist(),
            },
            "note": self.note,
        }
        if math.isinf(self.epsilon):
            document |= dict.fromkeys(("epsilon", "odds_factor", "gaussian_mu"), "infinity")
        return document

    def __str__(self) -> str:
        return "\n".join([f"epsilon {self._epsilon_text} at delta {self.delta:g}", *self._lines()])

    @property
    def _epsilon_text(self) -> str:
        short = f"{self.epsilon:g}"
        is_safe = math.isfinite(self.epsilon) and float(short) >= self.epsilon
        return short if is_safe else round_up(self.epsilon)

    def _lines(self) -> list[str]:
        if math.isinf(self.epsilon):
            promise = ["Nothing is promised: an attack may be right about everybody, always."]
            return [*promise, self.note] if self.note else promise
        high = posterior_probability(0.5, epsilon=self.epsilon)
        kind = "what was executed" if self.is_executed else "every mechanism with this promise"
        lines = [
            f"The bounds hold for {kind}, for any one person, and for an attacker who",
            "knows all other records.",
            "",
            f"  False alarms 1 %      finds at most {_percent(self.true_positive_rate(0.01))} of"
            " those who took part (guessing: 1 %)",
            f"  False alarms 0.1 %    finds at most {_percent(self.true_positive_rate(0.001))}"
            " (guessing: 0.1 %)",
            f"  Best guess            right at most {_percent((1 + self.trade_off.advantage) / 2)}"
            " of the time (a coin: 50 %)",
            f"  Suspicion of 50 %     becomes at most {_percent(high)}, at least"
            f" {_percent(1 - high, down=True)}, but for a chance of {self.delta:g}",
            f"  Suspicion of 1 %      becomes at most"
            f" {_percent(posterior_probability(0.01, epsilon=self.epsilon))}",
            f"  Gaussian equivalent   mu {round_up(self.gaussian_mu)}, noise"
            f" {1 / self.gaussian_mu:.3g} times the most that one record adds",
        ]
        return [*lines, "", self.note] if self.note else lines


def explain(*, epsilon: float, delta: float) -> Explanation:
    """Explains a promise, whatever the mechanism behind it.

    Guarantee:
      The bounds hold for every (epsilon, delta)-differentially private mechanism.

    Example:
      >>> print(explain(epsilon=2.0, delta=1e-6))
      epsilon 2 at delta 1e-06
      The bounds hold for every mechanism with this promise, for any one person, and for ...
        False alarms 1 %      finds at most 7.4 % of those who took part (guessing: 1 %)
        ...
    """
    _check.fraction(one=False, delta=delta)
    return Explanation(
        epsilon=epsilon,
        delta=delta,
        trade_off=TradeOff.of_promise(epsilon=epsilon, delta=delta),
        is_executed=False,
    )


def explain_cost(
    cost: DpEvent, *, delta: float, accountant: Accountant = DEFAULT_ACCOUNTANT
) -> Explanation:
    """Explains a cost by its own trade-off curve, which is sharper than one epsilon and delta.

    Guarantee:
      The bounds hold for the cost if ``accountant.is_bound``.

    Example:
      >>> import dp_accounting as dpa
      >>> round(explain_cost(dpa.GaussianDpEvent(4.0), delta=1e-5).true_positive_rate(0.01), 4)
      0.0189
    """
    _check.fraction(one=False, delta=delta)
    return Explanation(
        epsilon=accountant.epsilon(cost, delta=delta),
        delta=delta,
        trade_off=TradeOff.of_cost(cost, accountant),
        is_executed=True,
        note="" if accountant.is_bound else f"{accountant.name} is NO BOUND: nothing is promised.",
    )


def explain_statement(statement: Mapping[str, Any]) -> Explanation:
    """Explains a privacy statement from its executed cost.

    Guarantee:
      The bounds hold for the run if the statement is true.

    Args:
      statement: what ``Statement.to_json`` returned, or ``statement.json`` holds.
    """
    try:
        delta, epsilon = float(statement["delta"]), float(statement["epsilon"])
        adjacency = Adjacency(str(statement["adjacency"]).partition(":")[0])
        cost = event_from_json(statement["cost"])
        is_bound, is_secure = bool(statement["is_bound"]), bool(statement["is_secure"])
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"statement must be a privacy statement of tacit; got one that lacks {error}."
        ) from None
    if math.isinf(epsilon):
        return explain(epsilon=epsilon, delta=delta)
    trade_off = TradeOff.of_cost(cost, PLD(adjacency=adjacency))
    explanation = Explanation(epsilon=epsilon, delta=delta, trade_off=trade_off, is_executed=True)
    if not is_secure:
        return replace(
            explanation, note="INSECURE: the noise came from a known seed and can be taken off."
        )
    if not is_bound:
        return replace(explanation, note="The statement's own epsilon is an approximation.")
    return explanation


def _percent(share: float, *, down: bool = False) -> str:
    """A share as people should see it, never better than it is."""
    digits = 2 if share < 0.01 or share > 0.99 else 1
    scale = 100 * 10**digits
    # A hair against floating point, so that an exact tenth stays one.
    whole = math.floor(share * scale + 1e-6) if down else math.ceil(share * scale - 1e-6)
    return f"{100 * whole / scale:.{digits}f} %"
