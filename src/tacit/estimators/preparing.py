"""Preparing a fit: schema, recipe and budget become a model and a calibrated plan; no record."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
from numpy.typing import NDArray

from tacit import _check
from tacit.data import Categorical as CategoricalColumn
from tacit.data import Column, Scale, Schema, Target
from tacit.errors import InvalidArgumentError
from tacit.estimators.recipe import TARGET_NOISE, Facts, Recipe, clip_factor, completed
from tacit.inference import (
    IVON,
    SGD,
    SGHMC,
    SGLD,
    SWAG,
    VI,
    MeanField,
    Method,
    Plan,
    calibrate,
    data_free_clip_norm,
    synthetic_records,
)
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
from tacit.privacy.budget import Budget
from tacit.privacy.calibrate import extra_noise
from tacit.privacy.cost import Cost
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch, Sampling
from tacit.privacy.statement import require_adjacency

__all__ = ["Prepared", "prepare"]

_CHUNK = 256
_NUM_SYNTHETIC = 256
_NUM_KEPT = 20


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
    facts = Facts(
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
    assert recipe.num_steps is not None
    num_steps = recipe.num_steps
    method = _method(recipe, _release(recipe, num_records, is_private=is_private))
    if recipe.method not in ("sgld", "sghmc"):
        return Plan(method=method, num_steps=num_steps)
    burn_in = num_steps // 2
    thinning = max(1, (num_steps - burn_in) // _NUM_KEPT)
    return Plan(method=method, num_steps=num_steps, burn_in=burn_in, thinning=thinning)


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


def _method(recipe: Recipe, release: GaussianSum) -> Method:
    assert recipe.learning_rate is not None
    assert recipe.num_steps is not None
    rate, num_records = recipe.learning_rate, release.sampling.num_records
    descent = SGD(release=release, optimizer=optax.sgd(rate, momentum=0.9))
    # Without privacy there is no noise that could serve as Langevin noise.
    temperature = 0.0 if release.is_private else 1.0
    step_size = 2 * rate / num_records
    match recipe.method:
        case "sgld":
            return SGLD(release=release, step_size=step_size, langevin_temperature=temperature)
        case "sghmc":
            return SGHMC(
                release=release,
                step_size=step_size,
                friction=0.1,
                langevin_temperature=temperature,
            )
        case "sgd":
            return descent
        case "swag":
            start = recipe.num_steps // 2
            return SWAG(base=descent, start=start, rank=min(10, recipe.num_steps - start))
        case "vi":
            return VI(release=release, optimizer=descent.optimizer, guide=MeanField(init_std=0.03))
        case "ivon":
            return IVON(release=release, learning_rate=rate)
    raise InvalidArgumentError(f"method must be known; got {recipe.method!r}.")


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
