"""TOML as schemas and studies are written: by tomli-w, with short lists on one line."""

import re
import tomllib
from collections.abc import Mapping
from typing import Any

import numpy as np
import tomli_w

from tacit.errors import InvalidArgumentError

__all__ = ["dumps", "loads"]

_WIDTH = 96


def loads(text: str) -> dict[str, Any]:
    """Returns the document that the text describes; raises if it is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidArgumentError(f"text is not valid TOML: {error}.") from error
    except (ValueError, RecursionError) as error:  # a number too long, or too deep a nesting
        raise InvalidArgumentError(f"text is no TOML that can be read: {error}.") from None


def dumps(document: Mapping[str, Any]) -> str:
    r"""Returns TOML text that ``loads`` turns back into the document.

    Example:
      >>> print(dumps({"limit": 1.0, "a b": {"of": ["x", "y"]}}), end="")
      limit = 1.0
      <BLANKLINE>
      ["a b"]
      of = ["x", "y"]
    """
    # Line breaks within strings are escaped, so each of these lines is an element of a list.
    return re.sub(
        r"^.+ = \[\n(?: {4}.+,\n)+\]$", _short, tomli_w.dumps(_plain(document)), flags=re.M
    )


def _short(lines: re.Match[str]) -> str:
    line = re.sub(r",\n\]$", "]", lines[0]).replace("[\n    ", "[", 1).replace(",\n    ", ", ")
    return line if len(line) <= _WIDTH else lines[0]


def _plain(value: Any) -> Any:
    """The value with Python's numbers for NumPy's, which tomli-w does not know."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value
