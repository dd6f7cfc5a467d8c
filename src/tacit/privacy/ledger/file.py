"""The ledger as a file: data sets, each with a budget that is set once and never refunded.

`LedgerFile` is the file, `DataSetLedger` one data set of it, which `tacit.fit` is given, and
`LedgerRun` a run that it has let begin. A salted fingerprint of the records only warns.
"""

import hashlib
import hmac
import os
import secrets
import unicodedata
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jax
import numpy as np
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError, LedgerError, PrivacyWarning
from tacit.privacy.budget import Budget, RunRequest
from tacit.privacy.cost import Cost, event_of, event_to_json
from tacit.privacy.filters import Filter, FilterAccountant, Spending
from tacit.privacy.ledger.state import Book, DataSetRecord, LedgerState, now
from tacit.privacy.ledger.store import Store
from tacit.tables import OnHost
from tacit.tables.distributed import Distributed
from tacit.tables.on_host import RowSource
from tacit.typing import Tree

__all__ = ["DataSetLedger", "LedgerFile", "LedgerRun", "fingerprint_of"]

_LARGEST_READ_WHOLE = 2**28
_NUM_ROWS_OF_LARGER = 4096
_LONGEST_NAME = 200


def fingerprint_of(records: Tree, *, salt: bytes) -> str | None:
    """Returns a salted hash of a table, or None where its values are not all here.

    Of a table on the host that is too large to be read for this, a few thousand rows are looked at,
    at places that its size alone decides. A smaller one has the fingerprint that it has in memory.

    Guarantee:
      None of privacy. Whoever has the salt can test a guess of the whole table against it, so
      it stays with the salt in the owner's ledger and is never published. It is used to warn and
      decides nothing.

    Example:
      >>> one, other = np.zeros(3), np.ones(3)
      >>> known = fingerprint_of(one, salt=b"s")
      >>> known == fingerprint_of(one, salt=b"s"), known == fingerprint_of(other, salt=b"s")
      (True, False)
    """
    digest = hmac.new(salt, digestmod=hashlib.sha256)
    if isinstance(records, OnHost):
        digest.update(_size_if_large(records.source))
        records = _rows_of(records.source)
    elif isinstance(records, Distributed):
        if not _is_all_here(records.rows):
            return None  # a slice of it would wait for the other processes, which do not take part
        records = jax.tree.map(lambda leaf: leaf[: records.num_records], records.rows)
    for path, leaf in jax.tree_util.tree_leaves_with_path(records):
        if not isinstance(leaf, jax.Array | np.ndarray) or isinstance(leaf, jax.core.Tracer):
            return None
        if not _is_all_here(leaf):
            return None
        values = np.asarray(leaf, order="C")
        digest.update(f"{jax.tree_util.keystr(path)} {values.dtype} {values.shape};".encode())
        digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _is_all_here(rows: Tree) -> bool:
    return all(getattr(leaf, "is_fully_addressable", True) for leaf in jax.tree.leaves(rows))


def _rows_of(source: RowSource) -> Tree:
    number = source.num_records
    if not _is_large(source):
        return source.read(np.arange(number))
    return source.read(np.linspace(0, number - 1, min(number, _NUM_ROWS_OF_LARGER)).astype(int))


def _size_if_large(source: RowSource) -> bytes:
    return f"some of {source.num_records};".encode() if _is_large(source) else b""


def _is_large(source: RowSource) -> bool:
    row = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(source.record))
    return bool(source.num_records * row > _LARGEST_READ_WHOLE)


@dataclass(frozen=True)
class LedgerRun:
    """A run that the ledger has let begin.

    Attributes:
      data_set: whose budget it draws on.
      run_id: its name.
      purpose: what for.
    """

    data_set: "DataSetLedger"
    run_id: str
    purpose: str

    def charge(self, cost: DpEvent, *, num_steps: int | None = None) -> None:
        """Pays for a piece, durably, or raises ``BudgetExceededError`` and pays nothing."""
        owner = self.data_set
        with owner.book.writing() as (state, append):
            # All runs of all processes are in this state, and none can be added now.
            owner.require(state, cost)
            append(
                "charge",
                {
                    "data_set": owner.name,
                    "run_id": self.run_id,
                    "purpose": self.purpose,
                    "num_steps": num_steps,
                    "cost": event_to_json(cost),
                },
            )


@dataclass(frozen=True)
class DataSetLedger:
    """One data set of a `LedgerFile`; ``fit(..., ledger=...)`` takes it.

    Guarantee:
      `begin` looks at the budget before it looks at a record, and reserves nothing: a run that was
      let begin can still be refused a piece if others were charged in between.

    Attributes:
      book: the file it is in.
      name: what its owner calls it.
    """

    book: Book
    name: str

    @property
    def rule(self) -> Filter:
        """The filter, which holds the budget."""
        return self._record().rule

    @property
    def spending(self) -> Spending:
        """What was paid so far."""
        return self._record().spending

    @property
    def spent(self) -> float:
        """The part of epsilon that is used up."""
        return self.spending.epsilon

    def budget(self) -> Budget:
        """What may still be spent, for `calibrate`: it counts what was spent before as spent.

        Use it to find the noise or the number of steps. The statement of a run is about that run,
        so give `fit` a budget of its own.
        """
        spending = self.spending
        rule = spending.rule
        return Budget(rule.epsilon, rule.delta, FilterAccountant(spending))

    def ask(self, cost: Cost | DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a cost could be paid now; records nothing."""
        self.require(self.book.state(), event_of(cost))

    def begin(self, request: RunRequest) -> LedgerRun:
        """Notes that a run begins, or raises ``BudgetExceededError`` if not all of it can be paid.

        Warns with `PrivacyWarning` when the records look unlike those of earlier runs, or like
        those of another data set, and when the checkpoint it goes on from was not paid for here.
        """
        state = self.book.state()
        request.require_adjacency(self.record_in(state).rule.adjacency)
        self.require(state, request.cost.event)
        own_print = (
            None if request.records is None else fingerprint_of(request.records, salt=state.salt)
        )
        run_id = secrets.token_hex(8)
        with self.book.writing() as (state, append):
            self.require(state, request.cost.event)
            doubts = _doubts(state, self.name, request, own_print)
            append(
                "run",
                {
                    "data_set": self.name,
                    "run_id": run_id,
                    "purpose": request.purpose,
                    "num_steps": request.num_steps,
                    "parent": request.parent,
                    "parent_step": request.parent_step,
                    "is_secure": request.cost.is_secure,
                    "fingerprint": own_print,
                },
            )
        for doubt in doubts:
            warnings.warn(doubt, PrivacyWarning, stacklevel=2)
        return LedgerRun(self, run_id, request.purpose)

    def charge(self, cost: Cost, *, purpose: str = "release") -> None:
        """Pays for something made outside `fit`, as a run of its own."""
        run = self.begin(RunRequest(cost=cost, purpose=purpose, adjacency=self.rule.adjacency))
        run.charge(cost.event)

    def require(self, state: LedgerState, cost: DpEvent) -> None:
        """Raises ``BudgetExceededError`` unless a state lets a cost pass."""
        self.record_in(state).spending.require(
            cost,
            where=f"the ledger {self.book.path} of {self.name!r}",
            remedy=(
                "Use more noise or fewer steps; calibrate(plan, ledger.budget()) finds what still"
                " fits."
            ),
        )

    def record_in(self, state: LedgerState) -> DataSetRecord:
        """What a state says of this data set."""
        return state.data_sets[self.name]

    def _record(self) -> DataSetRecord:
        return self.record_in(self.book.state())


def _doubts(state: LedgerState, name: str, request: RunRequest, own_print: str | None) -> list[str]:
    record, doubts = state.data_sets[name], []
    if request.parent is not None and request.parent not in record.runs:
        doubts.append(
            f"the checkpoint is of run {request.parent}, which the ledger does not know under"
            f" {name!r}: what led to it was not charged here. Charge it by"
            " ledger.charge(checkpoint.cost)."
        )
    if own_print is None:
        return doubts
    if record.fingerprints and own_print not in record.fingerprints:
        doubts.append(
            f"the records do not look like those of earlier runs on {name!r}. One name stands for"
            " one set of people: if these are others, register them under a name of their own; if"
            " they are the same in another form, go on."
        )
    twins = [
        other.name
        for other in state.data_sets.values()
        if other.name != name and own_print in other.fingerprints
    ]
    if twins:
        doubts.append(
            f"the records look the same as those of {', '.join(map(repr, twins))}. Budgets of two"
            " names on the same people add up; use one name."
        )
    return doubts


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
                f"the ledger {self.path} has no data set {name!r}; it has {names}. Register it"
                " by ledger.register(name, rule), or on the command line by `tacit ledger create"
                f" {self.path} --data-set NAME --epsilon E --delta D`."
            )
        return DataSetLedger(self._book, name)


def _store(path: str | os.PathLike[str], timeout: float) -> Store:
    # Absolute: a copy of a handle in another folder must not charge another file of that name.
    return Store(Path(path).absolute(), timeout)


def _bare(name: str) -> str:
    """What of a name people tell apart: without case, spaces at its ends and ways to encode it."""
    return " ".join(unicodedata.normalize("NFKC", name).casefold().split())
