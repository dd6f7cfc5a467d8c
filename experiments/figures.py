"""Figures of the results page, each marked with the results that it was drawn from."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure as Canvas
from PIL import Image

from experiments.cells import read_rows

__all__ = ["PICTURES", "Figure", "draw", "is_current"]

PICTURES = Path(__file__).parents[1] / "docs" / "pictures" / "results"

_MARK = "Description"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture made of measured cells.

    Attributes:
      name: of its file, without suffix.
      caption: what it shows, also for who cannot see it.
      sources: the experiments whose results it shows.
      paint: draws on an empty canvas; it reads the results itself.
      size: in inches.
    """

    name: str
    caption: str
    sources: Sequence[str]
    paint: Callable[[Canvas], None]
    size: tuple[float, float] = (7.0, 3.0)

    @property
    def path(self) -> Path:
        """Where the picture is."""
        return PICTURES / f"{self.name}.png"

    @property
    def markdown(self) -> str:
        """How the page shows it; nothing is shown of what was not measured."""
        if not any(read_rows(name) for name in self.sources):
            return f"*Not drawn yet: {self.caption}*"
        return f"![{self.caption}](pictures/results/{self.path.name})\n\n*{self.caption}*"

    @property
    def digest(self) -> str:
        """The hash of the results that it shows."""
        rows = json.dumps([read_rows(name) for name in self.sources], sort_keys=True)
        return hashlib.sha256(rows.encode()).hexdigest()


def draw(figure: Figure) -> None:
    """Draws the picture and marks it, if there is anything to show and it is not current."""
    if is_current(figure):
        return
    canvas = Canvas(figsize=figure.size, layout="constrained")
    figure.paint(canvas)
    PICTURES.mkdir(parents=True, exist_ok=True)
    canvas.savefig(figure.path, dpi=140, metadata={_MARK: figure.digest, "Software": None})


def is_current(figure: Figure) -> bool:
    """Whether the picture shows the results as they are; nothing measured needs no picture."""
    if not any(read_rows(name) for name in figure.sources):
        return True
    return figure.path.exists() and _mark_of(figure.path) == figure.digest


def _mark_of(path: Path) -> str | None:
    with Image.open(path) as picture:
        return picture.info.get(_MARK)
