"""A registry: classes that are known by a name, of this package and of whoever extends it."""

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from tacit.errors import InvalidArgumentError

__all__ = ["Registry"]

_Entry = TypeVar("_Entry")


class Registry(Mapping[str, _Entry], Generic[_Entry]):
    """Entries by name, in the order of their names; each belongs to one class.

    Nothing is ever imported to find a name: what is not registered is not there.

    Args:
      noun: what an entry is called in errors.

    Example:
      >>> registry = Registry[int]("number")
      >>> registry.add("two", int, 2)
      >>> registry["two"]
      2
    """

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._entries: dict[str, tuple[type, _Entry]] = {}

    def add(self, name: str, owner: type, entry: _Entry) -> None:
        """Registers an entry; the same class, defined again, takes its own place.

        Raises:
          InvalidArgumentError: if another class has the name.
        """
        before = self._entries.get(name, (owner,))[0]
        if _address(before) != _address(owner):
            raise InvalidArgumentError(
                f"the {self._noun} {name!r} is already {_address(before)}; got {_address(owner)}"
                " for the same name. Rename one of them: a name must mean one class."
            )
        self._entries[name] = (owner, entry)

    def is_registered(self, name: str, owner: type) -> bool:
        """Whether the name is that of this very class; a subclass may behave differently."""
        return self._entries.get(name, (None,))[0] is owner

    def __getitem__(self, name: str) -> _Entry:
        return self._entries[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)


def _address(owner: type) -> str:
    return f"{owner.__module__}.{owner.__qualname__}"
