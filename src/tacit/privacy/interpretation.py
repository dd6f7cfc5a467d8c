"""What an epsilon means, in sentences that a data protection officer can sign."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import DEFAULT_ACCOUNTANT, PLD, Accountant, Adjacency, round_up
from tacit.privacy.cost import event_from_json
from tacit.privacy.trade_off import TradeOff, gaussian_mu, posterior_probability

__all__ = ["Explanation", "explain", "explain_cost", "explain_statement"]


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
