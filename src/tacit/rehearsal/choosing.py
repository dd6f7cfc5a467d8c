"""Choosing between candidates by rehearsal, at no privacy cost: no private record is involved."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tacit.data import Schema
from tacit.errors import InvalidArgumentError
from tacit.inference import Plan
from tacit.models import Model
from tacit.privacy.budget import Budget
from tacit.rehearsal.rehearsing import OnRepeat, Rehearsal, rehearse
from tacit.rehearsal.scoring import MEASURES
from tacit.typing import Input, Key, Params

__all__ = ["Choice", "choose"]

_HIGHER_IS_BETTER = ("accuracy",)
_CRITERIA = ("nll", "accuracy", "rmse", "ece")


class Choice(NamedTuple):
    """What was chosen.

    Attributes:
      name: of the best candidate.
      plan: its plan, whose statement will say that it was tuned on simulated records.
      rehearsals: of all candidates, by name.
    """

    name: str
    plan: Plan
    rehearsals: Mapping[str, Rehearsal]


def choose(
    candidates: Mapping[str, Plan],
    model: Model,
    inputs: Input | Schema,
    *,
    budget: Budget,
    criterion: str = "nll",
    num_repeats: int = 20,
    truths: Callable[[Key], Params] | None = None,
    seed: int = 0,
    progress: OnRepeat | None = None,
) -> Choice:
    """Rehearses every candidate on the same data sets, and returns the best.

    Guarantee:
      No private record is involved, so the choice has no privacy cost.

    Args:
      candidates: calibrated plans, by name: method, clip norm, rate, batch and steps may differ.
      model: of all of them, which draws the data sets.
      inputs: as in `rehearse`.
      budget: what may be spent on the real run.
      criterion: the measure that decides: nll, accuracy, rmse or ece.
      num_repeats: how many data sets; all candidates see the same.
      truths: as in `rehearse`.
      seed: likewise.
      progress: is told how many repeats of all candidates are done.
    """
    if criterion not in _CRITERIA:
        raise InvalidArgumentError(
            f"criterion must be one of {', '.join(_CRITERIA)}; got {criterion!r}."
        )
    if not candidates:
        raise InvalidArgumentError("candidates must have at least one plan; got none.")
    found: dict[str, Rehearsal] = {}
    for name, plan in candidates.items():
        done = len(found) * num_repeats

        def moved(repeat: int, of: int, done: int = done) -> None:
            if progress is not None:
                progress(done + repeat, len(candidates) * of)

        found[name] = rehearse(
            plan,
            model,
            inputs,
            budget=budget,
            num_repeats=num_repeats,
            truths=truths,
            seed=seed,
            progress=moved,
        )
    values = np.array([found[name].mean(criterion) for name in found])
    if np.all(np.isnan(values)):
        raise InvalidArgumentError(
            f"criterion must apply to the model; {MEASURES[criterion]!r} does not. Use nll."
        )
    sign = -1 if criterion in _HIGHER_IS_BETTER else 1
    best = list(found)[int(np.nanargmin(sign * values))]
    return Choice(best, replace(candidates[best], tuning="simulated"), found)
