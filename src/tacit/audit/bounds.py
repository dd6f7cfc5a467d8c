"""What an audit may claim: lower bounds on epsilon from many trials, or from one run.

From many trials: in half of them the canary is there, in the other half it is not. A threshold on
the attack's score is chosen on one half of each, and what it finds is counted on the other;
choosing and counting on the same trials would find violations in pure noise.

From one run: every canary is in the table or not, by a fair coin of its own. An attack that sees
the result guesses for some of them, and abstains for the rest. If the run is
(epsilon, delta)-differentially private, the number of right guesses is hardly more than so many
throws of a coin that is right with probability e^epsilon / (1 + e^epsilon).

JAX Privacy has such bounds too, and the tests compare with its values; it is not a dependency,
because it would bring a second engine along.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit
from scipy.stats import beta, binom

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.metrics.scores import Floats
from tacit.privacy.interpretation import TradeOff

__all__ = [
    "OWNER_SIDE",
    "SYNTHETIC",
    "AuditResult",
    "AuditedData",
    "GuessRule",
    "TrialBound",
    "guess_rules",
    "one_run_lower_bound",
    "one_run_p_value",
    "right_guesses",
    "trial_bound",
]

GuessRule = tuple[int, int]
"""How many canaries of the highest score are called present, and of the lowest absent."""

SYNTHETIC = (
    "Computed from synthetic canaries alone: no private record was read, nothing was charged, and"
    " the result may be published."
)
OWNER_SIDE = (
    "Computed from private records, with models trained for the audit only: work on the owner's"
    " side that is NOT covered by any guarantee and was not charged. Do not publish the result."
)

_MAX_THRESHOLDS = 200
_FEWEST_TRIALS = 8
_LARGEST = 64.0
"""No run can show a larger epsilon: it would take e^64 canaries."""


@dataclass(frozen=True, kw_only=True)
class AuditedData:
    """Which records an audit was computed from, and what that means for its result.

    Attributes:
      name: what they are.
      num_records: how many.
      public: whether the result may be published as far as they are concerned.
      statement: the same in a sentence.
    """

    name: str
    num_records: int
    public: bool
    statement: str


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """A lower bound on epsilon, and whether it contradicts what was claimed.

    Guarantee:
      If what was audited keeps its claim, then ``violation`` is set, or ``lower_bound`` is above
      the true epsilon at ``claimed_delta``, with probability at most ``1 - confidence`` over the
      run's noise and the canaries' coins. An audit that finds nothing proves nothing: it is a test
      of the code and not a guarantee.

    Attributes:
      attack: how it was attacked.
      data: which records were used.
      claimed_epsilon: the claim.
      claimed_delta: the delta of the claim and of the lower bound.
      lower_bound: epsilon is at least this, with ``confidence``.
      confidence: of the lower bound and the verdict together.
      violation: what contradicts the claim; None where nothing does.
      details: what the bound was computed from, as JSON-able data.
    """

    attack: str
    data: AuditedData
    claimed_epsilon: float
    claimed_delta: float
    lower_bound: float
    confidence: float
    violation: str | None = None
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """The result in a few words."""
        return "no violation found" if self.violation is None else f"VIOLATION: {self.violation}"

    def to_json(self) -> dict[str, Any]:
        """Returns what ``audit.json`` holds; an infinite claim is the text 'infinity'."""
        claimed = "infinity" if math.isinf(self.claimed_epsilon) else self.claimed_epsilon
        return {
            "attack": self.attack,
            "data": {
                "name": self.data.name,
                "num_records": self.data.num_records,
                "public": self.data.public,
                "statement": self.data.statement,
            },
            "claimed": {"epsilon": claimed, "delta": self.claimed_delta},
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "verdict": self.verdict,
            "details": dict(self.details),
        }

    def __str__(self) -> str:
        return "\n".join(
            [
                self.verdict,
                f"  claimed      epsilon {self.claimed_epsilon:.4g} at delta"
                f" {self.claimed_delta:g}",
                f"  found        epsilon at least {_round_down(self.lower_bound)}, with"
                f" {100 * self.confidence:g} % confidence",
                f"  attack       {self.attack}",
                f"  records      {self.data.name}, {self.data.num_records} of them",
                f"  mind         {self.data.statement}",
            ]
        )


def _round_down(bound: float) -> str:
    """A lower bound as people should see it: never larger than it is."""
    return f"{math.floor(1000 * bound) / 1000:.3f}"


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
