"""Making a privacy statement from what was executed."""

import datetime
import functools
import importlib.metadata
import json
import math
import platform
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit import native
from tacit.errors import UnprovenAccountingError
from tacit.privacy.accounting import RDP, Accountant, round_up
from tacit.privacy.budget import Budget
from tacit.privacy.cost import Cost
from tacit.privacy.events import event_to_json, noise_multipliers, num_shards
from tacit.privacy.statement import text
from tacit.privacy.statement.executed import engines_in, method_name, releases_made
from tacit.privacy.statement.fields import Statement, Tuning
from tacit.privacy.trade_off import TradeOff

__all__ = ["make_statement"]

_CURVE = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_FALSE_POSITIVE_RATE = 0.01
_PACKAGES = ("tacit", "dp-accounting", "jax", "numpy", "scipy")


def make_statement(
    *,
    cost: Cost,
    budget: Budget,
    unit: str,
    num_units: int,
    method: object = None,
    num_steps: int | None = None,
    length: str = text.FIXED,
    num_chains: int = 1,
    rows_per_unit: int = 1,
    tuning: Tuning = "not counted",
    intended_use: str = "not stated",
    is_charged: bool = False,
) -> Statement:
    """Returns the statement for an executed cost.

    Args:
      cost: what was executed, or declared before the first step where that is more.
      budget: gives delta and the accountant.
      unit: what one unit of privacy is.
      num_units: how many there are.
      method: the configuration in which the noisy sums are found, with their clip norms.
      num_steps: updates of each chain that were made.
      length: how their number was fixed, from `tacit.privacy.stopping.claim_of`.
      num_chains: how many chains.
      rows_per_unit: how many rows of one unit count at most.
      tuning: how settings were chosen; without a word it is taken as not counted.
      intended_use: what the artefacts are for.
      is_charged: whether a ledger that the owner keeps was charged for it.

    Guarantee:
      ``epsilon`` is computed from ``cost``, not copied from the budget, and rounded up. An
      infinite budget promises nothing.
    """
    event, is_secure = cost.event, cost.is_secure
    accountant: Accountant = budget.accountant
    epsilon = math.inf if math.isinf(budget.epsilon) else budget.spent(event)
    rounded = round_up(epsilon)
    is_private = math.isfinite(epsilon)
    made = releases_made(event)
    curve = _curve(event, budget, float(rounded)) if is_private else []
    facts: dict[str, Any] = {
        "epsilon": float(rounded),
        "delta": budget.delta,
        "unit": unit,
        "num_units": num_units,
        "is_bound": accountant.is_bound,
        "is_secure": is_secure,
        "adjacency": f"{accountant.adjacency}: {accountant.adjacency.sentence}",
        "best_attack": _best_attack(curve) if is_private else None,
    }
    return Statement(
        **facts,
        summary=text.summary(facts),
        epsilon_text=text.epsilon_text(rounded, is_bound=accountant.is_bound, is_secure=is_secure),
        accountant=accountant.describe(),
        not_protected=text.not_protected(facts),
        num_units_is_public=not text.is_declared(facts),
        composition=_composition(event),
        releases=sum(count for _, count in noise_multipliers(event)),
        cost=json.loads(json.dumps(event_to_json(event))),
        randomness=(
            "ChaCha20, 256-bit key from the operating system"
            if is_secure
            else "ChaCha20 from a known seed: INSECURE, anyone who has it can take the noise off"
        ),
        noise=_noise(event),
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        mechanism=text.MECHANISM.format(batches=_batches(made)),
        curve=curve,
        cross_check=_cross_check(event, budget) if is_private else None,
        releases_made=made,
        engines=engines_in(method),
        method=method_name(method),
        software=_software(),
        num_steps=num_steps,
        length=length,
        num_chains=num_chains,
        rows_per_unit=rows_per_unit,
        tuning=tuning,
        intended_use=intended_use,
        other_releases=text.CHARGED if is_charged else text.OTHER_RELEASES,
    )


def _curve(cost: DpEvent, budget: Budget, claim: float) -> list[dict[str, float]]:
    points = {
        delta: float(round_up(budget.accountant.epsilon(cost, delta=delta))) for delta in _CURVE
    }
    points[budget.delta] = claim
    return [
        {"delta": delta, "epsilon": epsilon}
        for delta, epsilon in sorted(points.items(), reverse=True)
        if math.isfinite(epsilon)
    ]


def _best_attack(curve: list[dict[str, float]]) -> dict[str, float]:
    points = sorted((row["epsilon"], row["delta"]) for row in curve)
    epsilons, deltas = np.array(points).T
    power = TradeOff(epsilons, deltas).true_positive_rate(_FALSE_POSITIVE_RATE)
    return {"false_positive_rate": _FALSE_POSITIVE_RATE, "true_positive_rate": float(power)}


def _cross_check(cost: DpEvent, budget: Budget) -> dict[str, Any] | None:
    try:
        epsilon = RDP(adjacency=budget.accountant.adjacency).epsilon(cost, delta=budget.delta)
    except UnprovenAccountingError:
        return None
    return {"accountant": "RDP (Rényi divergences, an upper bound)", "epsilon": round_up(epsilon)}


def _composition(cost: DpEvent) -> str:
    largest = num_shards(cost)
    if largest == 1:
        return text.SEQUENTIAL
    return (
        f"parallel over {largest} disjoint shards: a record pays for the releases of its own shard,"
        " which a public rule tells from its identity alone; the others never read it"
    )


def _noise(cost: DpEvent) -> str:
    has_noise = any(multiplier > 0 for multiplier, _ in noise_multipliers(cost))
    return text.NOISE if has_noise else "none"


def _batches(made: list[dict[str, Any]]) -> str:
    kinds = sorted({row["sampling"] for row in made})
    return " and ".join(f"a {kind}" for kind in kinds) if kinds else "nothing"


def _software() -> dict[str, str]:
    versions = {name: _version(name) for name in _PACKAGES}
    return versions | {"python": platform.python_version(), "generator": native.name()}


@functools.cache
def _version(package: str) -> str:
    return importlib.metadata.version(package)
