"""How objects show themselves in terminals and notebooks: a title, a warning, a few rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["CAUTION", "Sheet", "html", "panel", "warning_of"]

CAUTION = "caution"
"""The name of rows that nobody may overlook, although they are no warning."""

_AMBER = ";color:#b26a00"


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """What is shown of an object; numbers and settings, never a record.

    Attributes:
      title: what it is.
      rows: pairs of a name and a text.
      warning: what nobody may overlook; may be empty.
      table: what stands below the rows: headings, and lines of as many texts; may be empty.
    """

    title: str
    rows: Sequence[tuple[str, str]]
    warning: str = ""
    table: Sequence[Sequence[str]] = ()


def panel(sheet: Sheet) -> "Panel":
    """Returns the sheet for rich.

    Example:
      >>> from rich.console import Console
      >>> Console(width=40).print(panel(Sheet(title="Budget", rows=[("epsilon", "1")])))
      ╭─ Budget ─────────────────────────────╮
      │ epsilon  1                           │
      ╰──────────────────────────────────────╯
    """
    # Only who prints pays for rich.
    from rich import box  # noqa: PLC0415
    from rich.console import Group  # noqa: PLC0415
    from rich.panel import Panel  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in sheet.rows:
        table.add_row(Text(name), Text(value, style="yellow" if name == CAUTION else ""))
    parts = [Text(sheet.warning, style="bold red"), table] if sheet.warning else [table]
    if sheet.table:
        below = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for i, name in enumerate(sheet.table[0]):
            below.add_column(Text(name), justify="right" if i else "left", overflow="fold")
        for cells in sheet.table[1:]:
            below.add_row(*(Text(cell) for cell in cells))
        parts += [Text(), below]
    return Panel(
        Group(*parts), title=Text(sheet.title, style="bold"), title_align="left", box=box.ROUNDED
    )


def html(sheet: Sheet) -> str:
    """Returns the sheet for notebooks, escaped; it takes its colours from the notebook.

    Example:
      >>> html(Sheet(title="<Plan>", rows=[("steps", "400")])).count("&lt;Plan&gt;")
      1
    """
    cell = "padding:2px 14px 2px 0;text-align:left;vertical-align:top"
    rows = "".join(
        f'<tr><th scope="row" style="{cell};font-weight:normal;opacity:.7;white-space:nowrap">'
        f'{escape(name)}</th><td style="{cell}{_AMBER if name == CAUTION else ""}">'
        f"{escape(value)}</td></tr>"
        for name, value in sheet.rows
    )
    below = "".join(
        f'<tr style="opacity:{0.7 if i == 0 else 1}">'
        + "".join(f'<td style="{cell}">{escape(text)}</td>' for text in line)
        + "</tr>"
        for i, line in enumerate(sheet.table)
    )
    loud = f'<p style="color:#c62828;font-weight:bold;margin:4px 0">{escape(sheet.warning)}</p>'
    return (
        '<div style="border:1px solid rgba(128,128,128,.4);border-radius:8px;padding:10px 14px;'
        'max-width:760px;overflow-x:auto">'
        f"<strong>{escape(sheet.title)}</strong>{loud if sheet.warning else ''}"
        f'<table style="border-collapse:collapse;margin-top:6px">{rows}</table>'
        + (
            f'<table style="border-collapse:collapse;margin-top:6px">{below}</table>'
            if below
            else ""
        )
        + "</div>"
    )


def warning_of(*, epsilon: object, is_secure: object, is_bound: object = True) -> str:
    """Returns the loud words that a promise needs; empty where it needs none.

    Example:
      >>> warning_of(epsilon=1.0, is_secure=False)
      'INSECURE: the noise came from a known seed'
    """
    if epsilon in ("infinity", float("inf")):
        return "NOT PRIVATE: nothing is promised"
    if not is_secure:
        return "INSECURE: the noise came from a known seed"
    return "" if is_bound else "NOT A GUARANTEE: epsilon is an approximation"
