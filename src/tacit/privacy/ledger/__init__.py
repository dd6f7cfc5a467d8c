"""The durable ledger: one SQLite file, kept by the owner of the data, that counts every release."""

from tacit.privacy.ledger.file import DataSetLedger, LedgerFile
from tacit.privacy.ledger.state import ChargeRecord, DataSetRecord, Fork, LedgerState, RunRecord

__all__ = [
    "ChargeRecord",
    "DataSetLedger",
    "DataSetRecord",
    "Fork",
    "LedgerFile",
    "LedgerState",
    "RunRecord",
]
