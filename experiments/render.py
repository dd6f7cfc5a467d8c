"""The results page: what was measured, beside what was published."""

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
    robust,
    thesis,
    together,
    twin,
    zhang,
    zhang_regression,
)

__all__ = ["FIGURES", "PAGE", "SECTIONS", "rendered"]

PAGE = Path(__file__).parents[1] / "docs" / "results.md"

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
"""What the page is made of, by the names of its marks."""

FIGURES: Sequence[Figure] = (
    *zhang.FIGURES,
    *zhang_regression.FIGURES,
    *knolle.FIGURES,
    *thesis.FIGURES,
    *together.FIGURES,
)
"""The pictures on it."""


def rendered(page: str) -> str:
    """Returns the page with what stands between the marks of each section renewed."""
    for name, section in SECTIONS.items():
        begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
        before, rest = page.split(begin)
        page = f"{before}{begin}\n{section()}\n{end}{rest.split(end)[1]}"
    return page


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(rendered(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    for figure in FIGURES:
        draw(figure)
