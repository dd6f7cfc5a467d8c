"""Plates: find the one in which a program has its records."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from numpyro.handlers import replay, seed, trace

from tacit.errors import InvalidArgumentError
from tacit.models.programs.arguments import Call
from tacit.models.programs.running import Program, SiteTrace
from tacit.typing import Array

__all__ = ["find_program"]


def find_program(
    model: Callable[..., Any],
    guide: Callable[..., Any],
    build: Callable[[Sequence[Array]], Call],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *,
    plate: str | None,
) -> Program:
    """Returns the program with the name of its record plate."""
    num_records = shapes[0].shape[0]
    found: dict[str, SiteTrace] = {}

    def run(records: Sequence[Array]) -> None:
        args, kwargs = build(records)
        found["guide"] = trace(seed(guide, jax.random.key(0))).get_trace(*args, **kwargs)
        seeded = seed(model, jax.random.key(1))
        found["model"] = trace(replay(seeded, found["guide"])).get_trace(*args, **kwargs)

    jax.eval_shape(run, shapes)
    plates = {
        name: site for name, site in found["model"].items() if site["type"] == "plate"
    }
    if plate is None:
        observed = [s for s in found["model"].values() if s["type"] == "sample" and s["is_observed"]]
        names = [
            name for name, site in plates.items()
            if num_records in (site["args"][0], site["value"].shape[0])
            and any(f.name == name for o in observed for f in o["cond_indep_stack"])
        ]
        if len(names) != 1:
            raise InvalidArgumentError(f"no single record plate: {names}")
        plate = names[0]
    return Program(
        model=model,
        guide=guide,
        build=build,
        plate=plate,
        model_takes_key=_takes_key(found["model"], plate),
        guide_takes_key=_takes_key(found["guide"], plate),
    )


def _takes_key(sites: SiteTrace, plate: str) -> bool:
    return plate in sites and sites[plate]["kwargs"]["rng_key"] is not None
