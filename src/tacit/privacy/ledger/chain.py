"""The chain: entries that are only ever appended, each sealed by a hash of all before it."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

__all__ = ["GENESIS", "Entry", "next_entry", "seal_of"]

GENESIS = "0" * 64
"""What the first entry follows."""


class Entry(NamedTuple):
    """One line of a ledger.

    Attributes:
      number: 1 for the first.
      kind: what it records: the ledger itself, a data set, a run or a charge.
      body: what, as JSON.
      digest: the seal of this entry and all before it.
    """

    number: int
    kind: str
    body: str
    digest: str


def seal_of(previous: str, number: int, kind: str, body: str) -> str:
    """The digest of an entry that follows the one with digest ``previous``.

    The parts are put into a JSON list, so that no two different lists give the same bytes.
    """
    text = json.dumps([previous, number, kind, body])
    return hashlib.sha256(text.encode()).hexdigest()


def next_entry(previous: str, number: int, kind: str, content: Mapping[str, Any]) -> Entry:
    """The sealed entry after the one with digest ``previous``.

    Example:
      >>> first = next_entry(GENESIS, 1, "ledger", {"salt": "00"})
      >>> first.digest == seal_of(GENESIS, 1, first.kind, first.body)
      True
    """
    body = json.dumps(content, sort_keys=True, allow_nan=False)
    return Entry(number, kind, body, seal_of(previous, number, kind, body))
