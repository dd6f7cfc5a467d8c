"""The privacy statement of a run: made from what was executed, and checked from the file alone."""

from tacit.privacy.statement.construction import make_statement, require_adjacency
from tacit.privacy.statement.fields import (
    Statement,
    read_sealed_statement,
    read_statement,
    statement_from_json,
)
from tacit.privacy.statement.verification import Verification, verify_statement

__all__ = [
    "Statement",
    "Verification",
    "make_statement",
    "read_sealed_statement",
    "read_statement",
    "require_adjacency",
    "statement_from_json",
    "verify_statement",
]
