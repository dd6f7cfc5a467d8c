"""Empirical lower bounds on epsilon: attacks that look for what a guarantee forbids.

`audit_release` attacks one release of the engine, `audit_method` a run of any method on synthetic
canaries, `audit_plan` both, and `audit_membership` a run of any model on the records themselves. An
audit is a test of code, not a proof. It can show that a claim is wrong; it can never show that one
is right.
"""

from tacit.audit.canaries import coins, membership_figures, one_run_result
from tacit.audit.dirac import audit_method, dirac_model, dirac_records
from tacit.audit.lira import lira_scores, shadow_coins
from tacit.audit.membership import LiRA, LossAttack, audit_membership
from tacit.audit.one_run import guess_rules, one_run_lower_bound, one_run_p_value, right_guesses
from tacit.audit.plans import audit_plan
from tacit.audit.release import audit_release, releases_of, without_sampling
from tacit.audit.result import AuditedData, AuditResult
from tacit.audit.training import FunctionTrainer, PlanTrainer, Trainer
from tacit.audit.trials import TrialBound, trial_bound

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
