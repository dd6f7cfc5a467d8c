"""Preparing a fit: schema, recipe and budget become a model and a calibrated plan; no record."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd
from dp_accounting import DpEvent
from numpy.typing import NDArray

from tacit import _check
from tacit.data import CategoricalColumn, Column, Scale, Schema, Target
from tacit.errors import BudgetExceededError, TacitError
from tacit.inference import Plan, calibrate, data_free_clip_norm, synthetic_records
from tacit.inference.method import TableSettings, table_method
from tacit.inference.plan import plan_for_table
from tacit.models import (
    MLP,
    Bernoulli,
    Categorical,
    GaussianPrior,
    LearntGaussian,
    Likelihood,
    Model,
    bayesian,
)
from tacit.privacy.accounting import round_up
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import extra_noise, smallest_noise
from tacit.privacy.cost import Cost
from tacit.privacy.ledger import DataSetLedger, LedgerFile
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch, Sampling
from tacit.privacy.statement import require_adjacency
from tacit.studies.recipe import TARGET_NOISE, Recipe, TableFacts, clip_factor, completed

__all__ = [
    "Prepared",
    "open_data_set",
    "prepare",
    "prepare_within",
    "require_units",
    "with_noise_scale",
]

_CHUNK = 256
_NUM_SYNTHETIC = 256


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that a fit needs besides records; public, and printed by ``tacit plan``.

    To run a method or model that no recipe names, make one of these by hand.

    Attributes:
      schema: the public description of the table.
      recipe: with every setting filled in.
      budget: what may be spent.
      model: what is inferred.
      plan: calibrated to the budget.
    """

    schema: Schema
    recipe: Recipe
    budget: Budget
    model: Model
    plan: Plan


def prepare(
    schema: Schema,
    recipe: Recipe | None = None,
    *,
    num_records: int,
    budget: Budget,
    left: Budget | None = None,
    spent: Cost | None = None,
) -> Prepared:
    """Returns a model and the plan that spends the budget on it.

    Guarantee:
      No record is touched: everything follows from the schema, the recipe, the number of units of
      privacy and the budget, all of them public.

    Args:
      schema: the public description of the table.
      recipe: settings; those left open are chosen from the public facts.
      num_records: units of privacy: rows, or people where ``groups`` are given.
      budget: what may be spent; `Budget.non_private()` gives the same plan without noise.
      left: what a ledger has left before any of it, from ``DataSetLedger.budget()``. Across runs
        it counts a little more than ``budget`` does, so noise is made enough for both; but not for
        much less than ``budget``: then the ledger will refuse the fit.
      spent: what else is released on these records for this fit, such as private bounds.

    Example:
      >>> from tacit.data import ADULT_SCHEMA
      >>> prepared = prepare(
      ...     ADULT_SCHEMA, num_records=1000, budget=Budget(epsilon=1.0, delta=1e-5)
      ... )
      >>> prepared.plan.method.num_records
      1000
    """
    _check.positive_integer(num_records=num_records)
    target = schema.target
    facts = TableFacts(
        num_records=num_records,
        num_features=len(schema.feature_names),
        num_classes=len(target.classes) if isinstance(target, Target) else None,
        epsilon=budget.epsilon,
    )
    recipe = completed(recipe or Recipe(), facts)
    assert recipe.hidden is not None
    assert recipe.prior_std is not None
    model = _model(
        num_features=facts.num_features,
        num_classes=facts.num_classes,
        hidden=recipe.hidden,
        prior_std=recipe.prior_std,
    )
    if recipe.clip_norm is None:
        inputs = jnp.asarray(_synthetic_features(schema, num_rows=_NUM_SYNTHETIC))
        norm = data_free_clip_norm(model, synthetic_records(model, inputs))
        recipe = replace(recipe, clip_norm=clip_factor(facts) * norm)
    is_private = math.isfinite(budget.epsilon)
    plan = _plan(recipe, num_records, is_private=is_private)
    require_adjacency(plan.method, budget)
    plan = replace(plan, spent=Cost.nothing() if spent is None else spent)
    return Prepared(
        schema=schema,
        recipe=recipe,
        budget=budget,
        model=model,
        plan=_calibrated(plan, budget, left) if is_private else plan,
    )


def _calibrated(plan: Plan, budget: Budget, left: Budget | None) -> Plan:
    own = calibrate(plan, budget)

    def scaled(factor: float) -> Plan:
        return replace(own, method=own.method.scale_noise(factor))

    factor = extra_noise(lambda factor: scaled(factor).cost, left)
    # Where that is too much the ledger refuses, and says why.
    return scaled(factor) if 1 < factor < math.inf else own


# The same model for the same facts, so that what is compiled for one fit serves the next.
@functools.lru_cache(maxsize=64)
def _model(
    *, num_features: int, num_classes: int | None, hidden: tuple[int, ...], prior_std: float
) -> Model:
    likelihood: Likelihood
    match num_classes:
        case None:
            likelihood = LearntGaussian(initial_std=TARGET_NOISE)
        case 2:
            likelihood = Bernoulli()
        case _:
            likelihood = Categorical(num_classes=num_classes)
    network = MLP(num_inputs=num_features, hidden=hidden, num_outputs=likelihood.num_outputs)
    return bayesian(network, prior=GaussianPrior(std=prior_std), likelihood=likelihood)


def _plan(recipe: Recipe, num_records: int, *, is_private: bool) -> Plan:
    assert recipe.learning_rate is not None
    assert recipe.num_steps is not None
    settings = TableSettings(
        release=_release(recipe, num_records, is_private=is_private),
        learning_rate=recipe.learning_rate,
        num_steps=recipe.num_steps,
    )
    return plan_for_table(table_method(recipe.method), settings)


def _release(recipe: Recipe, num_records: int, *, is_private: bool) -> GaussianSum:
    assert recipe.batch_size is not None
    assert recipe.clip_norm is not None
    sampling: Sampling
    if recipe.batch_size >= num_records:
        sampling = FullBatch(num_records=num_records)
    else:
        sampling = PoissonBatch(num_records=num_records, batch_size=recipe.batch_size)
    return GaussianSum(
        sampling=sampling,
        clip_norm=recipe.clip_norm,
        noise_multiplier=1.0 if is_private else 0.0,
        chunk_size=_CHUNK,
    )


def _synthetic_features(schema: Schema, *, num_rows: int) -> NDArray[np.float32]:
    """Returns rows drawn evenly from the schema, from a fixed seed."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {column.name: _synthetic_values(rng, column, num_rows) for column in schema.columns}
    )
    return schema.encode(frame)


def _synthetic_values(rng: np.random.Generator, column: Column, num_rows: int) -> "pd.Series[Any]":
    if isinstance(column, CategoricalColumn):
        positions = rng.integers(len(column.categories), size=num_rows)
        return pd.Series([column.categories[at] for at in positions])
    if column.scale is Scale.LOG1P:
        return pd.Series(
            np.expm1(rng.uniform(np.log1p(column.low), np.log1p(column.high), num_rows))
        )
    return pd.Series(rng.uniform(column.low, column.high, num_rows))


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
