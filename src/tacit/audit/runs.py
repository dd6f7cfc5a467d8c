"""Audits of whole runs: canaries with a fair coin each, and what guesses about them show.

The model here has one parameter for each canary, and a canary asks, loudly, for its own to grow. No
other record touches it, so that all that hides the canary is the method's clip and noise. It is an
ordinary model: every method runs on it through the public `fit`, and what `fit` publishes is what
the attack sees.
"""

import secrets
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import rankdata

from tacit import _check
from tacit.audit.bounds import (
    SYNTHETIC,
    AuditedData,
    AuditResult,
    guess_rules,
    one_run_lower_bound,
    right_guesses,
)
from tacit.audit.release import audit_release, releases_of, without_sampling
from tacit.errors import InvalidArgumentError
from tacit.inference import Plan, fit
from tacit.metrics.confidence import clopper_pearson
from tacit.models import Model
from tacit.posterior import Posterior
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum
from tacit.typing import Array, Input, Key, Params, Record, Scalar

__all__ = [
    "audit_method",
    "audit_plan",
    "coins",
    "dirac_model",
    "dirac_records",
    "membership_figures",
    "one_run_result",
]

_LOUDNESS = 100.0
_PRIOR_STD = 10.0
_FEWEST_TRIALS, _MOST_TRIALS = 20_000, 200_000


def audit_plan(
    plan: Plan,
    *,
    budget: Budget,
    num_canaries: int,
    confidence: float = 0.95,
    seed: int | None = None,
) -> AuditResult:
    """Audits clip and noise of every release of a plan, and one run of it, on synthetic canaries.

    Guarantee:
      If the plan keeps what it claims, a violation is reported with probability at most
      ``1 - confidence``: half of that for the run, the other half for all releases. It reads no
      record of anybody.

    Args:
      plan: what is audited.
      budget: as for `fit`; finite.
      num_canaries: in the run; at most its number of records.
      confidence: of lower bound and verdict.
      seed: for tests; fresh coins and noise by default.
    """
    _check.fraction(one=False, confidence=confidence)
    releases = releases_of(plan.method)
    doubt = (1 - confidence) / 2
    run = audit_method(
        plan, budget=budget, num_canaries=num_canaries, confidence=1 - doubt, seed=seed
    )
    singles = [
        audit_release(
            without_sampling(release),
            delta=budget.delta,
            num_trials=_num_trials(release),
            confidence=1 - doubt / len(releases),
            seed=seed,
        )
        for release in releases
    ]
    violations = [found.violation for found in (*singles, run) if found.violation is not None]
    return AuditResult(
        attack=f"{run.attack}; and {singles[0].attack}",
        data=run.data,
        claimed_epsilon=run.claimed_epsilon,
        claimed_delta=run.claimed_delta,
        lower_bound=run.lower_bound,
        confidence=confidence,
        violation="; ".join(violations) or None,
        details={
            "run": dict(run.details),
            "releases": [
                {
                    "claimed_epsilon": found.claimed_epsilon,
                    "lower_bound": found.lower_bound,
                    "verdict": found.verdict,
                }
                for found in singles
            ],
        },
    )


def _num_trials(release: GaussianSum) -> int:
    """How many trials show that noise is ten times too small: as its multiplier squared."""
    wanted = int(4 * release.noise_multiplier**2)
    return min(max(wanted, _FEWEST_TRIALS), _MOST_TRIALS)


def audit_method(
    plan: Plan,
    *,
    budget: Budget,
    num_canaries: int,
    confidence: float = 0.95,
    seed: int | None = None,
) -> AuditResult:
    """Audits a plan by one run on Dirac canaries.

    Guarantee:
      If the run is as private as its statement says, a violation is reported with probability at
      most ``1 - confidence``. It reads no record of anybody.

    Args:
      plan: what is audited; its canaries take the places of ``num_canaries`` of its records.
      budget: as for `fit`; finite, since there must be a claim.
      num_canaries: more show more: the largest epsilon in reach is about
        ``log(num_canaries / 10)``.
      confidence: of lower bound and verdict.
      seed: for tests; fresh coins and noise by default.
    """
    _check.fraction(one=False, confidence=confidence)
    num_records = plan.method.num_records
    _check.positive_integer(num_canaries=num_canaries)
    if num_canaries > num_records:
        raise InvalidArgumentError(
            f"num_canaries must be at most the plan's {num_records} records; got {num_canaries}."
        )
    if not np.isfinite(budget.epsilon):
        raise InvalidArgumentError("budget must be finite to be audited; got epsilon infinity.")
    is_present = coins(num_canaries, seed=seed)
    loudest = max(release.clip_norm for release in releases_of(plan.method))
    model = dirac_model(num_canaries, loudness=_LOUDNESS * loudest)
    records = dirac_records(is_present, num_records=num_records)
    run = fit(plan, model, records, budget=budget, seed=seed)
    return one_run_result(
        np.asarray(_scores(run.posterior), np.float64),
        is_present,
        attack=f"{num_canaries} Dirac canaries in one run, seen in what it publishes",
        data=AuditedData(
            name="synthetic canaries", num_records=num_records, public=True, statement=SYNTHETIC
        ),
        epsilon=run.statement.epsilon,
        delta=run.statement.delta,
        confidence=confidence,
    )


def _scores(posterior: Posterior) -> Array:
    """What a reader of the posterior sees of each canary: its parameter, averaged over draws."""
    return jnp.mean(posterior.draws(), axis=0)


def dirac_model(num_canaries: int, *, loudness: float) -> Model:
    """Returns the model whose gradient has one coordinate for each canary.

    Args:
      num_canaries: how many parameters it has.
      loudness: the norm of a canary's gradient; well above the clip norm, to test the clip too.
    """
    _check.positive_integer(num_canaries=num_canaries)
    _check.positive(loudness=loudness)

    def init(key: Key) -> Params:
        del key
        return jnp.zeros(num_canaries)

    def log_prior(params: Params) -> Scalar:
        return -0.5 * jnp.sum((params / _PRIOR_STD) ** 2)

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        del key
        return loudness * jnp.vdot(params, jax.nn.one_hot(record.x, num_canaries))

    def predict(params: Params, x: Input, key: Key) -> Array:
        del key
        chance = jax.nn.sigmoid(jnp.vdot(params, jax.nn.one_hot(x, num_canaries)))
        return jnp.stack([1 - chance, chance])

    return Model(init, log_prior, log_likelihood, predict)


def dirac_records(is_present: NDArray[np.bool_], *, num_records: int) -> Record:
    """Returns a table whose first rows are canaries; absent ones, and all others, weigh nothing."""
    num_canaries = len(is_present)
    number = np.full(num_records, -1, np.int32)
    number[:num_canaries] = np.arange(num_canaries)
    weight = np.zeros(num_records, np.float32)
    weight[:num_canaries] = is_present
    return Record(jnp.asarray(number), jnp.zeros(num_records, jnp.int32), jnp.asarray(weight))


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
    # By ranks, because scores may be infinite, which scikit-learn refuses.
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
