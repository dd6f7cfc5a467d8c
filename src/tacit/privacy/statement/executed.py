"""What was executed, for people: the releases of a cost, and the sums as they were configured."""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from dp_accounting import DpEvent

from tacit.privacy._releases import count_releases
from tacit.privacy.events import noise_multipliers, of_one_record
from tacit.privacy.mechanism import GaussianSum
from tacit.privacy.noise import tail_delta

__all__ = ["engines_in", "method_name", "releases_made", "tail_of"]


def tail_of(cost: DpEvent, *, num_values: int) -> float:
    """Returns how much of delta the noise's cut tail takes, over all releases about one record.

    Releases without noise have no tail; they are not private at all.
    """
    return min(
        1.0,
        sum(
            tail_delta(num_values, count, multiplier)
            for multiplier, count in noise_multipliers(of_one_record(cost))
            if multiplier > 0 and count > 0
        ),
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


def method_name(config: object) -> str:
    """Returns the class of a method, and of the one it runs, as in ``SWAG of SGLD``."""
    if config is None:
        return "not stated"
    base = getattr(config, "base", None)
    name = type(config).__name__
    return name if base is None else f"{name} of {method_name(base)}"


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
        "num_records": int(sampling.num_records),
        "rate": float(sampling.rate),
        "capacity": int(sampling.capacity),
        "normaliser": "the public rate, never the size of the batch that was drawn",
    }
