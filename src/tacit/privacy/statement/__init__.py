"""The privacy statement of a run: made from what was executed, and checked from the file alone."""

from tacit.privacy.statement.fields import Statement, read_statement
from tacit.privacy.statement.verification import verify_statement

__all__ = ["Statement", "read_statement", "verify_statement"]
