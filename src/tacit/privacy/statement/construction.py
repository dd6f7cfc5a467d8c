"""Making a privacy statement from what was executed."""

import dataclasses
import datetime
import functools
import importlib.metadata
import json
import math
import platform
from collections.abc import Iterator
from typing import Any

import numpy as np
from dp_accounting import DpEvent

from tacit import native
from tacit.errors import InvalidArgumentError, UnprovenAccountingError
from tacit.privacy.accounting import RDP
from tacit.privacy.accounting.accountants import round_up
from tacit.privacy.accounting.releases import SamplingKind, distinct_releases
from tacit.privacy.accounting.rules import Adjacency
from tacit.privacy.budget import Budget
from tacit.privacy.cost import Cost, event_to_json, noise_multipliers, num_shards
from tacit.privacy.interpretation import TradeOff
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.statement import text
from tacit.privacy.statement.fields import Statement, Tuning

__all__ = ["engines_in", "make_statement", "method_name", "releases_made", "require_adjacency"]

_CURVE = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7, 1e-8)
_FALSE_POSITIVE_RATE = 0.01
_PACKAGES = ("tacit", "dp-accounting", "jax", "numpy", "scipy")
_UNSAMPLED = (SamplingKind.FULL, SamplingKind.FIXED)


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

    Guarantee:
      ``epsilon`` is computed from ``cost``, not copied from the budget, and rounded up. An
      infinite budget promises nothing.

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

    Example:
      >>> import dp_accounting as dpa
      >>> made = make_statement(
      ...     cost=Cost(dpa.GaussianDpEvent(4.0), is_secure=True),
      ...     budget=Budget(epsilon=1.0, delta=1e-5), unit="one record", num_units=1000)
      >>> made.epsilon_text
      '0.927'
    """
    event, is_secure, accountant = cost.event, cost.is_secure, budget.accountant
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
        randomness=text.SECRET if is_secure else text.SEEDED,
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


def releases_made(cost: DpEvent) -> list[dict[str, Any]]:
    """Returns the releases of a cost that concern one record, one row for each kind of batch.

    Example:
      >>> import dp_accounting as dpa
      >>> step = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.3))
      >>> row, = releases_made(dpa.SelfComposedDpEvent(step, 20))
      >>> row["sampling"], row["rate"], row["lowest_noise_multiplier"], row["times"]
      ('Poisson batch', 0.01, 1.3, 20)
    """
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for release, times in distinct_releases(cost):
        family = (release.sampling, release.rate, release.size, release.is_sharded)
        row = rows.setdefault(
            family,
            {
                "sampling": release.sampling.value,
                "rate": release.rate,
                "size": release.size or None,
                "is_sharded": release.is_sharded,
                "lowest_noise_multiplier": math.inf,
                "highest_noise_multiplier": 0.0,
                "times": 0,
            },
        )
        noise = release.noise_multiplier
        row["lowest_noise_multiplier"] = min(row["lowest_noise_multiplier"], noise)
        row["highest_noise_multiplier"] = max(row["highest_noise_multiplier"], noise)
        row["times"] += times
    return list(rows.values())


def engines_in(config: object) -> list[dict[str, Any]]:
    """Returns every noisy sum that a method is configured with, by the name of its field."""
    return [_described(name, engine) for name, engine in _walk("", config)]


def method_name(config: object) -> str:
    """Returns the class of a method, and of the one it runs, as in ``SWAG of SGLD``."""
    if config is None:
        return "not stated"
    base = getattr(config, "base", None)
    name = type(config).__name__
    return name if base is None else f"{name} of {method_name(base)}"


def require_adjacency(config: object, budget: Budget, *, spent: DpEvent | None = None) -> None:
    """Raises unless the batches of a run keep the number of records as its adjacency has it.

    Guarantee:
      Under add-remove every batch is a `PoissonBatch` with ``declared_records``, so that nothing
      public depends on the true number. Under the other adjacencies that number is public, and
      none is declared: rates and costs would be those of another number.

    Args:
      config: a method, a release or a sampling.
      budget: says the adjacency; one that promises nothing allows everything.
      spent: what was released before, and is counted under the same adjacency.
    """
    if math.isinf(budget.epsilon):
        return
    adjacency = budget.accountant.adjacency
    is_private = adjacency is Adjacency.ADD_REMOVE
    for name, sampling in _samplings(config):
        declared = getattr(sampling, "declared_records", None)
        if is_private and declared is None:
            raise InvalidArgumentError(
                f"{name} must be a PoissonBatch with declared_records under adjacency {adjacency},"
                f" where the number of records is private; got {type(sampling).__name__} without."
                " Give PoissonBatch(declared_records=...), a public upper bound; or, to look at"
                f" every record, use adjacency {Adjacency.ZERO_OUT} or {Adjacency.REPLACE_ONE}."
            )
        if not is_private and declared is not None:
            raise InvalidArgumentError(
                f"{name}.declared_records must be left out under adjacency {adjacency}, where the"
                f" number of records is public; got {declared}. Use adjacency"
                f" {Adjacency.ADD_REMOVE} where it is private."
            )
    earlier = () if spent is None else distinct_releases(spent)
    if is_private and any(release.sampling in _UNSAMPLED for release, _ in earlier):
        raise InvalidArgumentError(
            "plan.spent must come from batches of a declared number of records under adjacency"
            f" {adjacency}; got {spent!r}, where every record, or a fixed number, was looked at."
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


def _described(name: str, engine: GaussianSum) -> dict[str, Any]:
    sampling = engine.sampling
    return {
        "name": name,
        "clip_norm": "infinity" if math.isinf(engine.clip_norm) else float(engine.clip_norm),
        "clipping": type(engine.clipping).__name__,
        "sampling": type(sampling).__name__,
        "num_records": int(sampling.public_records),
        "rate": float(sampling.rate),
        "inclusion_rate": float(sampling.inclusion_rate),
        "capacity": int(sampling.capacity),
        "normaliser": "the public inclusion rate, never the size of the batch that was drawn",
    }


def _samplings(config: object) -> Iterator[tuple[str, object]]:
    if isinstance(config, GaussianSum):
        yield "release.sampling", config.sampling
    elif hasattr(config, "public_records") and hasattr(config, "capacity"):
        yield "sampling", config
    else:
        for name, engine in _walk("", config):
            yield f"{name}.sampling", engine.sampling


def _walk(name: str, config: object) -> Iterator[tuple[str, GaussianSum]]:
    if isinstance(config, GaussianSum):
        yield name, config
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        for item in dataclasses.fields(config):
            inner = f"{name}.{item.name}" if name else item.name
            yield from _walk(inner, getattr(config, item.name, None))
