"""A plan: a method and how long to run it; everything public, fixed before any record is read."""

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

from dp_accounting import DpEvent

from tacit import _check, _display
from tacit.errors import InvalidArgumentError
from tacit.inference.method import Declaration, Method, TableSettings
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import largest_batch, most_steps, smallest_noise
from tacit.privacy.cost import Cost, composed, repeated
from tacit.privacy.sampling import FixedBatch, PoissonBatch
from tacit.privacy.statement.construction import engines_in, method_name, releases_made
from tacit.privacy.statement.fields import Tuning
from tacit.privacy.statement.text import describe_engine, describe_release

if TYPE_CHECKING:
    from rich.panel import Panel

__all__ = ["Plan", "calibrate", "calibrate_batch_size", "calibrate_steps", "plan_for_table"]

_NUM_KEPT = 20
"""How many states of a chain a recipe retains: more hardly change a prediction."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What will be run.

    Args:
      method: how to infer.
      num_steps: updates of each chain; None runs until the budget is spent.
      num_chains: independent chains, each from its own data-independent start; each is paid for.
      burn_in: steps whose states are not retained; they are released and cost all the same.
      thinning: every how many steps a state is retained, counted back from the last step, which
        always is. None retains only the last.
      spent: what was already released on these records for this plan, such as a private choice
        of the clip norm; counted in its cost.
      tuning: how its settings were chosen, for the statement.
    """

    method: Method
    num_steps: int | None
    num_chains: int = 1
    burn_in: int = 0
    thinning: int | None = None
    spent: Cost = field(default_factory=Cost.nothing)
    tuning: Tuning = "not counted"

    def __post_init__(self) -> None:
        if not isinstance(self.spent, Cost):
            raise InvalidArgumentError(
                f"spent must be a tacit.Cost; got {self.spent!r}. Functions that release something"
                " return one, and fit.checkpoint.cost is that of a fit."
            )
        _check.positive_integer(num_chains=self.num_chains)
        _check.non_negative_integer(burn_in=self.burn_in)
        if self.thinning is not None:
            _check.positive_integer(thinning=self.thinning)
        if self.num_steps is not None:
            _check.positive_integer(num_steps=self.num_steps)
            if self.burn_in >= self.num_steps:
                raise InvalidArgumentError(
                    f"burn_in must be below num_steps={self.num_steps}; got {self.burn_in}."
                    " Otherwise no state is retained."
                )

    def __rich__(self) -> "Panel":
        return _display.panel(self._sheet())

    def _repr_html_(self) -> str:
        return _display.html(self._sheet())

    def _sheet(self) -> _display.Sheet:
        steps = "until the budget is spent" if self.num_steps is None else f"{self.num_steps:,}"
        rows = [
            ("method", method_name(self.method)),
            ("records", f"{self.method.public_records:,}"),
            ("steps", steps if self.num_chains == 1 else f"{steps}, in {self.num_chains} chains"),
        ]
        for engine in engines_in(self.method):
            rows.append((engine["name"], describe_engine(engine)))
        if self.num_steps is not None:
            rows.append(("kept states", f"{len(self.kept_steps):,} of each chain"))
            rows += [("releases", describe_release(row)) for row in releases_made(self.cost)]
        return _display.Sheet(title="Plan", rows=rows)

    @property
    def cost(self) -> DpEvent:
        """The cost of the whole plan; equals what a run of it releases."""
        return self.cost_until(self._steps)

    def cost_until(self, step: int) -> DpEvent:
        """The cost of a run that made the first ``step`` steps of every chain."""
        return composed(self.spent.event, self.cost_between(0, step))

    def cost_between(self, start: int, stop: int) -> DpEvent:
        """The cost of steps ``start`` to ``stop`` of every chain."""
        return repeated(self.method.cost(stop - start, start=start), self.num_chains)

    @property
    def kept_steps(self) -> tuple[int, ...]:
        """After how many steps a state is retained."""
        last = self._steps
        every = self.thinning or last
        return tuple(step for step in range(last, self.burn_in, -every))[::-1]

    def with_steps(self, num_steps: int) -> Self:
        """Returns the plan with another length."""
        return replace(self, num_steps=num_steps)

    @property
    def _steps(self) -> int:
        if self.num_steps is None:
            raise InvalidArgumentError(
                "num_steps must be known here; got None. Use calibrate_steps(plan, budget)."
            )
        return self.num_steps


def plan_for_table(declaration: Declaration, settings: TableSettings) -> Plan:
    """Returns the plan by which a recipe runs a method; its noise is not yet calibrated.

    Of a chain, which begins somewhere else, the first half is not retained.
    """
    method, num_steps = declaration.for_table(settings), settings.num_steps
    if not declaration.is_chain:
        return Plan(method=method, num_steps=num_steps)
    burn_in = num_steps // 2
    thinning = max(1, (num_steps - burn_in) // _NUM_KEPT)
    return Plan(method=method, num_steps=num_steps, burn_in=burn_in, thinning=thinning)


def calibrate(plan: Plan, budget: Budget) -> Plan:
    """Returns the plan with the smallest noise that the budget allows.

    Guarantee:
      The budget's accountant finds the cost of the result within the budget.
    """

    def scaled(factor: float) -> Plan:
        return replace(plan, method=plan.method.scale_noise(factor))

    return scaled(smallest_noise(lambda factor: scaled(factor).cost, budget))


def calibrate_steps(plan: Plan, budget: Budget, *, start: int = 0) -> Plan:
    """Returns the plan with the most steps that the budget allows.

    Guarantee:
      The budget's accountant finds the cost of the result within the budget.

    Args:
      plan: what will be run; its own length is ignored.
      budget: what may be spent; a finite one.
      start: steps that are already made, and whose cost is in ``plan.spent``.
    """
    if math.isinf(budget.epsilon):
        raise InvalidArgumentError(
            "budget must be finite to decide the number of steps; got epsilon infinity, which is"
            " never spent. Give num_steps."
        )

    def cost_of(num_steps: int) -> DpEvent:
        return composed(plan.spent.event, plan.cost_between(start, start + num_steps))

    return plan.with_steps(start + most_steps(cost_of, budget))


def calibrate_batch_size(plan: Plan, budget: Budget) -> Plan:
    """Returns the plan with the largest Poisson or fixed batch that the budget allows.

    Noise multiplier and step size stay as they are. A ``max_batch_size`` stays too, and limits the
    result.

    Guarantee:
      The budget's accountant finds the cost of the result within the budget.
    """
    method: Any = plan.method
    release = getattr(method, "release", None)
    if release is None or not isinstance(release.sampling, PoissonBatch | FixedBatch):
        raise InvalidArgumentError(
            "plan.method must draw Poisson or fixed batches to have its batch size calibrated; got"
            f" {method!r}."
        )
    if getattr(method, "noise_power", None) == -0.5:
        raise InvalidArgumentError(
            "plan.method holds its temperature, which would change with the batch size; got"
            f" {method!r}. Use calibrate, which finds the step size, or SGLD.fixed_noise."
        )

    def resized(batch_size: int) -> Plan:
        sampling = replace(release.sampling, batch_size=batch_size)
        return replace(plan, method=replace(method, release=replace(release, sampling=sampling)))

    limit = getattr(release.sampling, "max_batch_size", None) or method.public_records
    size = largest_batch(
        lambda batch_size: resized(batch_size).cost,
        budget,
        maximum=min(limit, method.public_records),
    )
    return resized(size)
