"""The errors and warnings that tacit raises, so that callers can tell them apart."""

__all__ = [
    "BudgetExceededError",
    "CrossRecordError",
    "IntervalWarning",
    "InvalidArgumentError",
    "LedgerDamagedError",
    "LedgerError",
    "LostWorkerError",
    "PrivacyWarning",
    "StoppedByCoordinatorError",
    "TacitError",
    "UnprovenAccountingError",
    "UtilityWarning",
]


class TacitError(Exception):
    """Any error that tacit raises on purpose; the command line prints it without a traceback."""


class InvalidArgumentError(TacitError, ValueError):
    """An argument is wrong; the message names it, shows its value and says what to do."""


class BudgetExceededError(TacitError):
    """The work would cost more than the budget allows; it was not begun.

    No record was read for it. A run that a ledger refuses half way keeps what it made and paid for
    before: ``fit(..., on_chunk=...)`` was given the checkpoint.
    """


class CrossRecordError(TacitError):
    """A loss mixes records, keeps state, or lets a record out by a side channel."""


class LedgerError(TacitError):
    """A ledger cannot be used as it is; the message names the file and the remedy.

    What was asked for was not begun. A ledger is never reset, repaired or made anew by itself.
    """


class LedgerDamagedError(LedgerError):
    """A ledger is not what was written: truncated, altered, or not a ledger at all."""


class LostWorkerError(TacitError):
    """A process of a run was lost, and the run ends in all of them.

    What was charged stays charged, whether or not its steps were finished; the last checkpoint
    is as it was.
    """


class StoppedByCoordinatorError(TacitError):
    """The coordinator of a run could not go on, so the other processes end, too."""


class UnprovenAccountingError(TacitError):
    """Nobody has proven a guarantee for this sampling, adjacency and accountant."""


class PrivacyWarning(UserWarning):
    """Something is allowed but weakens what the privacy guarantee means."""


class IntervalWarning(UserWarning):
    """Credible intervals were asked for that are not known to hold; the message says why."""


class UtilityWarning(UserWarning):
    """A run is allowed, and will hardly be of use; the message says why."""
