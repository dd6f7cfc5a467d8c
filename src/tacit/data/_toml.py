"""TOML for documents made of tables, lists, strings and numbers; Python itself only reads it."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from tacit.errors import InvalidArgumentError

__all__ = ["dumps", "loads"]


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

    Plain values must precede tables at each level, as TOML itself wants it.

    Example:
      >>> print(dumps({"limit": 1.0, "a b": {"of": ["x", "y"]}}), end="")
      limit = 1.0
      <BLANKLINE>
      ["a b"]
      of = ["x", "y"]
    """
    return "".join(f"{line}\n" for line in _lines(document, path=()))


def _lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, Mapping):
            here = (*path, key)
            if not all(isinstance(inner, Mapping) for inner in value.values()) or not value:
                yield ""
                yield f"[{'.'.join(map(_key, here))}]"
            yield from _lines(value, here)
        else:
            yield f"{_key(key)} = {_value(value)}"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _value(key)


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's too; only DEL may stand bare in JSON and not in TOML.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real):
        return repr(float(value))  # a NumPy number would print its type, too
    raise TypeError(f"TOML text is written for strings, numbers and lists; got {value!r}.")
