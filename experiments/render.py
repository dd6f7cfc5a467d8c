"""Pages with results: what was measured, beside what was published or predicted."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from experiments.figures import Figure, draw
from experiments.pages import (
    d3p,
    front_end,
    knolle,
    overview,
    pneumonia,
    programs,
    rehearsal,
    robust,
    thesis,
    together,
    twin,
    zhang,
    zhang_regression,
)

__all__ = ["FIGURES", "PAGES", "SECTIONS", "rendered"]

_DOCS = Path(__file__).parents[1] / "docs"

SECTIONS: dict[str, Callable[[], str]] = {
    "overview": overview.section,
    "front_end": front_end.section,
    "zhang": zhang.section,
    "zhang_regression": zhang_regression.section,
    "knolle": knolle.section,
    "d3p": d3p.section,
    "thesis": thesis.section,
    "twin": twin.section,
    "programs": programs.section,
    "pneumonia": pneumonia.section,
    "robust": robust.section,
    "together": together.section,
}
"""What the results page is made of, by the names of its marks."""

PAGES: dict[Path, dict[str, Callable[[], str]]] = {
    _DOCS / "results.md": SECTIONS,
    _DOCS / "rehearsal.md": {"rehearsed tables": rehearsal.section},
    _DOCS / "how-to-choose.md": {"methods on tables": rehearsal.methods_section},
}
"""All pages that have sections made of results."""

FIGURES: Sequence[Figure] = (
    *zhang.FIGURES,
    *zhang_regression.FIGURES,
    *knolle.FIGURES,
    *thesis.FIGURES,
    *together.FIGURES,
    *rehearsal.FIGURES,
)
"""The pictures on them."""


def rendered(path: Path) -> str:
    """Returns a page with what stands between the marks of each section renewed."""
    page = path.read_text(encoding="utf-8")
    for name, section in PAGES[path].items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{section()}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in PAGES:
        path.write_text(rendered(path), encoding="utf-8")
    for figure in FIGURES:
        draw(figure)
