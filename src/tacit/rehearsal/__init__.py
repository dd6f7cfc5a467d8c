"""Rehearsals: the run that is about to be paid for, many times, on simulated records.

Truths are drawn from the prior and records from the model, on inputs that are public or made up.
So nothing here reads a private record, and nothing costs privacy: not the rehearsal, and not a
choice between candidates that is made by it.
"""

from tacit.rehearsal.choosing import Choice, choose
from tacit.rehearsal.rehearsing import Rehearsal, rehearse

__all__ = ["Choice", "Rehearsal", "choose", "rehearse"]
