"""A first draft of a schema, read off the records: to be checked against a code book."""

import json
import math
import sys
import textwrap
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tacit.data.columns import Level
from tacit.data.csv import MISSING_MARKS
from tacit.data.schema import toml_of
from tacit.errors import InvalidArgumentError

__all__ = ["WARNING", "Draft", "draft_schema", "is_draft", "rounded_range"]

WARNING = (
    "A DRAFT. It was made by looking at the records, so it is not part of any privacy guarantee."
    " Check every range and category against a code book or common knowledge, correct it, and"
    " remove this comment. What you leave as it was read off the records is an unpaid release."
)

Table: TypeAlias = dict[str, Any]

_FEW, _MANY, _LONG = 10, 50, 40
_FEWEST_FOR_AN_ID = 20
_HEAVY_TAIL = 100
_LARGEST = sys.float_info.max


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What a look at a table suggests.

    Attributes:
      text: TOML with comments, for `Schema.from_toml` once it was checked.
      notes: what to look at, one line for each doubt.
      target: the column that was taken as the target.
    """

    text: str
    notes: tuple[str, ...]
    target: str


@dataclass(frozen=True, kw_only=True)
class _Look:
    """What one column seems to be; a table of None leaves it out."""

    table: Table | None
    notes: tuple[str, ...] = ()


def is_draft(text: str) -> bool:
    """Whether a schema's text still has the comment that a draft begins with."""
    return text.lstrip().startswith("# A DRAFT.")


def draft_schema(frame: pd.DataFrame, *, target: str | None = None) -> Draft:
    """Returns a schema that would fit a table, for its owner to correct.

    Guarantee:
      None: the draft depends on the records and is not for publication. The schema that its owner
      makes of it is public knowledge.

    Args:
      frame: a table of text, from `tacit.data.csv.read_csv`.
      target: the column to predict; the last one if it is not said.

    Example:
      >>> ages = [str(age) for age in range(18, 88)] * 2
      >>> frame = pd.DataFrame({"age": ["?", *ages], "ill": ["yes", *["no", "yes"] * 70]})
      >>> draft = draft_schema(frame, target="ill")
      >>> print(draft.text[draft.text.index("[target]") :])
      [target]
      name = "ill"
      classes = ["no", "yes"]
      <BLANKLINE>
      # "?" read as missing
      [columns.age]
      low = 0
      high = 90
      <BLANKLINE>
    """
    names = [str(name) for name in frame.columns]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InvalidArgumentError(
            f"the table repeats the columns {', '.join(map(repr, repeated))}. Rename them."
        )
    if len(names) < 2:
        raise InvalidArgumentError(
            f"the table must have a target and at least one more column; got {len(names)} column."
        )
    if target is not None and target not in names:
        raise InvalidArgumentError(
            f"the table has no column {target!r} to be the target; it has"
            f" {', '.join(map(repr, names[:12]))}{' ...' if len(names) > 12 else ''}."
        )
    chosen = names[-1] if target is None else target
    looks = {name: _look(name, frame[name], is_target=name == chosen) for name in names}
    if looks[chosen].table is None:
        raise InvalidArgumentError(
            f"column {chosen!r} cannot be a target: {looks[chosen].notes[0]}. Name another column."
        )
    if all(look.table is None for name, look in looks.items() if name != chosen):
        raise InvalidArgumentError("no column but the target looks like a feature. Write a schema.")
    if target is None:
        guess = "taken as the target because it comes last; name another if that is wrong"
        own = looks[chosen]
        looks[chosen] = _Look(table=own.table, notes=(guess, *own.notes))
    notes = [f"{name}: {note}" for name, look in looks.items() for note in look.notes]
    return Draft(text=_document(looks, chosen), notes=tuple(notes), target=chosen)


def rounded_range(low: float, high: float) -> tuple[float, float]:
    """Returns round numbers at or beyond both ends, zero where that is near.

    Example:
      >>> rounded_range(17, 90), rounded_range(-3.2, 1.1), rounded_range(1012, 1019)
      ((0, 90), (-4, 2), (1012, 1019))
    """
    span = high - low  # infinite for the largest floating numbers
    if not span > 0 or not math.isfinite(span):
        span = max(abs(low), abs(high), 1.0)
    step = 10.0 ** math.floor(math.log10(span))
    if 0 <= low <= span:
        low = 0.0
    if -span <= high <= 0:
        high = 0.0
    ends = math.floor(low / step) * step, math.ceil(high / step) * step
    if ends[0] == ends[1]:
        ends = ends[0], ends[1] + step
    return _plain(max(ends[0], -_LARGEST)), _plain(min(ends[1], _LARGEST))


def _plain(value: float) -> float:
    """Without the dust of binary fractions, and whole where it is."""
    value = float(f"{value:.12g}") if abs(value) < _LARGEST / 2 else value
    return int(value) if value.is_integer() and abs(value) < 2**53 else value


def _look(name: str, cells: "pd.Series[Any]", *, is_target: bool) -> _Look:
    text = cells.dropna().astype(str)
    bare = text.str.strip()
    is_mark = bare.str.lower().isin(MISSING_MARKS)
    known, marks = bare[~is_mark], sorted(set(bare[is_mark]))
    num_distinct = known.nunique()
    if num_distinct == 0:
        return _Look(table=None, notes=("left out: it has no values",))
    numbers = pd.to_numeric(known, errors="coerce").to_numpy(dtype=np.float64, na_value=np.nan)
    if np.isfinite(numbers).all():
        notes = [f"{_shown(marks)} read as missing"] if marks else []
        return _look_at_numbers(name, numbers, notes, is_target=is_target)
    share = float(np.isfinite(numbers).mean())
    notes = []
    if share > 0.9:
        odd = sorted(set(known[~np.isfinite(numbers)]))
        notes.append(f"nearly all values are numbers, but not {_shown(odd)}: correct these")
    levels = sorted(set(text))
    if marks:
        notes.append(f"{_shown(marks)} may stand for missing; if so, take it off the list")
    return _look_at_text(levels, num_distinct, known, notes, is_target=is_target)


def _look_at_numbers(
    name: str, numbers: NDArray[np.float64], notes: list[str], *, is_target: bool
) -> _Look:
    distinct = np.unique(numbers)
    is_whole = bool(np.all(distinct == np.rint(distinct)) and np.abs(distinct).max() < 2**53)
    if len(distinct) <= _FEW and is_whole:
        key = "classes" if is_target else "categories"
        levels: list[Level] = [int(value) for value in distinct]
        if len(distinct) > 2:
            low, high = rounded_range(float(distinct[0]), float(distinct[-1]))
            notes.append(
                f"few different numbers, taken as {key}; if they are amounts, write instead:"
                f" low = {low}, high = {high}"
            )
        return _listed(key, levels, notes, is_target=is_target)
    is_id = is_whole and len(distinct) == len(numbers) >= _FEWEST_FOR_AN_ID
    is_id = is_id and (_sounds_like_an_id(name) or bool(np.all(np.diff(distinct) == 1)))
    if is_id and not is_target:
        return _Look(table=None, notes=("left out: it looks like an id, different in every row",))
    if len(distinct) <= _FEW:
        notes.append(f"only {len(distinct)} different numbers")
    low, high = rounded_range(float(distinct[0]), float(distinct[-1]))
    table: Table = {"low": low, "high": high}
    if not is_target and low >= 0 and high > _HEAVY_TAIL * max(_middle(numbers), 1.0):
        table["scale"] = "log1p"
        notes.append("a few values are far larger than most, so the scale is log1p")
    return _Look(table=table, notes=tuple(notes))


def _middle(numbers: NDArray[np.float64]) -> float:
    return float(np.sort(numbers)[len(numbers) // 2])


def _look_at_text(
    levels: list[str],
    num_distinct: int,
    known: "pd.Series[str]",
    notes: list[str],
    *,
    is_target: bool,
) -> _Look:
    num_rows = len(known)
    if num_distinct > 0.9 * num_rows and num_rows >= _FEWEST_FOR_AN_ID:
        why = "left out: it looks like an id, a name or free text, different in nearly every row"
        return _Look(table=None, notes=(why,))
    if float(known.str.len().mean()) > _LONG and num_distinct > _FEW:
        return _Look(table=None, notes=("left out: it looks like free text",))
    if num_distinct > _MANY:
        why = f"left out: {num_distinct} categories are many; list the common ones by hand"
        return _Look(table=None, notes=(why,))
    key = "classes" if is_target else "categories"
    return _listed(key, list[Level](levels), notes, is_target=is_target)


def _listed(key: str, levels: list[Level], notes: list[str], *, is_target: bool) -> _Look:
    if len(levels) == 1:
        if not is_target:
            return _Look(table=None, notes=("left out: it has a single value",))
        notes.append("only one class occurs; list all that could, or nothing can be learnt")
    return _Look(table={key: levels}, notes=tuple(notes))


def _sounds_like_an_id(name: str) -> bool:
    words = name.lower().replace("-", "_").replace(" ", "_").split("_")
    return any(word in ("id", "key", "number", "no", "nr", "index", "code") for word in words)


def _shown(values: list[str]) -> str:
    """A few values on one line, whatever they hold."""
    return ", ".join(json.dumps(value) for value in values[:3]) + (" ..." if values[3:] else "")


def _document(looks: dict[str, _Look], target: str) -> str:
    lines = [f"# {line}" for line in _wrapped(WARNING)]
    own = looks[target]
    lines += ["", *(f"# {line}" for note in own.notes for line in _wrapped(note))]
    lines += toml_of({"target": {"name": target, **(own.table or {})}}).strip().splitlines()
    for name, look in looks.items():
        if name == target:
            continue
        lines.append("")
        if look.table is None:
            lines.append(f"# {json.dumps(name)} is {look.notes[0]}")
            continue
        lines += [f"# {line}" for note in look.notes for line in _wrapped(note)]
        lines += toml_of({"columns": {name: look.table}}).strip().splitlines()
    return "\n".join(lines) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, 96, break_long_words=False, break_on_hyphens=False)
