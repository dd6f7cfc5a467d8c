"""The store: a SQLite file to which sealed entries are appended, durably and one at a time.

A connection lasts for one transaction. So a ledger can be used from threads and after a fork, and a
process that dies holds no lock. The journal is SQLite's rollback journal with
``synchronous=EXTRA``: when an append returns, it is on the disk, and the directory knows that its
journal is gone, so not even a power failure takes it back.
"""

import contextlib
import hashlib
import json
import os
import sqlite3
import tempfile
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tacit.errors import LedgerDamagedError, LedgerError

__all__ = ["NO_ENTRIES", "Entry", "Head", "Store", "Transaction"]

_GENESIS = "0" * 64
"""What the first entry follows."""

_APPLICATION_ID = 0x7AC17  # tells our files from other programs' databases
_SCHEMA_VERSION = 1

_SCHEMA = f"""
CREATE TABLE entries (
  number INTEGER PRIMARY KEY,
  kind TEXT NOT NULL,
  body TEXT NOT NULL,
  digest TEXT NOT NULL
) STRICT;
CREATE TABLE head (
  only INTEGER PRIMARY KEY CHECK (only = 1),
  count INTEGER NOT NULL,
  digest TEXT NOT NULL
) STRICT;
CREATE TRIGGER entries_are_never_changed BEFORE UPDATE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never changed'); END;
CREATE TRIGGER entries_are_never_deleted BEFORE DELETE ON entries
  BEGIN SELECT RAISE(ABORT, 'entries of a ledger are never deleted'); END;
INSERT INTO head VALUES (1, 0, '{_GENESIS}');
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {_SCHEMA_VERSION};
"""

_RESTORE = "Restore a copy; nothing was charged, and no ledger is ever begun anew in its place"


class Entry(NamedTuple):
    """One line of a ledger.

    Attributes:
      number: 1 for the first.
      kind: what it records: the ledger itself, a data set, a run or a charge.
      body: what, as JSON.
      digest: the seal of this entry and all before it.
    """

    number: int
    kind: str
    body: str
    digest: str


def _seal_of(previous: str, number: int, kind: str, body: str) -> str:
    """The digest of an entry that follows the one with digest ``previous``.

    The parts are put into a JSON list, so that no two different lists give the same bytes.
    """
    text = json.dumps([previous, number, kind, body])
    return hashlib.sha256(text.encode()).hexdigest()


def _next_entry(previous: str, number: int, kind: str, content: Mapping[str, Any]) -> Entry:
    """The sealed entry after the one with digest ``previous``.

    Example:
      >>> first = _next_entry(_GENESIS, 1, "ledger", {"salt": "00"})
      >>> first.digest == _seal_of(_GENESIS, 1, first.kind, first.body)
      True
    """
    body = json.dumps(content, sort_keys=True, allow_nan=False)
    return Entry(number, kind, body, _seal_of(previous, number, kind, body))


class Head(NamedTuple):
    """The last entry: how many there are, and the digest that seals them."""

    number: int
    digest: str


NO_ENTRIES = Head(0, _GENESIS)


class Transaction:
    """What one may do while the file is locked."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection, self._path = connection, path

    def entries_after(self, known: Head) -> list[Entry]:
        """Returns what was appended since ``known``; raises where the chain does not hold."""
        found = self._connection.execute("SELECT count, digest FROM head").fetchone()
        if found is None:
            raise self._damaged("it has no head")
        head = Head(*found)
        rows = self._connection.execute(
            "SELECT number, kind, body, digest FROM entries WHERE number >= ? ORDER BY number",
            (known.number,),
        )
        entries = [Entry(*row) for row in rows]
        if known.number and (not entries or entries.pop(0).digest != known.digest):
            raise self._damaged(f"entry {known.number} is not the one that was there before")
        number, digest = known
        for entry in entries:
            number += 1
            sealed = _seal_of(digest, number, entry.kind, entry.body)
            if entry.number != number or entry.digest != sealed:
                raise self._damaged(f"entry {number} was altered, or one is missing")
            digest = entry.digest
        if (number, digest) != head:
            raise self._damaged(f"it should end with entry {head.number}, and ends with {number}")
        return entries

    def append(self, after: Head, kind: str, content: Mapping[str, Any]) -> Head:
        """Appends an entry; it counts when the transaction ends without an error."""
        entry = _next_entry(after.digest, after.number + 1, kind, content)
        self._connection.execute("INSERT INTO entries VALUES (?, ?, ?, ?)", entry)
        head = Head(entry.number, entry.digest)
        self._connection.execute("UPDATE head SET count = ?, digest = ?", head)
        return head

    def _damaged(self, what: str) -> LedgerDamagedError:
        return LedgerDamagedError(f"the ledger {self._path} is damaged: {what}. {_RESTORE}.")


@dataclass(frozen=True)
class Store:
    """One file.

    Attributes:
      path: where it is.
      timeout: for how many seconds to wait for other processes.
    """

    path: Path
    timeout: float

    def create(self, kind: str, content: Mapping[str, Any]) -> None:
        """Makes the file with a first entry, whole or not at all; raises if there is one."""
        # It is finished under another name, so that nobody ever sees half a ledger.
        temporary = None
        try:
            handle, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=".ledger-")
            os.close(handle)
            with contextlib.closing(sqlite3.connect(temporary, isolation_level=None)) as connection:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.executescript(f"BEGIN; {_SCHEMA} COMMIT;")
                connection.execute("BEGIN IMMEDIATE")
                Transaction(connection, self.path).append(NO_ENTRIES, kind, content)
                connection.execute("COMMIT")
            self._put_in_place(temporary)
        except FileExistsError:
            raise LedgerError(
                f"{self.path} exists already. Open it, or choose another name."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be made ({error.strerror}). Choose a folder that"
                " exists, can be written and has space left."
            ) from None
        except sqlite3.Error as error:
            raise self._explained(error) from None
        finally:
            if temporary is not None:
                with contextlib.suppress(OSError):
                    Path(temporary).unlink()

    def _put_in_place(self, temporary: str) -> None:
        """Gives a finished file its name, unless something has that name."""
        try:
            os.link(temporary, self.path)
        except FileExistsError:
            raise
        except OSError:
            # Some file systems have no links. Then the name is taken first, by an empty file.
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            Path(temporary).replace(self.path)
        if os.name == "posix":
            _sync_directory(self.path.parent)

    @contextlib.contextmanager
    def reading(self) -> Iterator[Transaction]:
        """A look at the file as it is at one moment."""
        with self._connected() as connection:
            connection.execute("BEGIN")
            yield Transaction(connection, self.path)

    @contextlib.contextmanager
    def writing(self) -> Iterator[Transaction]:
        """A look and a change that nobody else can come between.

        Guarantee:
          What was appended is on the disk when this ends without an error, all of it, and none of
          it otherwise. (If the very last step reports an error, it may be there: counted, and not
          used.)
        """
        with self._connected() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Transaction(connection, self.path)
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")

    def check(self) -> None:
        """Raises where SQLite itself finds the file inconsistent."""
        with self._connected() as connection:
            found = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
            if found != "ok":
                first = str(found).splitlines()[-1]
                raise LedgerDamagedError(
                    f"the ledger {self.path} is damaged ({first}). {_RESTORE}."
                )

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        self._require_file()
        name = urllib.parse.quote(str(self.path.absolute()))
        try:
            # Mode rw never makes a file.
            connection = sqlite3.connect(
                f"file:{name}?mode=rw", uri=True, timeout=self.timeout, isolation_level=None
            )
        except sqlite3.Error as error:
            raise self._explained(error) from None
        with contextlib.closing(connection):
            try:
                connection.execute("PRAGMA synchronous = EXTRA")
                connection.execute("PRAGMA trusted_schema = OFF")
                self._require_ours(connection)
                yield connection
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise self._explained(error) from None

    def _require_file(self) -> None:
        try:
            size = self.path.stat().st_size
        except FileNotFoundError:
            raise LedgerError(
                f"there is no ledger {self.path}. Give the right path, or make one: tacit ledger"
                f" create {self.path} --data-set NAME --epsilon E --delta D."
            ) from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.path} cannot be opened ({error.strerror})."
            ) from None
        if not self.path.is_file():
            raise LedgerError(f"{self.path} is not a file. Give the path of a ledger.")
        # SQLite would take an empty file for a new database.
        if size == 0:
            raise LedgerDamagedError(f"the ledger {self.path} is damaged: it is empty. {_RESTORE}.")

    def _require_ours(self, connection: sqlite3.Connection) -> None:
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if application != _APPLICATION_ID:
            raise LedgerDamagedError(
                f"{self.path} is a database, but not a ledger, or its first page is damaged. Give"
                " the path of a ledger, or restore a copy."
            )
        if version != _SCHEMA_VERSION:
            raise LedgerError(
                f"the ledger {self.path} has format {version}; this version of tacit reads format"
                f" {_SCHEMA_VERSION}. Use the version that made it, or restore a copy."
            )

    def _explained(self, error: Exception) -> LedgerError:
        # Of extended codes only the lowest byte says what kind of error it is.
        code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
        remedy = _REMEDIES.get(code)
        if remedy is not None:
            return LedgerError(f"the ledger {self.path} {remedy} Nothing was charged.")
        return LedgerDamagedError(f"the ledger {self.path} is damaged ({error}). {_RESTORE}.")


_REMEDIES = {
    sqlite3.SQLITE_BUSY: "is locked by another process. Wait for it to end, then try again.",
    sqlite3.SQLITE_LOCKED: "is locked by another process. Wait for it to end, then try again.",
    sqlite3.SQLITE_FULL: "cannot grow: the disk is full. Make room, then try again.",
    sqlite3.SQLITE_READONLY: "cannot be written. Change its permissions, or those of its folder.",
    sqlite3.SQLITE_PERM: "cannot be opened. Change its permissions, or those of its folder.",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened. Change its permissions, or those of its folder.",
    sqlite3.SQLITE_IOERR: "cannot be read or written: the disk reports an error, or is full.",
}


def _sync_directory(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
