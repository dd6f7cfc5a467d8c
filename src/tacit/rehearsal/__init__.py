"""Rehearsals: the run that is about to be paid for, many times, on simulated records.

Truths are drawn from the prior and records from the model, on inputs that are public or made up.
So nothing here reads a private record: neither a rehearsal nor a choice that is made by it has a
privacy cost.
"""

from tacit.rehearsal.choosing import Choice, choose
from tacit.rehearsal.rehearsing import Rehearsal, rehearse
from tacit.rehearsal.simulated import plausible_truths

__all__ = ["Choice", "Rehearsal", "choose", "plausible_truths", "rehearse"]
