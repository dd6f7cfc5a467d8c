"""Validators that name the argument, show the value and say the remedy."""

import math
import os
from numbers import Integral, Real
from pathlib import Path

from tacit.errors import InvalidArgumentError

__all__ = [
    "finite",
    "fraction",
    "non_negative",
    "non_negative_integer",
    "one_of",
    "positive",
    "positive_integer",
    "readable_text",
    "writable_directory",
]


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise InvalidArgumentError(f"{name} must be a number; got {value!r}.")
    try:
        number = float(value)
    except OverflowError:
        raise InvalidArgumentError(
            f"{name} must be a number that floating point holds; got one that is far too large."
        ) from None
    if math.isnan(number):
        raise InvalidArgumentError(f"{name} must be a number; got NaN.")
    return number


def positive(*, infinite: bool = False, **values: object) -> None:
    """Raises unless every value is a number above zero (infinity only where ``infinite``)."""
    for name, value in values.items():
        number = _number(name, value)
        if number <= 0 or (math.isinf(number) and not infinite):
            kind = "a positive number" if infinite else "a positive, finite number"
            raise InvalidArgumentError(f"{name} must be {kind}; got {value!r}.")


def non_negative(*, infinite: bool = False, **values: object) -> None:
    """Raises unless every value is a number of at least zero (infinity only where ``infinite``)."""
    for name, value in values.items():
        number = _number(name, value)
        if number < 0 or (math.isinf(number) and not infinite):
            kind = "a non-negative number" if infinite else "a non-negative, finite number"
            raise InvalidArgumentError(f"{name} must be {kind}; got {value!r}.")


def finite(**values: object) -> None:
    """Raises unless every value is a number other than infinity."""
    for name, value in values.items():
        if math.isinf(_number(name, value)):
            raise InvalidArgumentError(f"{name} must be finite; got {value!r}.")


def fraction(*, zero: bool = False, one: bool = True, **values: object) -> None:
    """Raises unless every value lies between 0 and 1; ``zero`` and ``one`` admit the ends."""
    for name, value in values.items():
        number = _number(name, value)
        low = number >= 0 if zero else number > 0
        high = number <= 1 if one else number < 1
        if not (low and high):
            interval = f"{'[' if zero else '('}0, 1{']' if one else ')'}"
            raise InvalidArgumentError(f"{name} must lie in {interval}; got {value!r}.")


def positive_integer(**values: object) -> None:
    """Raises unless every value is a whole number of at least one."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 1:
            raise InvalidArgumentError(
                f"{name} must be a whole number of at least 1; got {value!r}."
            )


def non_negative_integer(**values: object) -> None:
    """Raises unless every value is a whole number of at least zero."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < 0:
            raise InvalidArgumentError(
                f"{name} must be a whole number of at least 0; got {value!r}."
            )


def one_of(options: tuple[str, ...], **values: object) -> None:
    """Raises unless every value is one of the named options."""
    for name, value in values.items():
        if value not in options:
            raise InvalidArgumentError(
                f"{name} must be one of {', '.join(options)}; got {value!r}."
            )


def readable_text(**values: object) -> None:
    """Raises unless every value is text on one line that a person can read."""
    for name, value in values.items():
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise InvalidArgumentError(f"{name} must be readable text; got {value!r}.")


def writable_directory(**values: Path) -> None:
    """Makes the folders and raises unless files can be written there."""
    for name, path in values.items():
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgumentError(
                f"{name} must be a folder that can be made; got {str(path)!r} ({error.strerror})."
            ) from None
        if not os.access(path, os.W_OK):
            raise InvalidArgumentError(
                f"{name} must be a folder that can be written; got {str(path)!r}."
            )
