"""Preparing a fit within a budget of its own and within what a ledger has left."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from dp_accounting import DpEvent

from tacit.data import Schema
from tacit.errors import BudgetExceededError, TacitError
from tacit.estimators import Prepared, Recipe, prepare
from tacit.privacy.accounting import round_up
from tacit.privacy.budget import Budget
from tacit.privacy.calibrate import extra_noise, smallest_noise
from tacit.privacy.ledger import DataSetLedger, LedgerFile

__all__ = ["open_data_set", "prepare_within", "require_units", "with_noise_scale"]


def open_data_set(ledger: Path | None, data_set: str | None) -> DataSetLedger | None:
    """Returns what is charged, if anything is."""
    if ledger is None or data_set is None:
        return None
    return LedgerFile.open(ledger).data_set(data_set)


def prepare_within(
    schema: Schema,
    recipe: Recipe,
    *,
    num_records: int,
    epsilon: float | None,
    delta: float,
    ledger: DataSetLedger | None,
) -> tuple[Prepared, float]:
    """Returns a plan within both, and by how much its noise exceeds that of the budget alone.

    Guarantee:
      No record is touched. When this returns, the ledger would let the whole plan begin.

    Args:
      schema: the public description of the table.
      recipe: how to fit.
      num_records: units of privacy.
      epsilon: the budget; None spends what the ledger has left.
      delta: the same.
      ledger: what is charged.
    """
    if epsilon is None:
        assert ledger is not None
        epsilon, recipe = _what_is_left(schema, recipe, num_records, delta, ledger)
    budget = Budget(epsilon, delta) if math.isfinite(epsilon) else Budget.non_private()
    prepared = prepare(schema, recipe, num_records=num_records, budget=budget)
    if ledger is None:
        return prepared, 1.0
    scale = extra_noise(_cost_at(prepared), ledger.budget())
    if math.isinf(scale):
        raise BudgetExceededError(
            f"the ledger {ledger.book.path} of {ledger.name!r} has spent epsilon"
            f" {round_up(ledger.spent)} of {ledger.rule.epsilon:g}, which leaves too little for a"
            f" run of epsilon {epsilon:g}. Nothing was spent. Give a smaller --epsilon, or none:"
            " then the run spends what is left."
        )
    return with_noise_scale(prepared, scale), scale


def with_noise_scale(prepared: Prepared, scale: float) -> Prepared:
    """Returns the same with so much more noise."""
    if scale == 1:
        return prepared
    plan = prepared.plan
    return replace(prepared, plan=replace(plan, method=plan.method.scale_noise(scale)))


def _what_is_left(
    schema: Schema, recipe: Recipe, num_records: int, delta: float, ledger: DataSetLedger
) -> tuple[float, Recipe]:
    """Returns the epsilon that a run may cost by itself, and the recipe of such a run."""
    rest = ledger.rule.epsilon - ledger.spent
    if not rest > 0:
        raise BudgetExceededError(
            f"the ledger {ledger.book.path} of {ledger.name!r} has spent its epsilon"
            f" {ledger.rule.epsilon:g}. Nothing is left, and nothing was spent now."
        )
    # What is spent counts less beside more of it, so that more is left than the difference.
    guess = prepare(schema, recipe, num_records=num_records, budget=Budget(rest, delta))
    chosen = with_noise_scale(guess, _scale_within(guess, ledger))
    epsilon = Budget(rest, delta).spent(chosen.plan.cost)
    return _four_digits_up(epsilon), guess.recipe


def _four_digits_up(value: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 3)
    return float(f"{math.ceil(value / unit) * unit:.6g}")


def _scale_within(prepared: Prepared, ledger: DataSetLedger) -> float:
    """Returns the noise, in units of the plan's own, with which the ledger has nothing left."""
    try:
        return smallest_noise(_cost_at(prepared), ledger.budget())
    except BudgetExceededError:
        raise BudgetExceededError(
            f"the ledger {ledger.book.path} of {ledger.name!r} has spent epsilon"
            f" {round_up(ledger.spent)} of {ledger.rule.epsilon:g}; no noise fits a run into what"
            " is left. Nothing was spent now."
        ) from None


def _cost_at(prepared: Prepared) -> Callable[[float], DpEvent]:
    return lambda scale: with_noise_scale(prepared, scale).plan.cost


def require_units(found: int, wanted: int | None) -> None:
    """Raises where a study that was executed is repeated on another number of records."""
    if wanted is not None and found != wanted:
        raise TacitError(
            f"the study was executed on {wanted} records, and the table has {found}. Is it the same"
            " table? If so, take num_records out of the study."
        )
