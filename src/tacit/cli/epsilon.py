"""``tacit epsilon``: what a run costs."""

import json
import math
from typing import Annotated

import typer
from rich.console import Console

from tacit import _check
from tacit.cli import _plan
from tacit.privacy.accounting import Adjacency, round_up

__all__ = ["epsilon"]


def epsilon(
    *,
    noise_multiplier: Annotated[
        float, typer.Option(help="Standard deviation of the noise over the clip norm.")
    ],
    steps: Annotated[int, typer.Option(help="Number of updates that are actually made.")],
    delta: _plan.DeltaOption,
    rate: _plan.RateOption = None,
    sampling: _plan.SamplingOption = _plan.SamplingName.POISSON,
    records: _plan.RecordsOption = None,
    batch: _plan.BatchOption = None,
    capacity: _plan.CapacityOption = None,
    accountant: _plan.AccountantOption = _plan.AccountantName.PLD,
    adjacency: _plan.AdjacencyOption = Adjacency.ZERO_OUT,
    as_json: _plan.JsonOption = False,
) -> None:
    """Epsilon of a run, rounded up.

    For example, fifteen epochs of batches of 256 from 60 000 records:

    [bold]tacit epsilon --noise-multiplier 1.3 --batch 256 --records 60000
    --steps 3515 --delta 1e-5[/]
    """
    _plan.check_positive("--noise-multiplier", noise_multiplier)
    _plan.check_delta(delta)
    _check.positive_integer(**{"--steps": steps})
    plan = _plan.Plan(sampling=sampling, rate=rate, records=records, batch=batch, capacity=capacity)
    chosen = accountant.build(adjacency)
    value = chosen.epsilon(plan.steps(noise_multiplier, steps), delta=delta)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "epsilon": value if math.isfinite(value) else None,  # JSON has no infinity
                    "epsilon_rounded_up": round_up(value),
                    "delta": delta,
                    "is_bound": chosen.is_bound,
                    "accountant": chosen.name,
                    "adjacency": adjacency.value,
                }
            )
        )
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"epsilon [bold]{round_up(value)}[/] at delta {delta:g}")
    console.print(chosen.describe(), style="dim")
