"""The durable ledger: one SQLite file, kept by the owner of the data, that counts every release.

It is written to by hand, in one table of entries chained by hashes (`store`), and what they add up
to is kept in memory (`state`). A charge must be decided and written in one transaction, be on the
disk before the work that it pays for, and survive other processes and crashes. SQLite alone gives
that; a database layer above it would add a dependency to the one file that everything rests on, and
is worth it only once a ledger is shared by several machines.
"""

from tacit.privacy.ledger.file import DataSetLedger, LedgerFile

__all__ = ["DataSetLedger", "LedgerFile"]
