"""The ledger in a report: what all runs together spent on the same records."""

import os
from collections.abc import Iterator

from tacit.errors import LedgerError
from tacit.privacy.accounting import round_up
from tacit.privacy.ledger import DataSetRecord, LedgerFile, RunRecord
from tacit.report.panels import LedgerPanel

__all__ = ["ledger_panel"]


def ledger_panel(path: str | os.PathLike[str], *, data_set: str | None = None) -> LedgerPanel:
    """Returns what a ledger says of one data set; fingerprints stay in the ledger.

    Args:
      path: the ledger's file.
      data_set: as its owner calls it; may be left out where there is only one.
    """
    ledger = LedgerFile.open(path)
    known = ledger.state.data_sets
    if data_set is None:
        if len(known) != 1:
            raise LedgerError(
                f"the ledger {path} has {len(known)} data sets; name one as data_set."
            )
        data_set = next(iter(known))
    record = ledger.data_set(data_set).record_in(ledger.state)
    spent, budget = record.spending.epsilon, record.rule.epsilon
    return LedgerPanel(
        words=(
            f"Of the budget that the owner of {data_set!r} set once, epsilon {budget:g} at delta"
            f" {record.rule.delta:g}, all {len(record.runs)} runs together have spent"
            f" {round_up(spent)}."
        ),
        share=min(1.0, spent / budget),
        rows=list(_rows(record)),
    )


def _rows(record: DataSetRecord) -> Iterator[tuple[str, str, str, str]]:
    for run in record.runs.values():
        yield run.time, run.purpose, _steps(run), "secret" if run.is_secure else "INSECURE"


def _steps(run: RunRecord) -> str:
    if run.num_steps is None:
        return "–"
    return f"{run.steps_charged:,} of {run.num_steps:,}"
