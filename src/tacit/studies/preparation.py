"""Preparing a fit: schema, recipe and budget become a model and a calibrated plan; no record."""

import functools
import math
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp

from tacit import _check
from tacit.data import Schema, Target
from tacit.data.made_up import made_up_features
from tacit.errors import BudgetExceededError, InvalidArgumentError
from tacit.inference import Plan, data_free_clip_norm, synthetic_records
from tacit.inference.method import TableSettings, table_method
from tacit.inference.plan import plan_for_table
from tacit.models import MLP, Bernoulli, Categorical, GaussianPrior, LearntGaussian, Model, bayesian
from tacit.models.base import Likelihood
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.calibration import noise_within, smallest_noise
from tacit.privacy.cost import Cost
from tacit.privacy.ledger import DataSetLedger
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.sampling import FullBatch, PoissonBatch, Sampling
from tacit.privacy.statement.construction import require_adjacency
from tacit.privacy.statement.fields import Tuning

__all__ = [
    "LARGEST",
    "TARGET_NOISE",
    "Prepared",
    "Recipe",
    "TableFacts",
    "budget_left",
    "clip_factor",
    "completed",
    "prepare",
    "with_noise",
]

TARGET_NOISE = 0.3
"""Standard deviation of a numeric target's noise before it is learnt; the range is two."""


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a table is fitted. None leaves a setting to `completed`.

    Args:
      method: the name of an inference method, from `tacit.inference.method.table_methods`.
      hidden: widths of the hidden layers; ``()`` is logistic or linear regression.
      num_steps: updates. The noise is calibrated so that all of them together spend the budget.
      batch_size: expected number of records in a step; at least all of them is every record.
      clip_norm: the largest gradient norm that one record contributes.
      learning_rate: on the gradient of the mean loss.
      prior_std: of every weight.

    Example:
      >>> Recipe(method="sgd", hidden=())
      Recipe(method='sgd', hidden=(), num_steps=None, batch_size=None, clip_norm=None, ...)
    """

    method: str = "sgld"
    hidden: tuple[int, ...] | None = None
    num_steps: int | None = None
    batch_size: int | None = None
    clip_norm: float | None = None
    learning_rate: float | None = None
    prior_std: float | None = None

    def __post_init__(self) -> None:
        table_method(self.method)
        if self.hidden is not None and not isinstance(self.hidden, tuple):
            raise InvalidArgumentError(
                f"hidden must be a tuple of widths such as (32,), or (); got {self.hidden!r}."
            )
        for i, width in enumerate(self.hidden or ()):
            _check.positive_integer(**{f"hidden[{i}]": width})
        for name in ("num_steps", "batch_size"):
            if getattr(self, name) is not None:
                _check.positive_integer(**{name: getattr(self, name)})
        for name in ("clip_norm", "learning_rate", "prior_std"):
            if getattr(self, name) is not None:
                _check.positive(**{name: getattr(self, name)})


@dataclass(frozen=True, kw_only=True)
class TableFacts:
    """What is public about a table and its budget, and all that defaults may depend on.

    Attributes:
      num_records: units of privacy.
      num_features: after encoding.
      num_classes: None where the target is a number.
      epsilon: of the budget; infinite without privacy.
    """

    num_records: int
    num_features: int
    num_classes: int | None
    epsilon: float


def completed(recipe: Recipe, facts: TableFacts) -> Recipe:
    """Returns the recipe with every setting but the clip norm, which needs the model.

    Guarantee:
      Depends on public facts only; two tables of one size get the same recipe.

    Example:
      >>> facts = TableFacts(num_records=500, num_features=20, num_classes=2, epsilon=1.0)
      >>> completed(Recipe(), facts).hidden
      ()
    """
    defaults = (_of_a_large_table if _is_large(facts) else _of_a_small_table)(facts)
    open_fields = {name: value for name, value in defaults.items() if getattr(recipe, name) is None}
    if "learning_rate" in open_fields:
        open_fields["learning_rate"] *= table_method(recipe.method).relative_rate
    done = replace(recipe, **open_fields)
    assert done.batch_size is not None
    return replace(done, batch_size=min(done.batch_size, facts.num_records))


def clip_factor(facts: TableFacts) -> float:
    """Returns the clip norm as a multiple of the median gradient norm of synthetic records.

    Clipping below the median halves the noise for a little bias, but distorts probabilities and
    the spread of numbers; where records abound, noise is not what limits a fit.
    """
    if _is_large(facts):
        return 2.25
    return 0.5 if facts.num_classes is not None else 1.5


def _is_large(facts: TableFacts) -> bool:
    return facts.num_records >= 10_000


def _of_a_large_table(facts: TableFacts) -> dict[str, Any]:
    return {
        "hidden": (32,),
        "num_steps": 400,
        "batch_size": 2048,
        "learning_rate": 3.0 if facts.num_classes is not None else 0.03,
        "prior_std": 0.3,
    }


def _of_a_small_table(facts: TableFacts) -> dict[str, Any]:
    # How far a run may go in all: noise grows with that as the signal does, but the signal ends.
    # Losses of numbers are steep once their noise is learnt to be small.
    longest, slope = (300.0, 2.0) if facts.num_classes is not None else (100.0, 0.05)
    length = min(max(facts.num_records * facts.epsilon / 16, 10.0), longest)
    num_steps = 100
    return {
        "hidden": (),
        "num_steps": num_steps,
        "batch_size": facts.num_records,
        "learning_rate": slope * length / num_steps,
        "prior_std": 3.0,
    }


LARGEST = 1e6
"""Of a clip norm, a learning rate, a prior or a weight."""

_WIDEST = 65_536
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
      noise_scale: how many times as much noise it has as the budget alone needs, for a ledger.
    """

    schema: Schema
    recipe: Recipe
    budget: Budget
    model: Model
    plan: Plan
    noise_scale: float = 1.0


def prepare(
    schema: Schema,
    recipe: Recipe | None = None,
    *,
    num_records: int,
    budget: Budget,
    ledger: Ledger | None = None,
    spent: Cost | None = None,
    noise_scale: float = 1.0,
    tuning: Tuning = "not counted",
) -> Prepared:
    """Returns a model and the plan that spends the budget on it.

    Guarantee:
      No record is touched: everything follows from the schema, the recipe, the number of units of
      privacy, the budget and what the ledger has left, all of them public.

    Args:
      schema: the public description of the table.
      recipe: settings; those left open are chosen from the public facts.
      num_records: units of privacy: rows, or people where ``groups`` are given.
      budget: what may be spent; `Budget.non_private()` gives the same plan without noise.
      ledger: what will be charged. Across runs it counts a little more than ``budget`` does, so
        the noise is made enough for both.
      spent: what else is released on these records for this fit, such as private bounds.
      noise_scale: instead of ``ledger``, the extra noise of an earlier run that is repeated.
      tuning: how the recipe was chosen, for the statement.

    Raises:
      BudgetExceededError: where the ledger has too little left.

    Example:
      >>> from tacit.data import ADULT_SCHEMA
      >>> prepared = prepare(
      ...     ADULT_SCHEMA, num_records=1000, budget=Budget(epsilon=1.0, delta=1e-5)
      ... )
      >>> prepared.plan.method.num_records
      1000
    """
    _check.positive_integer(num_records=num_records)
    _check.positive(noise_scale=noise_scale)
    target = schema.target
    facts = TableFacts(
        num_records=num_records,
        num_features=len(schema.feature_names),
        num_classes=len(target.classes) if isinstance(target, Target) else None,
        epsilon=budget.epsilon,
    )
    recipe = completed(recipe or Recipe(), facts)
    _require_sizes(recipe)
    assert recipe.hidden is not None
    assert recipe.prior_std is not None
    model = _model(
        num_features=facts.num_features,
        num_classes=facts.num_classes,
        hidden=recipe.hidden,
        prior_std=recipe.prior_std,
    )
    if recipe.clip_norm is None:
        inputs = jnp.asarray(made_up_features(schema, num_rows=_NUM_SYNTHETIC))
        norm = data_free_clip_norm(model, synthetic_records(model, inputs), quantile=0.5)
        recipe = replace(recipe, clip_norm=clip_factor(facts) * norm)
    is_private = math.isfinite(budget.epsilon)
    plan = _plan(recipe, num_records, is_private=is_private)
    require_adjacency(plan.method, budget)
    plan = replace(plan, spent=Cost.nothing() if spent is None else spent, tuning=tuning)
    if is_private:
        found = noise_within(lambda noise: with_noise(plan, noise).cost, budget, ledger)
        plan = with_noise(plan, found.noise * noise_scale)
        noise_scale *= found.extra
    return Prepared(
        schema=schema,
        recipe=recipe,
        budget=budget,
        model=model,
        plan=plan,
        noise_scale=noise_scale,
    )


def with_noise(plan: Plan, factor: float) -> Plan:
    """Returns a plan with so many times the noise."""
    return replace(plan, method=plan.method.scale_noise(factor))


def budget_left(
    schema: Schema,
    recipe: Recipe | None = None,
    *,
    num_records: int,
    ledger: DataSetLedger,
    delta: float | None = None,
) -> Budget:
    """Returns the budget of a run that would spend all that a ledger has left.

    It is more than the difference of what was granted and spent: costs of several runs together
    are less than their sum.

    Guarantee:
      No record is touched, and nothing is charged. Other runs may draw on the ledger meanwhile, so
      `prepare` asks it once more.

    Args:
      schema: the public description of the table.
      recipe: how to fit.
      num_records: units of privacy.
      ledger: what will be charged.
      delta: of the budget; that of the ledger by default.

    Raises:
      BudgetExceededError: where nothing is left.
    """
    delta = ledger.rule.delta if delta is None else delta
    rest = ledger.rule.epsilon - ledger.spent
    told = f"the ledger {ledger.book.path} of {ledger.name!r} has spent"
    if not rest > 0:
        raise BudgetExceededError(
            f"{told} its epsilon {ledger.rule.epsilon:g}. Nothing is left, and nothing was spent"
            " now."
        )
    budget = Budget(rest, delta)
    plan = prepare(schema, recipe, num_records=num_records, budget=budget).plan
    try:
        scale = smallest_noise(lambda scale: with_noise(plan, scale).cost, ledger.budget())
    except BudgetExceededError:
        raise BudgetExceededError(
            f"{told} epsilon {round_up(ledger.spent)} of {ledger.rule.epsilon:g}; no noise fits a"
            " run into what is left. Nothing was spent now."
        ) from None
    epsilon = budget.spent(with_noise(plan, scale).cost)
    # Rounded up to four digits, so that a study can be read.
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 3)
    return Budget(float(f"{math.ceil(epsilon / unit) * unit:.6g}"), delta)


def _require_sizes(recipe: Recipe) -> None:
    # Beyond, float32 or the memory would overflow once records were read and paid for.
    for name in ("clip_norm", "learning_rate", "prior_std"):
        value = getattr(recipe, name)
        if value is not None and value > LARGEST:
            raise InvalidArgumentError(f"{name} must be at most {LARGEST:g}; got {value:g}.")
    if max(recipe.hidden or (0,)) > _WIDEST:
        raise InvalidArgumentError(f"hidden must be widths of at most {_WIDEST}.")


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
