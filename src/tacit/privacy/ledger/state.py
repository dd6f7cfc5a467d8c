"""The state: what a ledger's entries say, added up, and the book that reads and appends them."""

import contextlib
import datetime
import functools
import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from tacit.errors import LedgerDamagedError, LedgerError, TacitError
from tacit.privacy.cost import event_from_json
from tacit.privacy.filters import Filter, Spending, filter_from_json
from tacit.privacy.ledger.store import NO_ENTRIES, Entry, Head, Store

__all__ = [
    "Book",
    "ChargeRecord",
    "DataSetRecord",
    "Fork",
    "LedgerState",
    "RunRecord",
    "now",
]


class ChargeRecord(NamedTuple):
    """One charge: paid for, whether or not its release was made.

    Attributes:
      number: of its entry.
      time: when, in coordinated universal time.
      run_id: for which run.
      purpose: what for.
      num_steps: how many steps, if it was for steps.
      cost: what, as JSON (`tacit.privacy.cost.event_from_json`).
      digest: the seal of its entry.
    """

    number: int
    time: str
    run_id: str
    purpose: str
    num_steps: int | None
    cost: dict[str, Any]
    digest: str


@dataclass
class RunRecord:
    """One run.

    Attributes:
      run_id: its name.
      purpose: what for.
      time: when it began.
      num_steps: how many steps it asked for, if it makes steps.
      parent: the run from whose checkpoint it went on.
      parent_step: after how many steps.
      is_secure: whether its noise came from a secret key.
      fingerprint: of its records, salted; not to be published.
      charges: what it paid.
    """

    run_id: str
    purpose: str
    time: str
    num_steps: int | None
    parent: str | None
    parent_step: int | None
    is_secure: bool
    fingerprint: str | None
    charges: list[ChargeRecord] = field(default_factory=list)

    @property
    def steps_charged(self) -> int:
        """How many steps it paid for."""
        return sum(charge.num_steps or 0 for charge in self.charges)

    @property
    def is_complete(self) -> bool:
        """Whether it paid for all that it asked for."""
        return self.num_steps is not None and self.steps_charged >= self.num_steps


class Fork(NamedTuple):
    """A checkpoint from which several runs went on; each is charged.

    Attributes:
      run_id: the run that made the checkpoint.
      step: after how many steps.
      run_ids: those that went on from there; the run itself is one if it came to its end.
    """

    run_id: str
    step: int
    run_ids: tuple[str, ...]


@dataclass
class DataSetRecord:
    """One data set: a name, a promise and what was paid.

    Attributes:
      name: as its owner calls it.
      rule: the filter, which holds the budget.
      time: when it was registered.
      spending: what was paid.
      runs: by their names, oldest first.
    """

    name: str
    rule: Filter
    time: str
    spending: Spending
    runs: dict[str, RunRecord] = field(default_factory=dict)

    @property
    def forks(self) -> list[Fork]:
        """Checkpoints from which several runs went on."""
        resumed = Counter(
            (run.parent, run.parent_step) for run in self.runs.values() if run.parent is not None
        )
        found = []
        for parent, step in resumed:
            if parent is None or step is None:
                continue
            children = [
                run.run_id
                for run in self.runs.values()
                if (run.parent, run.parent_step) == (parent, step)
            ]
            origin = self.runs.get(parent)
            if origin is not None and origin.is_complete and step < self._last_step(origin):
                children.insert(0, parent)
            if len(children) > 1:
                found.append(Fork(parent, step, tuple(children)))
        return found

    @property
    def fingerprints(self) -> set[str]:
        """Those of all runs that had one."""
        return {run.fingerprint for run in self.runs.values() if run.fingerprint is not None}

    def _last_step(self, run: RunRecord) -> int:
        return (run.parent_step or 0) + run.steps_charged


@dataclass
class LedgerState:
    """All that a ledger says, up to ``head``.

    Attributes:
      head: how many entries were read, and the digest of the last.
      salt: of the fingerprints.
      time: when the ledger was made.
      data_sets: by their names, oldest first.
    """

    head: Head = NO_ENTRIES
    salt: bytes = b""
    time: str = ""
    data_sets: dict[str, DataSetRecord] = field(default_factory=dict)

    def read(self, entry: Entry, path: object) -> None:
        """Adds one entry, whose seal was checked."""
        try:
            self._add(entry, json.loads(entry.body))
        except LedgerError:
            raise
        except (KeyError, TypeError, ValueError, TacitError) as error:
            raise LedgerDamagedError(
                f"entry {entry.number} of the ledger {path} cannot be understood ({error!r}). Use"
                " the version of tacit that wrote it, or restore a copy."
            ) from None
        self.head = Head(entry.number, entry.digest)

    def _add(self, entry: Entry, body: dict[str, Any]) -> None:
        match entry.kind:
            case "ledger":
                self.salt, self.time = bytes.fromhex(body["salt"]), body["time"]
            case "data set":
                name, rule = body["name"], filter_from_json(body["rule"])
                self.data_sets[name] = DataSetRecord(name, rule, body["time"], Spending.none(rule))
            case "run":
                runs = self.data_sets[body.pop("data_set")].runs
                runs[body["run_id"]] = RunRecord(**body)
            case "charge":
                data_set = self.data_sets[body.pop("data_set")]
                cost = json.dumps(body["cost"], sort_keys=True)
                data_set.spending = data_set.spending.plus_weight(_weight(data_set.rule, cost))
                data_set.runs[body["run_id"]].charges.append(
                    ChargeRecord(number=entry.number, digest=entry.digest, **body)
                )
            case kind:
                raise ValueError(f"unknown kind {kind!r}")


@functools.lru_cache(maxsize=1024)
def _weight(rule: Filter, cost: str) -> Any:
    """Chunks of one run cost the same, and accounting is slower than hashing."""
    weight = rule.weigh(event_from_json(json.loads(cost)))
    weight.setflags(write=False)
    return weight


class _Append(Protocol):
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
    def writing(self) -> Iterator[tuple[LedgerState, _Append]]:
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
