"""Auditing by many independent trials: exact bounds on how often an attack is right.

In half of the trials the canary is there, in the other half it is not. A threshold on the attack's
score is chosen on one half of each, and what it finds is counted on the other: who chooses and
counts on the same trials finds violations in pure noise.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import beta

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.privacy.trade_off import TradeOff

__all__ = ["TrialBound", "trial_bound"]

_MAX_THRESHOLDS = 200
_FEWEST_TRIALS = 8

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TrialBound:
    """What trials show about a claim.

    Attributes:
      lower_bound: epsilon at the claim's delta is at least this.
      excess: by how much true positives, at least, exceed what the claimed curve allows; a
        violation where positive.
      true_positive_rate: at least this, of the attack that exceeds the curve most.
      false_positive_rate: at most this, of the same attack.
      allowed: the true positives that the claim allows at these false positives.
    """

    lower_bound: float
    excess: float
    true_positive_rate: float
    false_positive_rate: float
    allowed: float

    def to_json(self) -> dict[str, Any]:
        """Returns the bound as JSON-able data."""
        return {
            "lower_bound": self.lower_bound,
            "true_positive_rate_at_least": self.true_positive_rate,
            "false_positive_rate_at_most": self.false_positive_rate,
            "true_positive_rate_allowed": self.allowed,
        }


def trial_bound(
    present: ArrayLike, absent: ArrayLike, claim: TradeOff, *, delta: float, confidence: float
) -> TrialBound:
    """Bounds what an attack by a threshold shows about a claim.

    Guarantee:
      If the claim holds, the lower bound is above its epsilon or the excess is positive with
      probability at most ``1 - confidence``: of four exact intervals (two rates for each of two
      thresholds) each misses with a quarter of that.

    Args:
      present: one score for each independent trial with the canary; high means present.
      absent: the same without it.
      claim: what is promised.
      delta: at which the lower bound on epsilon holds.
      confidence: of everything that is returned.

    Example:
      >>> far, near = np.arange(1000) + 500.0, np.arange(1000.0)
      >>> claim = TradeOff.of_promise(epsilon=0.5, delta=0.0)
      >>> bound = trial_bound(far[::-1], near, claim, delta=0.0, confidence=0.95)
      >>> bound.excess > 0, bound.lower_bound > 0.5
      (True, True)
    """
    _check.fraction(zero=True, one=False, delta=delta)
    _check.fraction(one=False, confidence=confidence)
    scores = [np.asarray(values, np.float64) for values in (present, absent)]
    for values in scores:
        if values.ndim != 1 or len(values) < _FEWEST_TRIALS or np.isnan(values).any():
            raise InvalidArgumentError(
                f"present and absent must each hold at least {_FEWEST_TRIALS} scores that are"
                f" numbers; got shape {values.shape}."
            )
    # Alternating halves: the order of trials says nothing about them.
    (choose_in, count_in), (choose_out, count_out) = ((v[::2], v[1::2]) for v in scores)
    level = 1 - (1 - confidence) / 4
    attacks = _candidates(np.concatenate([choose_in, choose_out]))
    true, false = _rates(attacks, choose_in, choose_out, level)
    best = np.argmax(_epsilon(true, false, delta))
    sharpest = np.argmax(true - claim.true_positive_rate(false))
    true, false = _rates(attacks[[best, sharpest]], count_in, count_out, level)
    allowed = float(claim.true_positive_rate(false[1]))
    return TrialBound(
        lower_bound=float(_epsilon(true[0], false[0], delta)),
        excess=float(true[1]) - allowed,
        true_positive_rate=float(true[1]),
        false_positive_rate=float(false[1]),
        allowed=allowed,
    )


def _candidates(scores: Floats) -> Floats:
    """Attacks as pairs (sign, threshold): present where sign * score is at least the threshold.

    With the sign reversed, the attack finds the absent.
    """
    values = np.unique(scores)
    chosen = values[np.linspace(0, len(values) - 1, _MAX_THRESHOLDS).round().astype(int)]
    chosen = np.unique(chosen)
    return np.stack(
        [np.repeat([1.0, -1.0], len(chosen)), np.concatenate([chosen, -chosen])], axis=1
    )


def _rates(attacks: Floats, present: Floats, absent: Floats, level: float) -> tuple[Floats, Floats]:
    """The exact lower bound of each attack's true positives, and upper bound of its false ones."""
    sign, threshold = attacks.T
    there, gone = np.sort(present), np.sort(absent)
    high_in = len(there) - np.searchsorted(there, threshold, side="left")
    high_out = len(gone) - np.searchsorted(gone, threshold, side="left")
    low_in = np.searchsorted(there, -threshold, side="right")
    low_out = np.searchsorted(gone, -threshold, side="right")
    right = np.where(sign > 0, high_in, low_out)
    wrong = np.where(sign > 0, high_out, low_in)
    num_right = np.where(sign > 0, len(there), len(gone))
    num_wrong = np.where(sign > 0, len(gone), len(there))
    # Clopper and Pearson (1934); their formula has no value where nobody, or everybody, is found.
    low = beta.ppf(1 - level, np.maximum(right, 1), num_right - right + 1)
    high = beta.ppf(level, wrong + 1, np.maximum(num_wrong - wrong, 1))
    return np.where(right == 0, 0.0, low), np.where(wrong == num_wrong, 1.0, high)


def _epsilon(true: ArrayLike, false: ArrayLike, delta: float) -> Floats:
    excess = np.maximum(np.asarray(true) - delta, 0.0)
    ratio = excess / np.maximum(np.asarray(false), np.finfo(np.float64).tiny)
    return np.log(np.maximum(ratio, 1.0))
