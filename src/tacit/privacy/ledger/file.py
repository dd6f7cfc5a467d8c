"""The ledger as a file: data sets, each with a budget that is set once and never refunded."""

import os
import secrets
import unicodedata
from pathlib import Path
from typing import Self

from tacit import _check
from tacit.errors import InvalidArgumentError, LedgerError
from tacit.privacy.filters import Filter
from tacit.privacy.ledger.book import Book, now
from tacit.privacy.ledger.handle import DataSetLedger
from tacit.privacy.ledger.state import LedgerState
from tacit.privacy.ledger.store import Store

__all__ = ["LedgerFile"]

_LONGEST_NAME = 200


class LedgerFile:
    """A durable ledger of everything that was released about some data sets.

    Guarantee:
      Per data set, all charges together keep the promise of its filter, for runs chosen in any
      way and made by any number of processes at once: a charge looks at what was paid, decides and
      is written in one transaction, and is on the disk before the work it pays for begins.
      Nothing is ever refunded, and a run that died stays charged. The file is sealed by a chain of
      hashes: what was altered, removed or cut off is found when it is opened. That guards
      against accidents and against edits by hand, not against somebody who rewrites the whole file
      or puts an old copy in its place; for that, keep `head` elsewhere (`verify`).

      It counts what it is told. It knows a data set by the name that its owner gives it.

    The file holds salted fingerprints of the records and their salt. It is the owner's and is not
    to be published.

    Example:
      >>> import tempfile
      >>> from tacit.privacy.filters import RDPFilter
      >>> folder = tempfile.mkdtemp()
      >>> ledger = LedgerFile.create(f"{folder}/people.ledger")
      >>> census = ledger.register("census", RDPFilter.of_budget(epsilon=1.0, delta=1e-6))
      >>> LedgerFile.open(f"{folder}/people.ledger").data_set("census").spent
      0.0
    """

    def __init__(self, book: Book) -> None:
        """Use `create` or `open`."""
        self._book = book

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, timeout: float = 30.0) -> Self:
        """Makes a new file, readable by its owner only; raises `LedgerError` if there is one."""
        _check.positive(timeout=timeout)
        _store(path, timeout).create("ledger", {"salt": secrets.token_hex(32), "time": now()})
        return cls.open(path, timeout=timeout)

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, timeout: float = 30.0) -> Self:
        """Opens a file and verifies all of it; raises `LedgerError` where it cannot be used.

        Args:
          path: the file.
          timeout: for how many seconds to wait for other processes that hold it.
        """
        _check.positive(timeout=timeout)
        ledger = cls(Book(_store(path, timeout)))
        ledger.verify()
        return ledger

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._book.path

    @property
    def state(self) -> LedgerState:
        """What the file says now; to be read, not changed."""
        return self._book.state()

    @property
    def head(self) -> str:
        """The digest that seals all entries so far."""
        return self.state.head.digest

    def verify(self, *, known_head: str | None = None) -> LedgerState:
        """Checks the whole file from its first entry; raises `LedgerDamagedError` on damage.

        Args:
          known_head: a `head` that was noted down earlier and must be part of the file. This
            finds also a file that was rewritten, or replaced by an old copy.
        """
        return self._book.verify(known_head)

    def register(self, name: str, rule: Filter) -> DataSetLedger:
        """Sets the budget of a data set, once and for all.

        Args:
          name: what its owner calls it; one name for one set of people.
          rule: `RDPFilter.of_budget(...)`, or `GDPFilter(...)` where all will be full batches.
        """
        _check.readable_text(name=name)
        if len(name) > _LONGEST_NAME:
            raise InvalidArgumentError(
                f"name must have at most {_LONGEST_NAME} characters; got {len(name)}."
            )
        with self._book.writing() as (state, append):
            if name in state.data_sets:
                known = state.data_sets[name].rule
                raise LedgerError(
                    f"the ledger {self.path} has a data set {name!r} already, with epsilon"
                    f" {known.epsilon:g} and delta {known.delta:g}; a budget is set once."
                )
            twins = [known for known in state.data_sets if _bare(known) == _bare(name)]
            if twins:
                raise LedgerError(
                    f"the name {name!r} looks like that of a data set in the ledger {self.path},"
                    f" {twins[0]!r}. Two names are two budgets: use that one, or one that nobody"
                    " takes for it."
                )
            append("data set", {"name": name, "rule": rule.to_json()})
        return DataSetLedger(self._book, name)

    def data_set(self, name: str) -> DataSetLedger:
        """What ``tacit.fit(..., ledger=...)`` is given."""
        known = self.state.data_sets
        if name not in known:
            names = ", ".join(map(repr, known)) or "none"
            raise LedgerError(
                f"the ledger {self.path} has no data set {name!r}; it has {names}. Register it:"
                f" tacit ledger create {self.path} --data-set NAME --epsilon E --delta D."
            )
        return DataSetLedger(self._book, name)


def _store(path: str | os.PathLike[str], timeout: float) -> Store:
    # Absolute: a copy of a handle in another folder must not charge another file of that name.
    return Store(Path(path).absolute(), timeout)


def _bare(name: str) -> str:
    """What of a name people tell apart: without case, spaces at its ends and ways to encode it."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
