"""One-run auditing: a lower bound on epsilon from who was guessed right in a single run.

Every canary is in the table or not, by a fair coin of its own. An attack that sees the result
guesses for some of them, and abstains for the rest. If the run is (epsilon, delta)-differentially
private, the number of right guesses is hardly more than so many throws of a coin that is right
with probability e^epsilon / (1 + e^epsilon).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import binom

from tacit import _check
from tacit.errors import InvalidArgumentError

__all__ = ["GuessRule", "guess_rules", "one_run_lower_bound", "one_run_p_value", "right_guesses"]

_LARGEST = 64.0
"""No run can show a larger epsilon: it would take e^64 canaries."""

GuessRule = tuple[int, int]
"""How many canaries of the highest score are called present, and of the lowest absent."""


def one_run_p_value(
    num_right: int, num_guesses: int, num_canaries: int, *, epsilon: float, delta: float
) -> float:
    """The largest chance of so many right guesses under (epsilon, delta)-differential privacy.

    Guarantee:
      Holds for every attack, also one that guesses for canaries of its choice, as long as the coins
      of all canaries are fair and independent.

    Args:
      num_right: how many guesses were right.
      num_guesses: how many were made; the attack abstained for the rest.
      num_canaries: how many canaries had a coin.
      epsilon: the promise that is tested.
      delta: its delta.

    Example:
      >>> round(one_run_p_value(9, 10, 20, epsilon=1.0, delta=0.0), 4)
      0.204

    Reference:
      Steinke, Nasr and Jagielski, "Privacy auditing with one (1) training run" (2023),
      theorem 5.2.
    """
    _check.non_negative(epsilon=epsilon)
    _check.fraction(zero=True, delta=delta)
    _check.positive_integer(num_canaries=num_canaries)
    if not 0 <= num_right <= num_guesses <= num_canaries:
        raise InvalidArgumentError(
            "num_right, num_guesses and num_canaries must be in rising order; got"
            f" {num_right}, {num_guesses} and {num_canaries}."
        )
    if num_right == 0:
        return 1.0
    chance = expit(epsilon)
    tail = binom.sf(num_right - 1, num_guesses, chance)
    # What delta can add: the largest mean of the probabilities just below the count.
    below = binom.pmf(np.arange(num_right - 1, -1, -1), num_guesses, chance)
    gain = np.max(np.cumsum(below) / np.arange(1, num_right + 1))
    return float(min(1.0, tail + 2 * num_canaries * delta * gain))


def one_run_lower_bound(
    num_right: int, num_guesses: int, num_canaries: int, *, delta: float, confidence: float
) -> float:
    """The largest epsilon that so many right guesses refute, with this confidence.

    Guarantee:
      If the run is (epsilon, delta)-differentially private, the result is above epsilon with
      probability at most ``1 - confidence``.

    Example:
      >>> round(one_run_lower_bound(950, 1000, 2000, delta=1e-6, confidence=0.95), 3)
      2.702
    """
    _check.fraction(one=False, confidence=confidence)

    def is_refuted(epsilon: float) -> bool:
        p_value = one_run_p_value(
            num_right, num_guesses, num_canaries, epsilon=epsilon, delta=delta
        )
        return p_value <= 1 - confidence

    if num_guesses == 0 or not is_refuted(0.0):
        return 0.0
    low, high = 0.0, _LARGEST
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if is_refuted(middle) else (low, middle)
    return low


def guess_rules(num_canaries: int) -> tuple[GuessRule, ...]:
    """Returns the rules that an audit tries: few, and chosen before any score is seen.

    Powers of two, up to a guess for every canary, on both sides or only on the high one. Whoever
    takes the best of them pays for all, by a union bound; as they are few, that is cheap.

    Example:
      >>> guess_rules(8)
      ((1, 1), (1, 0), (2, 2), (2, 0), (4, 4), (4, 0))
    """
    _check.positive_integer(num_canaries=num_canaries)
    sides = [
        2**power for power in range(num_canaries.bit_length()) if 2 ** (power + 1) <= num_canaries
    ]
    half = num_canaries // 2
    sides = sorted({*sides, half} - {0})
    return tuple(rule for side in sides for rule in ((side, side), (side, 0)))


def right_guesses(scores: ArrayLike, is_present: ArrayLike, rule: GuessRule) -> int:
    """Returns how many guesses of a rule are right.

    Equal scores are ordered by the canary's number, which says nothing about its coin.
    """
    present: NDArray[np.bool_] = np.asarray(is_present, bool)
    order = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    high, low = rule
    return int(present[order[:high]].sum() + (~present[order[len(order) - low :]]).sum())
