"""Statements of format 1, which tacit no longer writes: the tail of their noise was cut."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tacit.privacy.statement.second import Leaf, count_from_json

__all__ = ["FIELDS", "WORDS", "counted_tail", "is_format_1", "note", "stated_tail"]

FIELDS = frozenset({"num_values", "tail"})
"""What only they have."""

WORDS = {
    "sensitivity": "one record adds at most the clip norm to a sum of real numbers; the rounding of"
    " float32 is not inside the bound",
    "arithmetic": "float32; noise cut at 8.89 standard deviations",
    "length": "assumed to be fixed before the first release",
}
"""What they lack, and what it would have said."""

_TAIL_BITS = 57  # a pair of the noise's values passes its edge with probability 2**-57


def is_format_1(document: Mapping[str, Any]) -> bool:
    """Returns whether a statement was written before the arithmetic was stated."""
    return "arithmetic" not in document


def stated_tail(document: Mapping[str, Any]) -> float:
    """Returns what a statement says that the cut tail takes of delta; nothing in a newer one."""
    return float(document["tail"]) if is_format_1(document) else 0.0


def note(tail: float) -> str:
    """Returns what a verifier should add to its verdict on one of them."""
    return (
        f"This is a statement of format 1: the cut tail of its noise takes {tail:.1g} of delta,"
        " which is counted, and the rounding of float32 is outside the promise."
    )


def counted_tail(document: Mapping[str, Any], counts: Counter[Leaf]) -> float:
    """Returns what is taken off delta before epsilon is computed; nothing for a newer statement.

    It is what the statement says, and at least the bound of that time: a release of m pairs of
    values, each of which passed the edge R with probability 2^-57, under a record that moves it by
    D standard deviations, took ``2^-57 (m + R D sqrt(m) + exp(R D) - 1 - R D)`` of delta.
    """
    if not is_format_1(document):
        return 0.0
    edge = math.sqrt(2 * _TAIL_BITS * math.log(2))
    pairs = math.ceil(count_from_json(document["num_values"]) / 2)
    total = 0.0
    for leaf, count in counts.items():
        shift = edge / leaf.noise if leaf.noise > 0 else math.inf
        if shift > edge**2 / 2:
            return 1.0
        bad = pairs + shift * math.sqrt(pairs) + math.expm1(shift) - shift
        total += count * bad * 2.0**-_TAIL_BITS
    return max(min(1.0, total), stated_tail(document))
