"""What was executed, for people: the releases of a cost, and the sums as they were configured."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from dp_accounting import DpEvent

from tacit.errors import InvalidArgumentError
from tacit.privacy._releases import Sampling, count_releases
from tacit.privacy.adjacency import Adjacency
from tacit.privacy.budget import Budget
from tacit.privacy.mechanism import GaussianSum

__all__ = ["engines_in", "method_name", "releases_made", "require_adjacency"]

_UNSAMPLED = (Sampling.FULL, Sampling.FIXED)


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
    for release, times in count_releases(cost):
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
    earlier = () if spent is None else count_releases(spent)
    if is_private and any(release.sampling in _UNSAMPLED for release, _ in earlier):
        raise InvalidArgumentError(
            "plan.spent must come from batches of a declared number of records under adjacency"
            f" {adjacency}; got {spent!r}, where every record, or a fixed number, was looked at."
        )


def method_name(config: object) -> str:
    """Returns the class of a method, and of the one it runs, as in ``SWAG of SGLD``."""
    if config is None:
        return "not stated"
    base = getattr(config, "base", None)
    name = type(config).__name__
    return name if base is None else f"{name} of {method_name(base)}"


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
