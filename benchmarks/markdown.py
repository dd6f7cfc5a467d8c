"""What pages show: tables and numbers in Markdown, between marks that are renewed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

__all__ = ["Sections", "judged", "markdown", "number", "ratio", "renewed"]

Sections: TypeAlias = Mapping[str, Callable[[Any], str]]
"""What is computed of a page, as functions of what was measured, by the names of their marks."""


def renewed(page: str, sections: Sections, found: Any) -> str:
    """Returns the page with what stands between the marks of each section renewed."""
    for name, section in sections.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{section(found)}\n{end}{rest.split(end)[1]}"
    return page


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None) -> str:
    """Returns three digits of a number, or more before the point; nothing of None.

    Example:
      >>> number(0.98765), number(98765.4), number(None)
      ('0.988', '98,765', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def ratio(value: float) -> str:
    """Returns two digits behind the point of a ratio that is neither large nor small.

    Example:
      >>> ratio(0.98765), ratio(98765.4), ratio(0.000123)
      ('0.99', '98,765', '0.000123')
    """
    return f"{value:.2f}" if 0.1 <= value < 100 else number(value)


def judged(value: float, row: Mapping[str, Any]) -> str:
    """Returns a ratio, and where it misses the row's target, that."""
    return ratio(value) if row["met"] else f"{ratio(value)} (missed: ≤ {row['target']:g})"
