"""Runs in phases: each on its own form of the model, from where the last one ended; all count."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
from dp_accounting import DpEvent

from tacit import _check
from tacit.errors import InvalidArgumentError
from tacit.inference.chains import Checkpoint, OnProgress
from tacit.inference.fit import Fit, fit
from tacit.inference.plan import Plan, calibrate
from tacit.models import Model
from tacit.privacy.budget import Budget, Ledger
from tacit.privacy.cost import Cost, composed
from tacit.rng import seeded_key
from tacit.tables.base import Table
from tacit.typing import Key, Params, Record, Scalar, Tree

__all__ = ["Phase", "calibrate_phases", "fit_phases", "seed_of_phase", "tempered"]


def tempered(model: Model, temperature: float) -> Model:
    """Returns the model whose log likelihood is divided by a temperature.

    Below one, records count more and a chain goes downhill in spite of noise; above one it
    wanders. It is part of the model, so it changes no cost: a record's loss is clipped after it.

    Args:
      model: what will be fitted in the end.
      temperature: positive; one is the model itself.
    """
    _check.positive(temperature=temperature)

    def log_likelihood(params: Params, record: Record, key: Key) -> Scalar:
        return model.log_likelihood(params, record, key) / temperature

    return model._replace(log_likelihood=log_likelihood)


def _as_it_is(model: Model) -> Model:
    """Returns the model."""
    return model


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a run.

    Attributes:
      plan: what is run. The states it retains are parameters, as those of chains and of SGD are.
      transform: what it sees of the model: a tempered or a robust form with the same parameters.
    """

    plan: Plan
    transform: Callable[[Model], Model] = _as_it_is


def calibrate_phases(phases: Sequence[Phase], budgets: Sequence[Budget]) -> tuple[Phase, ...]:
    """Returns the phases with the smallest noise that the budgets allow.

    Guarantee:
      What a phase and all before it cost together is within the budget of that phase.

    Args:
      phases: in order.
      budgets: one for each phase, for all until its end; they grow.
    """
    if len(phases) != len(budgets):
        raise InvalidArgumentError(
            f"budgets must have one for each of {len(phases)} phases; got {len(budgets)}."
        )
    found: list[Phase] = []
    for phase, budget in zip(phases, budgets, strict=True):
        spent = Cost(_cost_of(found), is_secure=True)
        plan = replace(phase.plan, spent=spent + phase.plan.spent)
        calibrated = calibrate(plan, budget)
        found.append(replace(phase, plan=replace(calibrated, spent=phase.plan.spent)))
    return tuple(found)


def fit_phases(
    phases: Sequence[Phase],
    model: Model,
    records: Record | Table,
    *,
    budget: Budget,
    seed: int | None = None,
    ledger: Ledger | None = None,
    progress: OnProgress | None = None,
) -> tuple[Fit, ...]:
    """Runs phases one after the other, each chain from where it ended in the phase before.

    Guarantee:
      The results depend on the records only through releases; the last statement counts those of
      all phases. Whether all of them are within the budget, and within what the ledger has left, is
      found out before a record is read.

    Args:
      phases: what to run; all have as many chains.
      model: what to infer.
      records: the table, as `tacit.fit` takes it.
      budget: for all phases together.
      seed: for tests and examples only; marks the statements INSECURE.
      ledger: is asked for all phases first, and charged as they are made.
      progress: is told steps and epsilon, of one phase after the other.

    Returns:
      The fit of each phase. A run is not resumed in the middle: the states of the last
      finished phase are in its posterior, and what was released stays paid for.
    """
    chains = {phase.plan.num_chains for phase in phases}
    if len(chains) != 1:
        raise InvalidArgumentError(
            "phases must be at least one, all with the same num_chains; got"
            f" {sorted(chains)}. Each chain goes on from where it ended."
        )
    cost = _cost_of(phases)
    budget.require(cost)
    if ledger is not None:
        ledger.ask(Cost(cost, is_secure=seed is None))
    fits: list[Fit] = []
    for number, phase in enumerate(phases):
        seen, plan, begin = phase.transform(model), phase.plan, None
        if fits:
            plan = replace(plan, spent=fits[-1].checkpoint.cost + plan.spent)
            begin = _beginning(plan, seen, fits[-1])
        fits.append(
            fit(
                plan,
                seen,
                records,
                budget=budget,
                seed=seed_of_phase(seed, number),
                ledger=ledger,
                progress=progress,
                resume=begin,
            )
        )
    return tuple(fits)


def seed_of_phase(seed: int | None, number: int) -> int | None:
    """Returns the seed of a phase: each has noise of its own."""
    return None if seed is None else 1000 * number + seed


def _cost_of(phases: Sequence[Phase]) -> DpEvent:
    return composed(*(phase.plan.cost for phase in phases))


def _beginning(plan: Plan, model: Model, before: Fit) -> Checkpoint:
    """Returns the first states of a phase; they lie at the last ones of the phase before."""
    last = jax.tree.map(lambda leaf: leaf[:, -1], before.posterior.chains)

    def begin(key: Key, params: Params) -> Tree:
        return plan.method.build(model._replace(init=lambda key: params)).init(key)

    # Of these keys come what a state holds beside parameters: masks, never noise or batches.
    keys = jax.random.split(seeded_key(0), plan.num_chains)
    return Checkpoint(0, jax.vmap(begin)(keys, last), None, None, plan.spent)
