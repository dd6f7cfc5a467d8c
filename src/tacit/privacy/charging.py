"""The gate for releases beside a fit: none can be made before it is within budget and paid for."""

from dp_accounting import DpEvent

from tacit.privacy.budget import Budget, Ledger, RunRequest
from tacit.privacy.cost import Cost
from tacit.privacy.sampling import FullBatch
from tacit.privacy.statement.construction import require_adjacency
from tacit.rng import fresh_key, seeded_key
from tacit.typing import Key, Tree

__all__ = ["charged_key"]


def charged_key(
    event: DpEvent,
    *,
    budget: Budget,
    ledger: Ledger | None,
    seed: int | None,
    purpose: str = "release",
    records: Tree = None,
) -> tuple[Key, Cost]:
    """Returns the key of releases that are within the budget and charged, and what they cost.

    Guarantee:
      Raises `BudgetExceededError` where the budget or the ledger does not allow the cost; without
      this key nothing can be released. Such releases look at every record, so a budget under
      add-remove adjacency, where their number is private, is refused.

    Args:
      event: all releases that will be made with the key.
      budget: what may be spent.
      ledger: is charged, if there is one.
      seed: for tests only; replaces the fresh key, INSECURE.
      purpose: what the ledger calls it; public.
      records: the table, where it is the one that the ledger knows by its fingerprint.
    """
    require_adjacency(FullBatch(num_records=1), budget)
    cost = Cost(event, is_secure=seed is None)
    budget.require(cost)
    if ledger is not None:
        request = RunRequest(
            cost=cost, purpose=purpose, records=records, adjacency=budget.accountant.adjacency
        )
        ledger.begin(request).charge(event)
    return (fresh_key() if seed is None else seeded_key(seed)), cost
