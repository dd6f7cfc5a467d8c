"""Empirical lower bounds on epsilon: attacks that look for what a guarantee forbids.

`audit_release` attacks one release of the engine, `audit_method` a run of any method on synthetic
canaries, `audit_plan` both, and `audit_membership` a run of any model on the records themselves. An
audit is a test of code, not a proof. It can show that a claim is wrong; it can never show that one
is right.
"""

from tacit.audit.bounds import (
    AuditedData,
    AuditResult,
    TrialBound,
    guess_rules,
    one_run_lower_bound,
    one_run_p_value,
    right_guesses,
    trial_bound,
)
from tacit.audit.membership import (
    FunctionTrainer,
    LiRA,
    LossAttack,
    PlanTrainer,
    Trainer,
    audit_membership,
    lira_scores,
    shadow_coins,
)
from tacit.audit.release import audit_release, releases_of, without_sampling
from tacit.audit.runs import (
    audit_method,
    audit_plan,
    coins,
    dirac_model,
    dirac_records,
    membership_figures,
    one_run_result,
)

__all__ = [
    "AuditResult",
    "AuditedData",
    "FunctionTrainer",
    "LiRA",
    "LossAttack",
    "PlanTrainer",
    "Trainer",
    "TrialBound",
    "audit_membership",
    "audit_method",
    "audit_plan",
    "audit_release",
    "coins",
    "dirac_model",
    "dirac_records",
    "guess_rules",
    "lira_scores",
    "membership_figures",
    "one_run_lower_bound",
    "one_run_p_value",
    "one_run_result",
    "releases_of",
    "right_guesses",
    "shadow_coins",
    "trial_bound",
    "without_sampling",
]
