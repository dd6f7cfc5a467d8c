"""Private tuning: several recipes, one budget, and a choice that is paid for."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import DpEvent
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone

from tacit.errors import InvalidArgumentError
from tacit.estimators.inputs import BOUNDS_SHARE
from tacit.estimators.table_estimator import TableEstimator
from tacit.inference import Plan
from tacit.metrics.uncertainty import RegressionUncertainty
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.calibration import noise_within
from tacit.privacy.charging import charged_key
from tacit.privacy.cost import Cost, composed
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.private_bounds import bounds_noise
from tacit.privacy.sampling import FullBatch
from tacit.studies.preparation import Prepared, prepare, with_noise
from tacit.studies.table_fit import FittedTable, TableFit, fit_table
from tacit.typing import Record

__all__ = ["Tuned", "tune"]

_Floats = NDArray[np.float64]

_TUNABLE = ("method", "hidden", "num_steps", "batch_size", "clip_norm", "learning_rate")


class Tuned(NamedTuple):
    """What a private choice found.

    Attributes:
      estimator: fitted with the best candidate; its ``privacy_`` counts all candidates.
      best: the number of that candidate.
      scores: the noisy mean score of each: one minus half the Brier score for classes; for
        numbers one minus the squared error in half ranges, at least zero.
      noise_std: the standard deviation of the noise on each score; closer ones are not told apart.
    """

    estimator: Any
    best: int
    scores: _Floats
    noise_std: float


def tune(
    estimator: TableEstimator,
    candidates: Sequence[Mapping[str, Any]],
    X: Any,
    y: Any,
    *,
    sample_weight: ArrayLike | None = None,
    groups: ArrayLike | None = None,
) -> Tuned:
    """Fits every candidate with a part of the budget, and keeps the one with the best noisy score.

    Beside a search, which fits each candidate with the whole budget and pays for all of them, this
    stays within one. With k candidates each fit has about the square root of k times the noise; so
    give few that differ much. Nothing is fitted again: the best one is what was scored.

    Guarantee:
      All fits, the private bounds if needed, and one full-batch release of all scores together are
      within the estimator's budget. Their costs are fixed beforehand, so they compose like the
      steps of a single plan. ``privacy_`` of the result counts all of them.

    Args:
      estimator: gives the budget and all parameters that candidates do not change; not fitted.
      candidates: parameters to try: ``method``, ``hidden``, ``num_steps``, ``batch_size``,
        ``clip_norm``, ``learning_rate``.
      X: as in ``fit``.
      y: the same.
      sample_weight: the same.
      groups: the same.

    Example:
      >>> from tacit.estimators import PrivateBayesClassifier
      >>> rng = np.random.default_rng(0)
      >>> X = rng.uniform(-1, 1, size=(500, 3))
      >>> model = PrivateBayesClassifier(
      ...     epsilon=4.0, bounds=(-1, 1), classes=(0, 1), num_steps=20, random_state=0
      ... )
      >>> found = tune(
      ...     model, [{"learning_rate": 1e-6}, {"learning_rate": 1.0}], X, (X[:, 0] > 0).astype(int)
      ... )
      >>> found.best
      1
      >>> found.estimator.privacy_.releases  # two fits, and the scores
      41
    """
    _require_candidates(candidates)
    chosen: Any = clone(estimator)
    recipes = [clone(estimator).set_params(**candidate)._recipe() for candidate in candidates]
    budget = chosen._budget()
    *seeds, bounds_seed, score_seed = chosen._seeds(len(candidates) + 2)
    rows = chosen._read(X, y, sample_weight, groups)
    encoded, unknown = chosen._encode(rows, None), chosen._unknown(rows, budget)
    num_records = len(encoded.records.weight)
    scoring = _scoring(len(candidates), num_records, budget)
    before = scoring.cost if unknown is None else composed(unknown.search.cost, scoring.cost)
    alone = [
        prepare(encoded.schema, recipe, num_records=num_records, budget=budget)
        for recipe in recipes
    ]
    plans = _within_one_budget(alone, budget, before, chosen.ledger)
    total = composed(before, *(plan.cost for plan in plans))
    if chosen.ledger is not None:
        # For all of it, before the first part is paid.
        chosen.ledger.ask(total)
    chosen._warn_of_refits(X, y, total, budget)
    if unknown is not None:
        found, _ = unknown.find(budget=budget, seed=bounds_seed, ledger=chosen.ledger)
        encoded = chosen._encode(rows, found)
    records = encoded.records
    tables = []
    for prepared, plan, seed in zip(alone, plans, seeds, strict=True):
        others = [other.cost for other in plans if other is not plan]
        spent = Cost(composed(before, *others), is_secure=seed is None)
        own = replace(prepared, schema=encoded.schema, plan=replace(plan, spent=spent))
        tables.append(fit_table(records, own, seed=seed, ledger=chosen.ledger))
    key, _ = charged_key(
        scoring.cost,
        budget=budget,
        ledger=chosen.ledger,
        seed=score_seed,
        purpose="tuning",
    )
    scores = jnp.asarray(np.stack([_scores(table, records) for table in tables], axis=1))
    sums = jax.jit(lambda key, data: scoring(key, lambda own, _: own, data))(key, scores)
    mean = np.asarray(sums, np.float64) / len(records.weight)
    best = int(np.argmax(mean))
    chosen.set_params(**candidates[best])._keep(_counted(tables[best]))
    return Tuned(chosen, best, mean, scoring.noise_std / len(records.weight))


def _require_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    if len(candidates) < 2:
        raise InvalidArgumentError(
            f"candidates must be at least two; got {len(candidates)}. For one, call fit."
        )
    for candidate in candidates:
        unknown = sorted(set(candidate) - set(_TUNABLE))
        if unknown:
            raise InvalidArgumentError(
                f"candidates may change {', '.join(_TUNABLE)}; got {', '.join(unknown)}."
            )


def _scoring(num_candidates: int, num_records: int, budget: Budget) -> GaussianSum:
    """Returns the release of all scores, each between 0 and 1, at a tenth of the budget."""
    return GaussianSum(
        sampling=FullBatch(num_records=num_records),
        clip_norm=math.sqrt(num_candidates),
        noise_multiplier=bounds_noise(budget, share=BOUNDS_SHARE),
    )


def _within_one_budget(
    alone: list[Prepared], budget: Budget, before: DpEvent, ledger: Ledger | None
) -> list[Plan]:
    """Returns plans that are together within the budget, each with the same share of it."""
    plans = [own.plan for own in alone]
    if math.isinf(budget.epsilon):
        return plans

    def scaled(factor: float) -> list[Plan]:
        return [with_noise(plan, factor) for plan in plans]

    def cost_of(factor: float) -> DpEvent:
        return composed(before, *(plan.cost for plan in scaled(factor)))

    return scaled(noise_within(cost_of, budget, ledger).noise)


def _scores(table: FittedTable, records: Record) -> NDArray[np.float32]:
    """Returns a score between 0 and 1 for each unit, from that unit and released values alone."""
    rows = np.asarray(records.x).reshape(-1, np.shape(records.x)[-1])
    targets = np.asarray(records.y).reshape(-1)
    found = table.predict_features(rows)
    if isinstance(found, RegressionUncertainty):
        target: Any = table.schema.target
        errors = (found.mean - target.decode(targets)) / target.half_range
        scores = np.maximum(1 - errors**2, 0.0)
    else:
        truth = np.eye(found.probabilities.shape[1])[targets]
        scores = 1 - np.sum((found.probabilities - truth) ** 2, axis=1) / 2
    if records.mask is not None:
        mask = np.asarray(records.mask)
        scores = np.sum(scores.reshape(mask.shape) * mask, axis=1) / mask.sum(axis=1)
    return np.asarray(scores, np.float32)


def _counted(table: TableFit) -> TableFit:
    """Returns the table with a statement that says that the choice of settings was paid for."""
    statement = replace(table.fit.statement, tuning="counted")
    posterior = replace(table.posterior, statement=statement.to_json())
    return replace(
        table,
        posterior=posterior,
        statement_text=str(statement),
        fit=replace(table.fit, posterior=posterior, statement=statement),
    )
