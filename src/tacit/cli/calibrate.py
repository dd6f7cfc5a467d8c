"""``tacit calibrate``: the least noise, or the most steps, within a budget."""

import json
import math
from typing import Annotated

import typer
from rich.console import Console

from tacit import _check
from tacit.cli import _plan
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import Adjacency, round_up
from tacit.privacy.budget import Budget
from tacit.privacy.calibrate import most_steps, smallest_noise

__all__ = ["calibrate"]


def calibrate(
    *,
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: _plan.DeltaOption,
    steps: Annotated[int | None, typer.Option(help="Number of updates; finds the noise.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over clip norm; finds the number of steps.")
    ] = None,
    rate: _plan.RateOption = None,
    sampling: _plan.SamplingOption = _plan.SamplingName.POISSON,
    records: _plan.RecordsOption = None,
    batch: _plan.BatchOption = None,
    capacity: _plan.CapacityOption = None,
    accountant: _plan.AccountantOption = _plan.AccountantName.PLD,
    adjacency: _plan.AdjacencyOption = Adjacency.ZERO_OUT,
    as_json: _plan.JsonOption = False,
) -> None:
    """The least noise, or the most steps, that a budget allows.

    For example, the noise for fifteen epochs at epsilon 1, and the steps that noise 1.3 allows:

    [bold]tacit calibrate --epsilon 1 --delta 1e-5 --batch 256 --records 60000 --steps 3515[/]

    [bold]tacit calibrate --epsilon 1 --delta 1e-5 --rate 0.004 --noise-multiplier 1.3[/]
    """
    _plan.check_positive("--epsilon", epsilon)
    _plan.check_delta(delta)
    plan = _plan.Plan(sampling=sampling, rate=rate, records=records, batch=batch, capacity=capacity)
    chosen = accountant.build(adjacency)
    budget = Budget(epsilon, delta, chosen)
    if steps is not None and noise_multiplier is None:
        _check.positive_integer(**{"--steps": steps})
        num_steps, found = steps, "noise multiplier"
        # Rounded up, as less noise than was found would exceed the budget.
        noise = math.ceil(1000 * smallest_noise(lambda s: plan.steps(s, num_steps), budget)) / 1000
    elif noise_multiplier is not None and steps is None:
        _plan.check_positive("--noise-multiplier", noise_multiplier)
        noise, found = noise_multiplier, "steps"
        num_steps = most_steps(lambda count: plan.steps(noise, count), budget)
    else:
        raise InvalidArgumentError(
            "give either --steps (to find the noise) or --noise-multiplier (to find the steps)."
        )
    spent = budget.spent(plan.steps(noise, num_steps))
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "noise_multiplier": noise,
                    "steps": num_steps,
                    "epsilon": spent,
                    "epsilon_rounded_up": round_up(spent),
                    "delta": delta,
                    "is_bound": chosen.is_bound,
                    "accountant": chosen.name,
                    "adjacency": adjacency.value,
                }
            )
        )
        return
    answer = f"{noise:.3f}" if found == "noise multiplier" else str(num_steps)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{found} [bold]{answer}[/]")
    console.print(f"which costs epsilon {round_up(spent)} at delta {delta:g}")
    console.print(chosen.describe(), style="dim")
