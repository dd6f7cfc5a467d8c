"""The book: a store and what was read from it so far, so that looking again is quick."""

import contextlib
import datetime
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from tacit.errors import LedgerDamagedError
from tacit.privacy.ledger.state import LedgerState
from tacit.privacy.ledger.store import Store

__all__ = ["Append", "Book", "now"]


class Append(Protocol):
    """Appends an entry within a transaction."""

    def __call__(self, kind: str, content: Mapping[str, Any]) -> None:
        """Appends; the time is added."""


class Book:
    """Reads and appends; every look sees all that any process has appended.

    Guarantee:
      `writing` shows the state in the same transaction in which it appends, so that a decision
      made on the state holds when its entry is written.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._state, self._lock = store, LedgerState(), threading.RLock()

    def __reduce__(self) -> tuple[type[Self], tuple[Store]]:
        # A copy, also one in another process, is of the same file and reads it anew.
        return type(self), (self._store,)

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._store.path

    def state(self) -> LedgerState:
        """What the file says now; to be read, not changed."""
        with self._lock, self._store.reading() as transaction:
            for entry in transaction.entries_after(self._state.head):
                self._state.read(entry, self.path)
            return self._state

    @contextlib.contextmanager
    def writing(self) -> Iterator[tuple[LedgerState, Append]]:
        """The state, and a way to append to it that nobody can come before."""
        with self._lock, self._store.writing() as transaction:
            for entry in transaction.entries_after(self._state.head):
                self._state.read(entry, self.path)
            head = self._state.head

            def append(kind: str, content: Mapping[str, Any]) -> None:
                nonlocal head
                head = transaction.append(head, kind, {**content, "time": now()})

            yield self._state, append

    def verify(self, known_head: str | None) -> LedgerState:
        """Reads all of the file anew and checks every seal."""
        self._store.check()
        with self._lock:
            self._state = LedgerState()
            with self._store.reading() as transaction:
                entries = transaction.entries_after(self._state.head)
            for entry in entries:
                self._state.read(entry, self.path)
            if known_head is not None and known_head not in {entry.digest for entry in entries}:
                raise LedgerDamagedError(
                    f"the ledger {self.path} does not hold the entry {known_head!r}: it was"
                    " rewritten, or is an older copy. Restore the newest copy."
                )
            return self._state


def now() -> str:
    """Coordinated universal time."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
