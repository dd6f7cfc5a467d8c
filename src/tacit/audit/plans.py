"""Auditing a plan from both ends: its single releases, and a whole run of it."""

from tacit import _check
from tacit.audit.dirac import audit_method
from tacit.audit.release import audit_release, releases_of, without_sampling
from tacit.audit.result import AuditResult
from tacit.inference import Plan
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum

__all__ = ["audit_plan"]

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
