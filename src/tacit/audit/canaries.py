"""Canaries: a fair coin for each, and what the guesses about them show."""

import secrets
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from tacit import _check
from tacit.audit.one_run import guess_rules, one_run_lower_bound, right_guesses
from tacit.audit.result import AuditedData, AuditResult
from tacit.certify.proportions import clopper_pearson
from tacit.errors import InvalidArgumentError

__all__ = ["coins", "membership_figures", "one_run_result"]


def coins(num_canaries: int, *, seed: int | None) -> NDArray[np.bool_]:
    """Returns which canaries are present: a fair, independent coin for each."""
    _check.positive_integer(num_canaries=num_canaries)
    generator = np.random.default_rng(secrets.randbits(128) if seed is None else [seed, 0xC011])
    return generator.integers(0, 2, num_canaries).astype(bool)


def one_run_result(
    scores: ArrayLike,
    is_present: ArrayLike,
    *,
    attack: str,
    data: AuditedData,
    epsilon: float,
    delta: float,
    confidence: float,
) -> AuditResult:
    """Returns what the scores of one run's canaries show about its claim.

    Guarantee:
      If the run is (epsilon, delta)-differentially private and the coins were fair, independent and
      unknown to the scores but through the run, a violation is reported with probability at most
      ``1 - confidence``. All rules of guessing are paid for, whichever is best.

    Args:
      scores: one for each canary; high means present. What is not a number counts as very low.
      is_present: the canaries' coins.
      attack: how the scores were made.
      data: the records behind them.
      epsilon: the claim.
      delta: its delta.
      confidence: of the result.
    """
    _check.fraction(one=False, confidence=confidence)
    values = np.nan_to_num(
        np.asarray(scores, np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf
    )
    present = np.asarray(is_present, bool)
    if values.shape != present.shape or values.ndim != 1:
        raise InvalidArgumentError(
            "scores and is_present must have one value for each canary; got shapes"
            f" {values.shape} and {present.shape}."
        )
    rules = guess_rules(len(values))
    level = 1 - (1 - confidence) / len(rules)
    found = [
        (
            one_run_lower_bound(
                right_guesses(values, present, rule),
                sum(rule),
                len(values),
                delta=delta,
                confidence=level,
            ),
            rule,
        )
        for rule in rules
    ]
    bound, rule = max(found)
    violation = None
    if bound > epsilon:
        violation = (
            f"epsilon is at least {bound:.3f} at delta {delta:g}, where {epsilon:.4g} was claimed"
        )
    return AuditResult(
        attack=attack,
        data=data,
        claimed_epsilon=epsilon,
        claimed_delta=delta,
        lower_bound=bound,
        confidence=confidence,
        violation=violation,
        details={
            "num_canaries": len(values),
            "num_present": int(present.sum()),
            "num_rules": len(rules),
            "guessed_present": rule[0],
            "guessed_absent": rule[1],
            "right": right_guesses(values, present, rule),
            "membership": membership_figures(values, present),
        },
    )


def membership_figures(scores: ArrayLike, is_present: ArrayLike) -> dict[str, Any]:
    """Returns the usual figures of a membership inference attack, as JSON-able data.

    The area under the curve, and the true positives where at most 1 % and 0.1 % of the absent are
    accused, with a 95 % interval. The thresholds are chosen on the same canaries: these figures
    describe, and only the lower bound on epsilon proves something.

    Reference:
      Carlini et al., "Membership inference attacks from first principles" (2022): report true
      positives at low false positives.
    """
    values, present = np.asarray(scores, np.float64), np.asarray(is_present, bool)
    num_in, num_out = int(present.sum()), int((~present).sum())
    if num_in == 0 or num_out == 0:
        return {}
    ranks = rankdata(values)
    area = (ranks[present].sum() - num_in * (num_in + 1) / 2) / (num_in * num_out)
    figures: dict[str, Any] = {"auc": float(area)}
    absent = np.sort(values[~present])[::-1]
    for rate in (0.01, 0.001):
        allowed = int(rate * num_out)
        hits = int((values[present] > absent[allowed]).sum())
        share = clopper_pearson(hits, num_in)
        figures[f"true_positive_rate_at_{rate:g}"] = {
            "value": share.estimate,
            "low": share.low,
            "high": share.high,
        }
    return figures
