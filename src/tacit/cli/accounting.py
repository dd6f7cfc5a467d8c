"""``tacit epsilon`` and ``tacit calibrate``: what a run costs, and what a budget buys."""

import enum
import json
import math
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import dp_accounting as dpa
import typer
from dp_accounting import DpEvent
from rich.console import Console

from tacit import _check
from tacit.cli._options import DeltaOption, JsonOption, with_options
from tacit.errors import InvalidArgumentError
from tacit.privacy.accounting import GDP, PLD, RDP, Accountant, Adjacency, CLTApproximation
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.budget import Budget
from tacit.privacy.calibration import most_steps, smallest_noise
from tacit.privacy.cost import ConditionedPoissonDpEvent

__all__ = [
    "AccountantName",
    "AdjacencyOption",
    "SamplingName",
    "SamplingOptions",
    "calibrate_command",
    "epsilon_command",
]


class SamplingName(enum.Enum):
    """How batches are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    FULL = "full"


class AccountantName(enum.Enum):
    """Who accounts for them."""

    PLD = "pld"
    RDP = "rdp"
    GDP = "gdp"
    CLT_APPROXIMATION = "clt-approximation"

    def build(self, adjacency: Adjacency) -> Accountant:
        """The accountant of this name."""
        match self:
            case AccountantName.PLD:
                return PLD(adjacency=adjacency)
            case AccountantName.RDP:
                return RDP(adjacency=adjacency)
            case AccountantName.GDP:
                return GDP(adjacency=adjacency)
            case AccountantName.CLT_APPROXIMATION:
                return CLTApproximation(adjacency=adjacency)


_SAMPLING, _ACCOUNTING = "How batches are drawn", "How it is accounted for"

AdjacencyOption: TypeAlias = Annotated[
    Adjacency, typer.Option(help="Which data sets are neighbours.", rich_help_panel=_ACCOUNTING)
]


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How batches are drawn, as the options say."""

    sampling: SamplingName
    rate: float | None
    records: int | None
    batch: int | None
    capacity: int | None

    def __post_init__(self) -> None:
        for option in ("records", "batch", "capacity"):
            if getattr(self, option) is not None:
                _check.positive_integer(**{option: getattr(self, option)})
        if self.capacity is not None and self.sampling is not SamplingName.POISSON:
            raise InvalidArgumentError(
                f"--capacity bounds Poisson batches; got it with --sampling {self.sampling.value}."
            )
        if self.capacity is not None and self.records is None:
            raise InvalidArgumentError("--capacity needs the number of records; add --records.")
        if self.rate is not None and self.sampling is SamplingName.FULL:
            raise InvalidArgumentError("--sampling full takes every record; leave out --rate.")
        if self.rate is not None and self.sampling is SamplingName.FIXED:
            raise InvalidArgumentError(
                "--sampling fixed needs --records and --batch; leave out --rate."
            )
        if self.rate is not None and self.batch is not None:
            raise InvalidArgumentError(
                "give either --rate, or --batch and --records to compute it, not both."
            )
        if self.records is not None and self.batch is not None and self.batch > self.records:
            raise InvalidArgumentError(
                f"--batch must be at most --records; got {self.batch} of {self.records}."
            )

    def release(self, noise_multiplier: float) -> DpEvent:
        """The cost of one step."""
        event = dpa.GaussianDpEvent(noise_multiplier)
        match self.sampling:
            case SamplingName.FULL:
                return event
            case SamplingName.FIXED:
                if self.records is None or self.batch is None:
                    raise InvalidArgumentError("--sampling fixed needs --records and --batch.")
                return dpa.SampledWithoutReplacementDpEvent(self.records, self.batch, event)
            case SamplingName.POISSON:
                rate = self._poisson_rate()
                if self.capacity is None:
                    return dpa.PoissonSampledDpEvent(rate, event)
                assert self.records is not None
                return ConditionedPoissonDpEvent(rate, self.records, self.capacity, event)

    def steps(self, noise_multiplier: float, num_steps: int) -> DpEvent:
        """The cost of a run."""
        return dpa.SelfComposedDpEvent(self.release(noise_multiplier), num_steps)

    def _poisson_rate(self) -> float:
        if self.rate is not None:
            _check.fraction(rate=self.rate)
            return self.rate
        if self.records is None or self.batch is None:
            raise InvalidArgumentError(
                "--sampling poisson needs --rate, or --batch and --records to compute it."
            )
        return self.batch / self.records


def _sampling_options(
    *,
    rate: Annotated[
        float | None,
        typer.Option(
            help="Chance that a record is in a batch; or give --batch and --records.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    sampling: Annotated[
        SamplingName,
        typer.Option(
            help="Each record by its own coin (poisson), a fixed number of records, or all (full).",
            rich_help_panel=_SAMPLING,
        ),
    ] = SamplingName.POISSON,
    records: Annotated[
        int | None, typer.Option(help="Number of records (people).", rich_help_panel=_SAMPLING)
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="(Expected) records per batch.", rich_help_panel=_SAMPLING)
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            help="Largest batch: sizes are drawn on condition that they fit. Needs --records.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
) -> SamplingOptions:
    return SamplingOptions(
        sampling=sampling, rate=rate, records=records, batch=batch, capacity=capacity
    )


def _accountant(
    *,
    accountant: Annotated[
        AccountantName,
        typer.Option(
            help="Tight (pld), looser (rdp), exact for full batches (gdp), or not a bound at all.",
            rich_help_panel=_ACCOUNTING,
        ),
    ] = AccountantName.PLD,
    adjacency: AdjacencyOption = Adjacency.ZERO_OUT,
) -> Accountant:
    return accountant.build(adjacency)


@with_options("chosen", _accountant)
@with_options("batches", _sampling_options)
def epsilon_command(
    *,
    noise_multiplier: Annotated[
        float, typer.Option(help="Standard deviation of the noise over the clip norm.")
    ],
    steps: Annotated[int, typer.Option(help="Number of updates that are actually made.")],
    delta: DeltaOption,
    batches: SamplingOptions,
    chosen: Accountant,
    as_json: JsonOption = False,
) -> None:
    """Epsilon of a run, rounded up.

    For example, fifteen epochs of batches of 256 from 60 000 records:

    [bold]tacit epsilon --noise-multiplier 1.3 --batch 256 --records 60000
    --steps 3515 --delta 1e-5[/]
    """
    _check.positive(noise_multiplier=noise_multiplier)
    _check.fraction(one=False, delta=delta)
    _check.positive_integer(steps=steps)
    value = chosen.epsilon(batches.steps(noise_multiplier, steps), delta=delta)
    if as_json:
        typer.echo(json.dumps(_document(value, delta, chosen)))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"epsilon [bold]{round_up(value)}[/] at delta {delta:g}")
    console.print(chosen.describe(), style="dim")


@with_options("chosen", _accountant)
@with_options("batches", _sampling_options)
def calibrate_command(
    *,
    epsilon: Annotated[float, typer.Option(help="The budget.")],
    delta: DeltaOption,
    steps: Annotated[int | None, typer.Option(help="Number of updates; finds the noise.")] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise over clip norm; finds the number of steps.")
    ] = None,
    batches: SamplingOptions,
    chosen: Accountant,
    as_json: JsonOption = False,
) -> None:
    """The least noise, or the most steps, that a budget allows.

    For example, the noise for fifteen epochs at epsilon 1, and the steps that noise 1.3 allows:

    [bold]tacit calibrate --epsilon 1 --delta 1e-5 --batch 256 --records 60000 --steps 3515[/]

    [bold]tacit calibrate --epsilon 1 --delta 1e-5 --rate 0.004 --noise-multiplier 1.3[/]
    """
    _check.positive(epsilon=epsilon)
    _check.fraction(one=False, delta=delta)
    budget = Budget(epsilon, delta, chosen)
    if steps is not None and noise_multiplier is None:
        _check.positive_integer(steps=steps)
        num_steps = steps
        # Rounded up, as less noise than was found would exceed the budget.
        least = smallest_noise(lambda noise: batches.steps(noise, num_steps), budget)
        noise = math.ceil(1000 * least) / 1000
        answer = f"noise multiplier [bold]{noise:.3f}[/]"
    elif noise_multiplier is not None and steps is None:
        _check.positive(noise_multiplier=noise_multiplier)
        noise = noise_multiplier
        num_steps = most_steps(lambda count: batches.steps(noise, count), budget)
        answer = f"steps [bold]{num_steps}[/]"
    else:
        raise InvalidArgumentError(
            "give either --steps (to find the noise) or --noise-multiplier (to find the steps)."
        )
    spent = budget.spent(batches.steps(noise, num_steps))
    if as_json:
        found = {"noise_multiplier": noise, "steps": num_steps}
        typer.echo(json.dumps(found | _document(spent, delta, chosen)))
        return
    console = Console(highlight=False, soft_wrap=True)
    console.print(answer)
    console.print(f"which costs epsilon {round_up(spent)} at delta {delta:g}")
    console.print(chosen.describe(), style="dim")


def _document(epsilon: float, delta: float, chosen: Accountant) -> dict[str, Any]:
    return {
        "epsilon": epsilon if math.isfinite(epsilon) else None,  # JSON has no infinity
        "epsilon_rounded_up": round_up(epsilon),
        "delta": delta,
        "is_bound": chosen.is_bound,
        "accountant": chosen.name,
        "adjacency": chosen.adjacency.value,
    }
