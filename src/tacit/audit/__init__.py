"""Empirical lower bounds on epsilon: attacks that look for what a guarantee forbids.

`audit_release` attacks one release of the engine, `audit_method` a run of any method on synthetic
canaries, `audit_plan` both, and `audit_membership` a run of any model on the records themselves. An
audit is a test of code, not a proof. It can show that a claim is wrong; it can never show that one
is right.
"""

from tacit.audit.bounds import AuditResult
from tacit.audit.membership import audit_membership
from tacit.audit.release import audit_release
from tacit.audit.runs import audit_method, audit_plan

__all__ = ["AuditResult", "audit_membership", "audit_method", "audit_plan", "audit_release"]
