"""The privacy statement of a run: made from what was executed, and checked from the file alone."""

from tacit.privacy.statement.construction import (
    engines_in,
    make_statement,
    method_name,
    releases_made,
    require_adjacency,
)
from tacit.privacy.statement.fields import (
    Statement,
    Tuning,
    read_sealed_statement,
    read_statement,
    statement_from_json,
)
from tacit.privacy.statement.text import describe_engine, describe_release
from tacit.privacy.statement.verification import Verification, verify_statement

__all__ = [
    "Statement",
    "Tuning",
    "Verification",
    "describe_engine",
    "describe_release",
    "engines_in",
    "make_statement",
    "method_name",
    "read_sealed_statement",
    "read_statement",
    "releases_made",
    "require_adjacency",
    "statement_from_json",
    "verify_statement",
]
