"""The private chains that were tried for MNIST, and those that are run.

Path lengths, clips and temperatures follow from energies. A trajectory of length T with L moves
heats up by (T c z)^2 d / 2L for d weights, clip norm c and gradients with noise c z; its ratio
costs half of its variance. Both must stay below what the potential energy falls by, which is the
number of records times the fall of their loss, divided by the temperature.
"""

from typing import Any

from experiments.cells import Settings
from experiments.thesis_fitting import num_releases
from experiments.thesis_inputs import SCATTERING

__all__ = ["CANDIDATES", "CHOSEN", "RADIUS", "ROBUST", "private_cell"]

RADIUS = 0.08
"""Of the balls that the robust chain is trained with after a burn-in."""


def private_cell(data: str, chain: Settings) -> Settings:
    """Returns all settings of a private chain."""
    is_robust = chain["row"].startswith("IBP")
    return {
        "data": data,
        "foreign": "mnist" if data == "fashion_mnist" else "fashion_mnist",
        "num_records": 60_000,
        "prior_std": 1.0,
        "adversary": "intervals" if is_robust else "none",
        "clean_weight": 0.5,
        "test_radius": None if chain["network"] == SCATTERING else 0.075,
        "epsilon": 8.0,
        "delta": 1e-5,
        "num_releases": num_releases(chain["phases"]),
    } | chain


def _chain(row: str, network: str, *phases: Settings, first_layer: float = 1.0) -> Settings:
    return {"row": row, "network": network, "first_layer": first_layer, "phases": list(phases)}


def _downhill(batch_size: int, **others: Any) -> Settings:
    """Returns a phase that goes downhill, fast and cold."""
    return {
        "batch_size": batch_size,
        "num_proposals": 12,
        "num_leapfrog": 10,
        "radius": 0.0,
        "ratio_noise": 6.0,
        "epsilon": 6.0,
    } | others


def _around(batch_size: int, **others: Any) -> Settings:
    """Returns a phase that samples, at temperature one."""
    return {
        "batch_size": batch_size,
        "temperature": 1.0,
        "num_proposals": 20,
        "num_leapfrog": 3,
        "radius": 0.0,
        "ratio_noise": 20.0,
        "epsilon": 8.0,
    } | others


def _wide(*downhill: Settings) -> Settings:
    fixed = {"temperature": 1 / 300, "clip_norm": 40.0, "ratio_clip_norm": 8.0}
    return _chain(
        "DP-HMC",
        "784-512-10",
        *(_downhill(10_000, **(fixed | each)) for each in downhill),
        _around(10_000, path_length=1e-3, clip_norm=0.1, ratio_clip_norm=0.05),
    )


def _small(clip_norm: float) -> Settings:
    return _chain(
        "DP-HMC",
        "pooled 196-32-10",
        _downhill(
            6000, temperature=0.01, path_length=0.01, clip_norm=clip_norm, ratio_clip_norm=4.0
        ),
        _around(6000, path_length=1e-3, clip_norm=1.0, ratio_clip_norm=0.2),
    )


def _robust(*downhill: Settings, path_length: float) -> Settings:
    fixed = {
        "temperature": 1 / 300,
        "path_length": 0.004,
        "clip_norm": 100.0,
        "ratio_clip_norm": 15.0,
    }
    return _chain(
        "IBP-DP-HMC",
        "pooled 196-32-10",
        *(_downhill(6000, **(fixed | each)) for each in downhill),
        _around(6000, radius=0.1, path_length=path_length, clip_norm=1.0, ratio_clip_norm=0.2),
        first_layer=0.2,
    )


def _after_burn_in(
    network: str, *, burn_in: Settings | None = None, path_length: float, **around: Any
) -> Settings:
    """Returns a robust chain that starts where a private burn-in ends.

    Its gradients are hardly clipped: records that hold each other at bay with a small clip no
    longer do with a large one. All records count, which is less noise than a sample has.
    """
    downhill = {
        "radius": RADIUS,
        "clip_norm": 0.5,
        "epsilon": 4.0,
        "num_steps": 300,
        "learning_rate": 2.0,
        "batch_size": 6000,
    }
    fixed = {"radius": RADIUS, "ratio_clip_norm": 0.5, "ratio_noise": 3.0}
    last = _around(60_000, path_length=path_length, **(fixed | around))
    return _chain("IBP-DP-HMC", network, downhill | (burn_in or {}), last, first_layer=0.1)


def _features() -> Settings:
    return _chain(
        "DP-HMC",
        SCATTERING,
        _downhill(6000, temperature=0.1, path_length=1e-3, clip_norm=15.0, ratio_clip_norm=4.0),
        _around(6000, path_length=3e-4, clip_norm=1.0, ratio_clip_norm=0.3),
    )


_SHORT = {"num_leapfrog": 5, "path_length": 0.003}

CANDIDATES: tuple[tuple[Settings, ...], ...] = (
    (
        _wide({"path_length": 0.006}),
        _wide(
            {"path_length": 0.006, "num_proposals": 5, "epsilon": 4.0},
            {"path_length": 0.004, "num_proposals": 10, "epsilon": 6.5},
        ),
    ),
    (
        _robust(
            {"radius": 0.1 / 3, "num_proposals": 6, "epsilon": 4.0},
            {"radius": 0.1, "epsilon": 6.5},
            path_length=1e-3,
        ),
        _robust(
            {"radius": 0.03, "num_proposals": 10, "epsilon": 4.0} | _SHORT,
            {"radius": 0.06, "num_proposals": 10, "epsilon": 5.5} | _SHORT,
            {"radius": 0.1, "num_proposals": 16, "epsilon": 7.0} | _SHORT,
            path_length=3e-3,
        ),
        _robust(
            {"radius": 0.02, "num_proposals": 10, "epsilon": 3.0, "clip_norm": 60.0} | _SHORT,
            {"radius": 0.05, "num_proposals": 15, "epsilon": 4.8, "clip_norm": 40.0} | _SHORT,
            {"radius": 0.1, "num_proposals": 30, "epsilon": 7.0, "clip_norm": 25.0} | _SHORT,
            path_length=3e-3,
        ),
        _after_burn_in("pooled 196-32-10", path_length=3e-4, clip_norm=10.0),
        _after_burn_in("pooled 196-32-10", path_length=6e-4, clip_norm=5.0),
    ),
    (_small(20.0), _small(40.0)),
)
"""What was tried on the stand-in, in groups of which one is run."""

ROBUST = CANDIDATES[1][3]
"""The robust chain that the studies vary."""

CHOSEN: tuple[Settings, ...] = (
    CANDIDATES[0][0],
    ROBUST,
    CANDIDATES[2][1],
    _features(),
    _after_burn_in(
        "784-512-10",
        burn_in={"learning_rate": 1.0, "batch_size": 3000},
        path_length=1e-4,
        clip_norm=5.0,
        num_leapfrog=1,
        num_proposals=10,
    ),
)
"""The winner of each group; the last two had no rival."""
