"""Rehearsing one plan: the same fit, many times, on simulated records."""

import math
import os
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tacit import _artefact, _check, _display
from tacit.data import Schema
from tacit.errors import IntervalWarning, PrivacyWarning, UtilityWarning
from tacit.inference import Plan, WarmHMC, calibrate_steps, fit_hmc
from tacit.inference.fit import LEAST_ACCEPTANCE, CompiledFit, Fit, fit
from tacit.models import Model
from tacit.privacy.budget import Budget
from tacit.privacy.statement.construction import method_name
from tacit.rehearsal.scoring import MEASURES, Scorer
from tacit.rehearsal.simulated import Nature
from tacit.typing import Input, Key, Params, Record

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["OnRepeat", "Rehearsal", "rehearse"]

OnRepeat = Callable[[int, int], None]
"""Is told how many repeats are done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """What a plan is worth on simulated records; nothing in it comes from private ones.

    Attributes:
      plan: what was rehearsed.
      budget: within which.
      level: of the intervals.
      measures: by name, a number for each repeat; names are those of `shown`.
    """

    plan: Plan
    budget: Budget
    level: float
    measures: Mapping[str, NDArray[np.float64]]

    @property
    def num_repeats(self) -> int:
        """How often the plan was run."""
        return len(self.measures["seconds"])

    def mean(self, name: str) -> float:
        """Returns the mean of a measure over repeats; NaN where it does not apply."""
        return float(np.mean(self.measures[name]))

    def error(self, name: str) -> float:
        """Returns the standard error of that mean; NaN where there is one repeat only."""
        values = self.measures[name]
        return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan

    @property
    def shown(self) -> tuple[str, ...]:
        """The names of the measures that apply."""
        return tuple(name for name in MEASURES if not math.isnan(self.mean(name)))

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        rows = [
            ("plan", f"{method_name(self.plan.method)}, {self.plan.num_steps:,} steps"),
            ("budget", f"epsilon {self.budget.epsilon:g}, delta {self.budget.delta:g}"),
            ("records", f"{self.plan.method.public_records:,}, simulated"),
            ("repeats", f"{self.num_repeats:,}"),
        ]
        lines = [
            (self._title(name), f"{self.mean(name):.3g}", f"± {self.error(name):.2g}")
            for name in self.shown
        ]
        return _display.Sheet(
            title="Rehearsal", rows=rows, table=[("on average", "", "error"), *lines]
        )

    def _title(self, name: str) -> str:
        return f"{self.level:.0%} {MEASURES[name]}" if name == "coverage" else MEASURES[name]

    def to_json(self) -> dict[str, Any]:
        """Returns settings, means and standard errors as JSON-able data."""
        return {
            "method": method_name(self.plan.method),
            "num_steps": self.plan.num_steps,
            "num_records": self.plan.method.public_records,
            "epsilon": self.budget.epsilon if math.isfinite(self.budget.epsilon) else "infinity",
            "delta": self.budget.delta,
            "level": self.level,
            "num_repeats": self.num_repeats,
            "measures": {
                name: {"mean": self.mean(name), "error": _or_none(self.error(name))}
                for name in self.shown
            },
        }

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_json` to a file."""
        _artefact.write_json(Path(path), self.to_json())


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def rehearse(
    plan: Plan | WarmHMC,
    model: Model,
    inputs: Input | Schema,
    *,
    budget: Budget,
    num_repeats: int = 20,
    level: float = 0.9,
    truths: Callable[[Key], Params] | None = None,
    seed: int = 0,
    progress: OnRepeat | None = None,
) -> Rehearsal:
    """Runs a plan many times on simulated records, and scores it by the true parameters.

    Each repeat draws a truth from the model's prior and records from the model, and is a
    `tacit.fit` like the one that would be paid for: the same method, number of records, noise and
    budget. What it finds holds where prior, model and inputs are right. Real inputs often agree
    more than made-up ones, so that real records can be easier than simulated ones.

    Guarantee:
      No private record is involved, so this has no privacy cost, however often it is done.

    Args:
      plan: calibrated to the budget; or the settings of `tacit.inference.fit_hmc`, which
        calibrates by itself.
      model: what will be fitted; it must say how to draw (`Model.simulator`).
      inputs: public or made-up inputs, one row for each, never private ones; or a schema, over
        which inputs are then spread evenly.
      budget: what may be spent on the real run.
      num_repeats: how many data sets. Twenty tell what is hopeless; intervals want a hundred.
      level: of the intervals whose coverage is measured.
      truths: draws parameters in place of the prior: what you think that the truth may be.
      seed: of data sets, noise and all.
      progress: is told how many repeats are done.

    Example:
      >>> import tacit
      >>> from tacit.models import MLP, Bernoulli, GaussianPrior
      >>> model = tacit.bayesian(
      ...     MLP(num_inputs=2, num_outputs=1),
      ...     prior=GaussianPrior(std=1.0), likelihood=Bernoulli())
      >>> release = tacit.GaussianSum(
      ...     sampling=tacit.FullBatch(num_records=1000), clip_norm=2.0, noise_multiplier=1.0)
      >>> budget = tacit.Budget(epsilon=1.0, delta=1e-5)
      >>> plan = tacit.calibrate(
      ...     tacit.Plan(method=tacit.Laplace(release=release), num_steps=10), budget)
      >>> inputs = np.random.default_rng(0).uniform(-1, 1, (500, 2)).astype(np.float32)
      >>> found = rehearse(plan, model, inputs, budget=budget, num_repeats=4)
      >>> found.mean("accuracy") > 0.5
      True
    """
    _check.positive_integer(num_repeats=num_repeats)
    _check.fraction(one=False, level=level)
    _check.non_negative_integer(seed=seed)
    num_records = plan.num_records if isinstance(plan, WarmHMC) else plan.method.num_records
    nature = Nature(model, inputs, num_records=num_records, truths=truths)
    run, plan = _runner(plan, model, nature.inputs, budget)
    scorer = Scorer(plan.method, model, level=level)

    def repeat(number: int) -> dict[str, float]:
        own = seed * 1_000_003 + number
        data = nature.data_set(own)
        start = time.perf_counter()
        found = run(data.records, own)
        return scorer.measures(found, data, seconds=time.perf_counter() - start)

    rows = []
    with warnings.catch_warnings():
        # Its noise is seeded, and whether intervals hold is what is measured.
        warnings.simplefilter("ignore", PrivacyWarning)
        warnings.simplefilter("ignore", IntervalWarning)
        # Told once, at the end.
        warnings.simplefilter("ignore", UtilityWarning)
        # One after the other: two programs that ran side by side in one process have been seen to
        # wait for each other for ever, and NumPyro's handlers are global.
        for number in range(num_repeats):
            rows.append(repeat(number))
            if progress is not None:
                progress(len(rows), num_repeats)
    # The first run's time has the compiler's in it.
    rows[0]["seconds"] = rows[-1]["seconds"]
    found = Rehearsal(
        plan=plan,
        budget=budget,
        level=level,
        measures={name: np.array([row[name] for row in rows]) for name in MEASURES},
    )
    if found.mean("acceptance") < LEAST_ACCEPTANCE:
        warnings.warn(
            f"chains accepted {found.mean('acceptance'):.1%} of their proposals on simulated"
            " records: this run would spend its budget without moving. Start nearer, take shorter"
            " steps or fewer parameters, or use Laplace.",
            UtilityWarning,
            stacklevel=2,
        )
    return found


def _runner(
    plan: Plan | WarmHMC, model: Model, inputs: Input, budget: Budget
) -> tuple[Callable[[Record, int], Fit], Plan]:
    """Returns what fits records under a seed, and the plan of it, or of its chains."""
    if isinstance(plan, WarmHMC):
        settings = plan

        def warm(records: Record, seed: int) -> Fit:
            return fit_hmc(settings, model, records, inputs=inputs, budget=budget, seed=seed)

        return warm, settings.plans(model, inputs, budget)[1]
    whole = calibrate_steps(plan, budget) if plan.num_steps is None else plan
    compiled = CompiledFit(whole.method, model)

    def run(records: Record, seed: int) -> Fit:
        return fit(whole, model, records, budget=budget, seed=seed, compiled=compiled)

    return run, whole
